"""Parallel calls come from one thread: ranks must make them in the same order."""

import threading

_lock = threading.Lock()
_user: threading.Thread | None = None


def refuse_second_thread(label: str) -> None:
    """Raise if another thread, which still runs, has made parallel calls before this one."""
    global _user
    this = threading.current_thread()
    with _lock:
        other = _user
        if other is None or not other.is_alive():
            other = _user = this
    if other is not this:
        raise NotImplementedError(
            f"{label} is called in thread {this.name}, and thread {other.name} makes such calls "
            "too. Ranks must make them in the same order, and the threads of each rank run in an "
            "order of their own: call all models from one thread"
        )
