"""Fixtures: a pair of guests, booted once for all tests."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.deadlines import patient
from tools.guest.guest import Guest
from tools.guest.machine import booted
from tools.guest.packages import UnavailableError

Pair = tuple[Guest, Guest]


class Machines:
    """Boots the pair when it is first wanted, and again if a test lost it."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.guests: list[Guest] = []
        self.failure: Exception | None = None

    def pair(self) -> Pair:
        try:
            for guest in self.guests:
                guest.restore()
        except (RuntimeError, OSError):
            self.end()
        if not self.guests:
            self.boot()
        first, second = self.guests
        return first, second

    def boot(self) -> None:
        if self.failure:  # it would fail again, as slowly, for each test
            raise self.failure
        try:
            self.guests = self.stack.enter_context(booted(2))
        except Exception as failure:
            self.failure = failure
            raise

    def end(self) -> None:
        self.guests = []
        self.stack.close()


@pytest.fixture(scope="session")
def machines() -> Iterator[Machines]:
    Guest.patience = patient(1)
    made = Machines()
    yield made
    made.end()


@pytest.fixture
def guests(machines: Machines) -> Pair:
    """Two guests with nothing left of earlier tests: no process, the link up, no loss."""
    try:
        return machines.pair()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def guest(guests: Pair) -> Guest:
    return guests[0]
