"""Exceptions: the one that commands report as one line on stderr, and those of elastic jobs."""


class BadInputError(ValueError):
    """The input is invalid. The message says what is wrong and how to fix it."""


class HorovodInternalError(RuntimeError):
    """A rank of an elastic job is lost, and what the ranks were doing together has failed."""


class HostsUpdatedInterrupt(RuntimeError):
    """Other processes wait to become ranks of this elastic job: nothing has failed.

    `skip_sync`: the ranks need not exchange their state. Always false.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("other processes wait to become ranks of this job")
        self.skip_sync = skip_sync
