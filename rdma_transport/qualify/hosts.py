"""The hosts of one run: they do each step together, and learn how it went on all of them."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from rdma_transport.collectives.ranks import Ranks
from rdma_transport.collectives.rendezvous import Rendezvous
from rdma_transport.fabric import FabricConnectionError, FabricError, FabricTimeoutError

T = TypeVar("T")
PATIENCE = 30.0
"""Seconds that a step may take on one host longer than on another one."""


class NoAnswerError(Exception):
    """Another host did not take part in a step in time. The message says which one."""


class UnendedError(FabricTimeoutError):
    """A call did not end in time, and still runs in its thread."""


class StepError(Exception):
    """A step failed on a host; raised on all hosts. The message says where and why."""


class Hosts:
    """This host is ``rank`` of ``size``. Not thread-safe.

    Host 0 listens for the others at the meeting place of `ranks`, over TCP, so a fabric that does
    not work cannot disturb it. All hosts must do the same steps in the same order.
    """

    def __init__(self, ranks: Ranks, fabric: str) -> None:
        self.rank, self.size, self.fabric = ranks.rank, ranks.size, fabric
        self.names = [f"host {rank}" for rank in range(ranks.size)]
        self.key = b""
        """What all hosts know, and nobody else; empty without RDMA_TRANSPORT_SECRET_FILE."""
        self._ranks = ranks
        self._steps = 0

    def other(self, distance: int) -> int:
        """The rank that is so many ranks after this one, in a circle."""
        return (self.rank + distance) % self.size

    def together(
        self, step: Callable[[], T], seconds: float, patience: float = PATIENCE
    ) -> list[T]:
        """Do a step on all hosts; return the results of all, by rank. They must be JSON values.

        Raise ``StepError`` on all hosts if it fails on one, and ``NoAnswerError`` if a host has no
        result after `seconds` and `patience`.
        """
        end = time.monotonic() + seconds
        told: dict[str, Any] = {}
        try:
            told["result"] = step()
        except (FabricError, OSError, ValueError, RuntimeError) as error:
            told["error"] = str(error).split("\n")[0] or repr(error)
        answers = self._exchange(told, max(0.0, end - time.monotonic()) + patience)
        errors = [
            f"{name}: {answer['error']}"
            for name, answer in zip(self.names, answers, strict=True)
            if "error" in answer
        ]
        if errors:
            raise StepError("; ".join(errors))
        return [answer["result"] for answer in answers]

    def _exchange(self, told: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
        self._steps += 1
        ranks = replace(self._ranks, purpose=f"qualify {self._steps}")
        try:
            with Rendezvous(ranks, seconds) as rendezvous:
                _, key = rendezvous.exchange([b""] * self.size)
                texts = rendezvous.gather(json.dumps(told), key)
            self.key = self.key or key  # each meeting has another one
        except (FabricTimeoutError, FabricConnectionError) as error:
            text = str(error)
            for rank, name in enumerate(self.names):
                text = text.replace(f"rank {rank} ", f"{name} (host {rank}) ")
            raise NoAnswerError(text) from None
        return [json.loads(text) for text in texts]


def side_by_side(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, Any]:
    """Do calls in threads of their own; return their results.

    Raise the first error, or ``UnendedError`` if one does not end in time.
    """
    results: dict[str, Any] = {}
    errors: list[Exception] = []

    def run(name: str, call: Callable[[], Any]) -> None:
        try:
            results[name] = call()
        except Exception as error:
            errors.append(error)

    # They end by themselves; if not, they must not keep the process from ending.
    threads = {
        name: threading.Thread(target=run, args=(name, call), daemon=True)
        for name, call in calls.items()
    }
    for thread in threads.values():
        thread.start()
    end = time.monotonic() + seconds
    for name, thread in threads.items():
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            raise UnendedError(f"{name}: no end after {seconds:g} s")
    if errors:
        raise errors[0]
    return results
