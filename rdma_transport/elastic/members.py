"""Who takes part in an elastic job. The launcher alone decides that, so no two halves both go on.

Members are processes. Between two changes they form an epoch, in which each has a rank. All of an
epoch that live ask for the next one, after a death or when others wait; then it begins, with those
that wait.
"""

from dataclasses import dataclass


@dataclass
class _Member:
    number: int
    """In the order in which they were started."""
    epoch: int = 0
    """The last one that it belonged to."""
    asks: bool = False
    has_state: bool = False
    """It has the state of the training, and can give it to others."""


class Members:
    """Decides who belongs to the next epoch, which has `least` members or more."""

    def __init__(self, least: int) -> None:
        self.least = least
        self.epoch = 0
        self._members: dict[int, _Member] = {}
        self._has_state = False  # some member had it

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, number: int) -> bool:
        return number in self._members

    def add(self, number: int) -> None:
        """Add a process that was started."""
        self._members[number] = _Member(number)

    def remove(self, number: int) -> None:
        """Remove one that has ended."""
        self._members.pop(number, None)

    def ask(self, number: int) -> None:
        """Note that a member has left its epoch, and asks for the next one."""
        self._members[number].asks = True

    def forget(self, number: int) -> None:
        """Note that a member does not ask any more: its connection is closed."""
        if number in self._members:
            self._members[number].asks = False

    def note_state(self, number: int) -> None:
        """Note that a member has the state of the training."""
        self._members[number].has_state = self._has_state = True

    def current(self) -> list[int]:
        """Return the members of this epoch that live; before the first one, all."""
        return [each.number for each in self._members.values() if each.epoch == self.epoch]

    def waiting(self) -> int:
        """Return how many members wait to be taken in."""
        return sum(each.asks and not each.epoch for each in self._members.values())

    def missing(self) -> list[int]:
        """Return the members of this epoch that do not ask for the next one."""
        return [number for number in self.current() if not self._members[number].asks]

    def asking(self) -> int:
        """Return how many members ask for the next epoch."""
        return sum(each.asks for each in self._members.values())

    def why_over(self) -> str:
        """Return why the members that live cannot go on; empty if they can."""
        if len(self) < self.least:
            return f"{_ranks(len(self))} left, and --min is {self.least}"
        if self._has_state and not any(each.has_state for each in self._members.values()):
            return "no rank is left that has the state of the training"
        if not self.current():
            return "no rank is left that took part"
        return ""

    def decide(self, at_once: bool = False) -> list[int]:
        """Return the members of the next epoch by rank, if it can begin, otherwise none.

        `at_once`: without those of this epoch that do not ask. The longest-serving member that has
        the state becomes rank 0.
        """
        asking = [each for each in self._members.values() if each.asks]
        if len(asking) < self.least or not any(each.epoch == self.epoch for each in asking):
            return []
        if self.missing() and not at_once:
            return []
        self.epoch += 1
        for each in asking:
            each.epoch, each.asks = self.epoch, False
        asking.sort(key=lambda each: (not each.has_state, each.number))
        return [each.number for each in asking]


def _ranks(count: int) -> str:
    return "1 rank is" if count == 1 else f"{count or 'no'} ranks are"
