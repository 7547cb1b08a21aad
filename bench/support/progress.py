"""Progress bars with the time left, on standard error and in terminals only."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")
Show = Callable[[float, str], None]  # the part that is done, and what is being done


class Bar:
    """A part of the whole; `at(0.5, "...")` shows that half of it is done."""

    def __init__(self, show: Show, start: float = 0.0, length: float = 1.0) -> None:
        self._show, self._start, self._length = show, start, length

    def at(self, part: float, what: str) -> None:
        """Show that `part` of this section, from 0 to 1, is done."""
        self._show(self._start + self._length * min(part, 1.0), what)

    def section(self, index: int, count: int) -> "Bar":
        """Return one of `count` equal sections."""
        length = self._length / count
        return Bar(self._show, self._start + index * length, length)

    def track(self, items: Sequence[T], what: str) -> Iterable[T]:
        """Yield the items. Each is an equal part."""
        for index, item in enumerate(items):
            self.at(index / len(items), f"{what} {index + 1}/{len(items)}")
            yield item

    def timed(self, seconds: float, what: str) -> Iterator[float]:
        """Yield the seconds that are left until they are over, at least once."""
        start = time.perf_counter()
        while True:
            gone = time.perf_counter() - start
            if gone:
                self.at(gone / seconds if seconds else 1.0, what)
            yield max(seconds - gone, 0.0)
            if time.perf_counter() - start >= seconds:
                return


QUIET = Bar(lambda part, what: None)


@contextmanager
def shown() -> Iterator[tuple[Bar, Callable[[], AbstractContextManager[None]]]]:
    """Yield a bar, drawn if standard error is a terminal, and a context that hides it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    # of its own, because standard error is somewhere else while TensorFlow is imported
    console = Console(file=os.fdopen(os.dup(2), "w"))
    columns = (
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(compact=True),
        TextColumn("left  {task.description}"),
    )
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def start() -> None:
        progress.start()
        console.show_cursor(True)  # a killed process could not show it again

    @contextmanager
    def hidden() -> Iterator[None]:
        progress.stop()
        yield
        start()

    task = progress.add_task("starting", total=1.0)
    start()
    try:
        yield (
            Bar(lambda part, what: progress.update(task, completed=part, description=what)),
            hidden,
        )
    finally:
        progress.stop()
