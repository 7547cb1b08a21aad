"""The plan of each model against a count from its variables.

A step of parameter-server training moves each variable once to each worker and one gradient back,
as long as the variable, and nothing else. So the shapes of the variables say everything.
"""

import functools
from collections import Counter

import pytest

from bench.models import MODELS
from bench.models.training import TrainingGraph, training_graph
from graph_analyzer import Plan, analyze
from tests.bench.test_models import PUBLISHED, WORKERS, built, sizes_of

pytestmark = pytest.mark.timeout(60)
INLINE = 4096
ALIGNMENT = 64
PLENTY = "64GiB"
PS = "/job:ps/task:0"


@functools.cache
def planned(name: str) -> Plan:
    return analyze(built(name).graph, "ps=1,worker=2", arena_limit=PLENTY, inline_limit=INLINE)


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@pytest.mark.parametrize("name", PUBLISHED)
def test_small_tensors_ride_inline_and_all_others_have_a_place(name: str) -> None:
    sizes, plan = sizes_of(name), planned(name)
    inline = [4 * size for size in sizes if 4 * size <= INLINE]
    static = [4 * size for size in sizes if 4 * size > INLINE]
    times = 2 * len(WORKERS)
    found = {name: (one.edges, one.bytes, one.unknown) for name, one in plan.by_mode().items()}
    assert found == {
        "static": (times * len(static), times * sum(static), 0),
        "dynamic": (0, 0, 0),
        "inline": (times * len(inline), times * sum(inline), 0),
        "grpc": (0, 0, 0),
    }
    for edge in plan.edges:
        assert edge.bytes is not None
        assert edge.mode == ("inline" if edge.bytes <= INLINE else "static")
        assert edge.reason
        if edge.mode == "static":
            assert edge.slots >= 2
            assert edge.slot_bytes == edge.slots * aligned(edge.bytes)
        else:
            assert (edge.slots, edge.slot_bytes) == (0, 0)


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_are_born_in_variables_and_gradients_in_kernels(name: str) -> None:
    plan = planned(name)
    shapes = {variable.name: variable.shape for variable in built(name).variables}
    weights = [edge for edge in plan.edges if edge.source == PS]
    assert Counter((edge.site.op, edge.destination) for edge in weights) == Counter(
        (variable, worker) for variable in shapes for worker in WORKERS
    )
    for edge in weights:
        assert edge.shape == shapes[edge.site.op]
        assert (edge.site.kind, edge.site.type) == ("variable", "VarHandleOp")
        assert edge.mutability == "variable", "the update of the next step writes into it"
    gradients = [edge for edge in plan.edges if edge.source != PS]
    assert {(edge.site.kind, edge.mutability) for edge in gradients} == {("kernel", "immutable")}
    for worker in WORKERS:
        came = Counter(edge.shape for edge in gradients if edge.source == worker)
        assert came == Counter(shapes.values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_tasks_have_the_sums_of_their_edges(name: str) -> None:
    sizes, plan = sizes_of(name), planned(name)
    one_way = 4 * sum(sizes)
    pools = Counter(aligned(4 * size) for size in sizes if 4 * size > INLINE)
    slots = sum(edges * size for size, edges in pools.items())
    tasks = {task.name: task for task in plan.tasks}
    assert set(tasks) == {PS, *WORKERS}
    for task, peers in ((PS, 2), (WORKERS[0], 1), (WORKERS[1], 1)):
        assert tasks[task].sent_bytes == peers * one_way
        assert tasks[task].received_bytes == peers * one_way
        assert tasks[task].slot_bytes == peers * slots, "one slot for each edge"
        # all weights are read at once, and no gradient waits for another
        assert tasks[task].slot_peak_bytes == tasks[task].slot_bytes
        # one buffer for a variable at least, which all workers are sent from
        assert slots <= tasks[task].source_bytes <= peers * 2 * slots


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_variables_are_those_of_the_model(name: str) -> None:
    sizes, plan = sizes_of(name), planned(name)
    assert Counter(variable.bytes for variable in plan.variables) == Counter(4 * n for n in sizes)
    told = {variable.name: variable.shape for variable in plan.variables}
    assert told == {variable.name: variable.shape for variable in built(name).variables}
    assert {(one.task, one.dtype, one.readers) for one in plan.variables} == {
        (PS, "float32", len(WORKERS))
    }


@functools.cache
def on_two_servers() -> tuple[TrainingGraph, Plan]:
    servers = [f"/job:ps/task:{index}" for index in range(2)]
    workers = [f"/job:worker/task:{index}" for index in range(3)]
    made = training_graph(MODELS["alexnet"], batch=2, workers=workers, servers=servers)
    plan = analyze(made.graph, "ps=2,worker=3", arena_limit=PLENTY, inline_limit=INLINE)
    return made, plan


def test_two_servers_and_three_workers() -> None:
    made, plan = on_two_servers()
    workers = [f"/job:worker/task:{index}" for index in range(3)]
    on_server: dict[str, list[int]] = {"/job:ps/task:0": [], "/job:ps/task:1": []}
    # in the order of the model, which is also that of the layers
    for variable, size in zip(made.variables, sizes_of("alexnet"), strict=True):
        on_server[variable.device].append(4 * size)
    assert all(on_server.values())
    assert len(plan.tensors) == 2 * 3 * len(made.variables)
    links: dict[tuple[str, str], list[int | None]] = {}
    for edge in plan.tensors:
        links.setdefault((edge.source, edge.destination), []).append(edge.bytes)
    expected = {}
    for server, sizes in on_server.items():
        for worker in workers:
            expected[server, worker] = expected[worker, server] = Counter(sizes)
    assert {link: Counter(sizes) for link, sizes in links.items()} == expected
    everything = sum(map(sum, on_server.values()))
    tasks = {task.name: (task.sent_bytes, task.received_bytes) for task in plan.tasks}
    assert tasks == {
        **{server: (3 * sum(sizes), 3 * sum(sizes)) for server, sizes in on_server.items()},
        **dict.fromkeys(workers, (everything, everything)),
    }
    assert {variable.readers for variable in plan.variables} == {3}
