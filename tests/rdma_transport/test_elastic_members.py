"""Who belongs to the next epoch of an elastic job."""

import pytest

from rdma_transport.elastic.members import Members


@pytest.fixture
def members() -> Members:
    """Three, in their first epoch."""
    made = Members(least=2)
    for number in (0, 1, 2):
        made.add(number)
        made.ask(number)
    assert made.decide() == [0, 1, 2]
    return made


def test_the_first_epoch_waits_for_all() -> None:
    members = Members(least=2)
    for number in (0, 1, 2):
        members.add(number)
    members.ask(2)
    assert members.decide(at_once=True) == []  # too few
    members.ask(1)
    assert members.decide() == []
    assert members.decide(at_once=True) == [1, 2]
    members.ask(0)
    assert members.waiting() == 1


def test_those_that_live_go_on_when_all_have_left_the_old_epoch(members: Members) -> None:
    members.remove(0)
    members.ask(2)
    assert members.missing() == [1]
    assert members.decide() == []
    members.ask(1)
    assert members.decide() == [1, 2]
    assert not members.why_over()
    members.remove(1)
    assert members.why_over() == "1 rank is left, and --min is 2"


def test_others_are_taken_in_only_with_those_of_the_epoch(members: Members) -> None:
    for number in (3, 4):
        members.add(number)
        members.ask(number)
    assert members.waiting() == 2
    assert members.decide() == []
    for number in (0, 1, 2):
        assert members.decide() == []
        members.ask(number)
    assert members.decide() == [0, 1, 2, 3, 4]
    assert members.waiting() == 0


def test_rank_0_has_the_state(members: Members) -> None:
    members.note_state(2)
    members.note_state(1)
    members.add(3)
    for number in (0, 1, 2, 3):
        members.ask(number)
    assert members.decide() == [1, 2, 0, 3]
    for number in (1, 2):
        members.remove(number)
    assert members.why_over() == "no rank is left that has the state of the training"


def test_the_training_does_not_begin_anew(members: Members) -> None:
    for number in (3, 4):
        members.add(number)
        members.ask(number)
    for number in (0, 1, 2):
        members.remove(number)
    assert members.why_over() == "no rank is left that took part"
    assert members.decide(at_once=True) == []


def test_one_that_is_gone_does_not_ask(members: Members) -> None:
    for number in (0, 1, 2):
        members.ask(number)
    members.forget(1)
    assert members.decide() == []


def test_more_than_there_may_be_wait(members: Members) -> None:
    members.most = 4
    for number in (3, 4):
        members.add(number)
        members.ask(number)
    assert members.waiting() == 1
    for number in (0, 1, 2):
        members.ask(number)
    assert members.decide() == [0, 1, 2, 3]
    assert members.waiting() == 0
    members.remove(1)
    assert members.waiting() == 1


def test_those_that_are_to_leave_go_when_they_can(members: Members) -> None:
    """That is when enough others are left, and these have the state."""
    for number in (0, 1, 2):
        members.note_state(number)
        members.leave(number, True)
    assert members.waiting() == 0
    for number in (3, 4):
        members.add(number)
        members.ask(number)
    assert members.waiting() == 2
    for number in (0, 1, 2):
        members.ask(number)
    assert members.decide() == [0, 1, 2, 3, 4]
    assert members.waiting() == 0
    members.note_state(3)
    assert members.waiting() == 3
    for number in range(5):
        members.ask(number)
    assert members.decide() == [3, 4]
