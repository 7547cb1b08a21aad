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
    leaves: bool = False
    """It goes on only if too few others are left."""


class Members:
    """Decides who belongs to the next epoch, which has `least` to `most` members."""

    def __init__(self, least: int, most: int = 1024) -> None:
        self.least, self.most = least, most
        self.epoch = 0
        self._members: dict[int, _Member] = {}
        self._has_state = False  # some member had it
        self.takes_more = True
        """Whether others can still be taken in."""

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

    def leave(self, number: int, leaves: bool) -> None:
        """Note that a member is to leave, or to stay after all."""
        if number in self._members:
            self._members[number].leaves = leaves

    def take_no_more(self) -> None:
        """Keep those out that have never belonged to an epoch."""
        self.takes_more = False
        for number in [each.number for each in self._members.values() if not each.epoch]:
            self.remove(number)

    def current(self) -> list[int]:
        """Return the members of this epoch that live; before the first one, all."""
        return [each.number for each in self._members.values() if each.epoch == self.epoch]

    def waiting(self) -> int:
        """Return how many members wait to be taken in, or are to leave and can."""
        stay = [each for each in self._members.values() if not each.leaves]
        inside = sum(each.epoch == self.epoch for each in stay)
        waiting = sum(each.asks and each.epoch != self.epoch for each in stay)
        leave = len(self.current()) - inside if self._suffice(stay) else 0
        return leave + min(waiting, max(self.most - inside, 0))

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
        the state becomes rank 0. Members that are to leave stay, beyond `most`, while the others
        are too few or have no state.
        """
        asking = [each for each in self._members.values() if each.asks]
        asking.sort(key=lambda each: (each.epoch != self.epoch, each.number))
        stay = [each for each in asking if not each.leaves][: self.most]
        if not self._suffice(stay):
            stay += [each for each in asking if each.leaves]
        if not self._suffice(stay) or (self.missing() and not at_once):
            return []
        self.epoch += 1
        for each in stay:
            each.epoch, each.asks = self.epoch, False
        stay.sort(key=lambda each: (not each.has_state, each.number))
        return [each.number for each in stay]

    def _suffice(self, some: list[_Member]) -> bool:
        """Return whether some of the members could go on without the others."""
        if len(some) < self.least or not any(each.epoch == self.epoch for each in some):
            return False
        return any(each.has_state for each in some) or not self._has_state


def _ranks(count: int) -> str:
    return "1 rank is" if count == 1 else f"{count or 'no'} ranks are"
