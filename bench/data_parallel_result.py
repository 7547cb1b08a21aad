"""The result of `bench.data_parallel` for tables and JSON."""

import statistics
from collections.abc import Sequence

from rdma_transport.observe.table import counted

from .data_parallel import (
    ALONE,
    BESIDE,
    OURS,
    SCHEMES,
    Found,
    Layout,
    Samples,
    measure,
    share_of,
)
from .data_parallel_cases import FIT, Case, bytes_of
from .report import Result, Row, times_of
from .support.exit import NotAvailableError
from .where import Where

NOTE = (
    "unhidden: what a step takes longer than that of the same ranks without reductions. 1/s: "
    "samples of all ranks per second; apart: without reductions, which is all that they can reach."
)
HIDDEN_NOTE = (
    "hidden: how much of the time in which the ranks reduce as many gradients, dense and all there "
    "from the start, a step is not longer."
)
SENT_NOTE = "bytes sent: by a rank in a step, to the other host."
RATIO = f"The ratio is what a library does not hide, over what {OURS} does not."
ALONE_NOTE = "alone: one process, which reduces nothing."
FIT_NOTE = (
    f"{FIT}: Keras 3 with {OURS} and unchanged, tf-keras with Horovod; DDP does not train it."
)


def data_parallel(
    where: Where,
    layouts: Sequence[Layout],
    cases: Sequence[Case],
    beside: Sequence[str],
    rounds: int,
) -> Result:
    """Rows for each layout, case and system; those of one rank are of a process alone."""
    options = {
        "cases": [case.model for case in cases],
        "batch": [case.batch for case in cases],
        "beside": list(beside),
        "rounds": rounds,
    }
    result = Result("data-parallel", "data-parallel training step", options, "p50", against=OURS)
    share = share_of(layouts)
    for index, layout in enumerate(layouts):
        bar = where.bar.section(index, len(layouts))
        systems = [ALONE] if layout.ranks == 1 else [OURS, *beside]
        try:
            measured = measure(layout, share, systems, cases, rounds, bar.at, where.environment)
        except NotAvailableError as error:
            result.notes.append(f"{layout.name} was skipped: {error}.")
            continue
        found, skipped, failed = measured
        result.rows += rows_of(layout, cases, systems, found)
        for what, why in skipped.items():
            system, _, of_case = what.partition(", ")
            called = (BESIDE | SCHEMES).get(system, system)
            note = f"{called} was skipped{of_case and ' for ' + of_case}: {why}."
            result.notes += [] if note in result.notes else [note]
        for what, why in failed.items():
            text = f"{layout.name}: {what}: {why}"
            (result.problems if "rdma" in what else result.notes).append(text)
    if not result.rows:
        raise NotAvailableError(" ".join([*result.problems, *result.notes]))
    if any(layout.oversubscribed for layout in layouts):
        result.notes.append("oversubscribed: more ranks than processors, which wait for turns.")
    result.notes.append(NOTE)
    result.notes += [HIDDEN_NOTE] if any("hidden" in row.more for row in result.rows) else []
    if any(not layout.oversubscribed for layout in layouts):
        result.notes.append(f"Each rank has {counted(share, 'processor')} of its own.")
    result.notes += [SENT_NOTE] if any(layout.hosts > 1 for layout in layouts) else []
    result.notes += [RATIO] if any(row.ratio is not None for row in result.rows) else []
    result.notes += [ALONE_NOTE] if any(layout.ranks == 1 for layout in layouts) else []
    result.notes += [FIT_NOTE] if any(case.model == FIT for case in cases) else []
    return result


def rows_of(
    layout: Layout, cases: Sequence[Case], systems: Sequence[str], found: Found
) -> list[Row]:
    """Return the rows of a layout."""
    rows = []
    for case in cases:
        ours = found.get((case.name, OURS))
        for system in (each for each in systems if (case.name, each) in found):
            samples = found[case.name, system]
            step = statistics.median(samples.reduced)
            examples = layout.ranks * case.batch
            ratio = None
            if ours is not None and system != OURS and ours.unhidden > 0 < samples.unhidden:
                ratio = samples.unhidden / ours.unhidden
            rows.append(
                Row(
                    test=f"{layout.name}, oversubscribed" if layout.oversubscribed else layout.name,
                    name=case.name,
                    bytes=bytes_of(case.model),
                    protocol=system,
                    iterations=len(samples.reduced),
                    times=times_of([1e3 * each for each in samples.reduced]),
                    per_second=1e3 * examples / step,
                    more=_more(layout, samples, examples) if system != ALONE else {},
                    ratio=ratio,
                )
            )
    return rows


def _more(layout: Layout, samples: Samples, examples: int) -> dict[str, float | str]:
    """Return what is not hidden, and what went through the interfaces between hosts.

    On one host some use those, and others shared memory.
    """
    sent = {"bytes sent": round(statistics.median(samples.sent))} if layout.hosts > 1 else {}
    apart = {"1/s apart": 1e3 * examples / statistics.median(samples.alone)}
    hidden = {} if samples.hidden is None else {"hidden": f"{samples.hidden:.0%}"}
    return {"unhidden": 1e3 * samples.unhidden, **hidden, **apart, **sent}
