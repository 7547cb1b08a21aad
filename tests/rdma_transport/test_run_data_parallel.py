"""`rdma-transport run --data-parallel`: what scripts for one process find, and what is refused."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.support.ports import free_port
from tests.rdma_transport.test_ranks import STEP
from tests.support.deadlines import patient

RUN = [sys.executable, "-m", "rdma_transport", "run", "--data-parallel"]
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "0"}
Script = Callable[..., str]


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *words],
        env=os.environ | ENVIRONMENT | variables,
        capture_output=True,
        text=True,
        timeout=patient(90),
        check=False,
    )


TAKES_PART = "from rdma_transport.error_file import note_part; note_part()\n"
SEEDS = """
    import os, random, subprocess, sys
    import numpy
    print(random.random(), numpy.random.rand(), hash("a"), os.environ.get("PYTHONPATH"), OWN)
    child = "import random, sys; print(len(sys.meta_path), random.random())"
    words = subprocess.check_output([sys.executable, "-c", child], text=True).split()
    assert int(words[0]) < len(sys.meta_path), words
    assert float(words[1]) != random.Random(0).random()
    random.seed(3)
    assert random.random() == random.Random(3).random()
"""


def test_ranks_have_equal_seeds_and_children_are_left_alone(script: Script) -> None:
    own = Path(script("import builtins; builtins.OWN = 'own'", "user/sitecustomize.py")).parent
    text = TAKES_PART + textwrap.dedent(SEEDS)
    words = ("--", sys.executable, script(text))
    ran = run("-n", "3", *words, PYTHONPATH=str(own), PYTHONHASHSEED="random")
    assert ran.returncode == 0, ran.stderr
    first, *others = [line.partition("] ")[2] for line in sorted(ran.stdout.splitlines())]
    assert others == [first, first]
    assert first.split()[3:] == [str(own), "own"]
    again = run("-n", "3", *words, PYTHONPATH=str(own), PYTHONHASHSEED="1")
    assert first not in again.stdout
    others = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    variables = {"PYTHONPATH": str(own)}
    parts = [run("-n", "1", *others, "--node-rank", node, *words, **variables) for node in "01"]
    assert parts[0].stdout == parts[1].stdout.replace("[1]", "[0]") != "", parts
    tasks = [run(*words, **STEP | {"SLURM_PROCID": rank} | variables) for rank in "34"]
    assert tasks[1].stdout == tasks[0].stdout.replace("[3]", "[4]") != "", tasks


def test_the_output_of_other_ranks_can_be_hidden(script: Script) -> None:
    text = TAKES_PART + "import sys; print('out'); print('failed', file=sys.stderr)"
    ran = run("-n", "2", "--quiet-ranks", "--", sys.executable, script(text))
    assert ran.stdout == "[0] out\n"
    assert sorted(ran.stderr.splitlines()) == ["[0] failed", "[1] failed"]


def test_a_rank_that_shares_nothing_fails_the_job() -> None:
    ran = run("-n", "2", "--", sys.executable, "-c", "pass")
    assert ran.returncode == 1
    assert "ended without any reduction: each rank trained alone" in ran.stderr
    assert run("-n", "1", "--", sys.executable, "-c", "pass").returncode == 0
    port = str(free_port())
    hosts = ("--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1")
    ran = run("-n", "1", *hosts, "--master-port", port, "--", sys.executable, "-c", "pass")
    assert "error: rank 1 ended without any reduction" in ran.stderr


def test_options_that_do_not_fit(script: Script) -> None:
    ran = run("--horovod", "--", "true")
    assert (ran.returncode, "omit one of them" in " ".join(ran.stderr.split())) == (2, True)
    alone = [word for word in RUN if word != "--data-parallel"]
    ran = subprocess.run(
        [*alone, "--explain", "--", "true"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "need --data-parallel" in " ".join(ran.stderr.split())
    ran = run("-n", "2", "--", sys.executable, script("import rdma_transport.horovod.keras"))
    assert ran.returncode == 1
    assert "this program is written for Horovod" in ran.stderr


# Each way to update variables, none of which a reduction precedes.
ALONE = """
    import keras
    import tensorflow as tf
    import tf_keras
    import rdma_transport.tensorflow

    v1 = tf.compat.v1
    variable = tf.Variable([1.0, 2.0], name="weights")
    counter, total = tf.Variable(0.0), tf.Variable(1.0)


    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * variable)
        counter.assign_add(1.0)
        total.assign_add(loss)
        return tape.gradient(loss, [variable])


    @tf.function
    def in_function():
        variable.assign_sub(gradient()[0])


    def old(**kind):
        with tf.Graph().as_default():
            weights = v1.get_variable("old", [2], **kind)
            loss = tf.reduce_sum(weights * weights)
            v1.train.AdamOptimizer().minimize(loss)


    def old_by_hand():
        with tf.Graph().as_default():
            weights = v1.get_variable("old", [2], use_resource=False)
            v1.assign(weights, v1.gradients(tf.reduce_sum(weights * weights), weights)[0])


    def whole():
        def read(a, b):
            return variable * tf.reduce_sum(a)

        call = rdma_transport.tensorflow.parallel(read, name="reader")
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(call(tf.zeros([2, 3]), tf.zeros([4, 3])))
        variable.assign_sub(tape.gradient(loss, variable))


    cases = [
        in_function,
        lambda: variable.assign(gradient()[0]),
        lambda: keras.optimizers.Adam().apply_gradients(zip(gradient(), [variable])),
        lambda: keras.optimizers.SGD().apply(gradient(), [variable]),
        lambda: tf_keras.optimizers.Adam().apply_gradients(zip(gradient(), [variable])),
        lambda: tf_keras.optimizers.legacy.SGD().apply_gradients(zip(gradient(), [variable])),
        lambda: tf_keras.optimizers.Adam().minimize(
            lambda: tf.reduce_sum(variable * variable), [variable]
        ),
        old,
        lambda: old(use_resource=False),
        old_by_hand,
        whole,
    ]
    for number, case in enumerate(cases):
        try:
            case()
        except RuntimeError as error:
            assert "no reduction would happen: " in str(error), error
            assert ("Seen: reader runs whole" in str(error)) is (case is whole), error
            print("refused", number)
        else:
            print("not refused", number)
    assert variable.numpy().tolist() == [1, 2]
    assert counter.numpy() > 4
"""


def test_updates_without_reduction_are_refused(script: Script) -> None:
    ran = run(
        "-n",
        "2",
        "--quiet-ranks",
        "--",
        sys.executable,
        script(TAKES_PART + textwrap.dedent(ALONE)),
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [f"[0] refused {number}" for number in range(11)]


# Unchanged lines of a user, and --scale-batch where it can be done and where not.
FIT = """
    import keras
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    x, y = np.random.rand(24, 4).astype("float32"), np.random.rand(24, 1).astype("float32")
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=6, epochs=2, verbose=0)
    print(int(model.optimizer.iterations), model.get_weights()[0].tolist())
    def augment(x, y):
        return x + tf.random.normal(tf.shape(x)), y


    batches = tf.data.Dataset.from_tensor_slices((x, y))
    batches = batches.map(augment, num_parallel_calls=tf.data.AUTOTUNE).batch(6)
    model.evaluate(batches, verbose=0)
    if SCALED:
        batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(6, drop_remainder=True)
        model.fit(batches, verbose=0)
        print(int(model.optimizer.iterations))
        for refused in (
            lambda: model.fit(batches.unbatch().batch(6)),
            lambda: model.fit(((x, y) for _ in range(2)), steps_per_epoch=2),
            lambda: model.train_on_batch(x, y),
        ):
            try:
                refused()
            except NotImplementedError as error:
                assert "--scale-batch" in str(error), error
                print("refused")
"""


def test_the_batch_of_a_script_is_divided_or_scaled(script: Script) -> None:
    alone = subprocess.run(
        [sys.executable, script("SCALED = False\n" + textwrap.dedent(FIT), "alone.py")],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=patient(90),
        check=True,
    ).stdout
    words = (sys.executable, script("SCALED = False\n" + textwrap.dedent(FIT)))
    divided = run("-n", "2", "--explain", "--", *words)
    assert divided.returncode == 0, divided.stderr
    steps, weights = alone.split(maxsplit=1)
    for line in divided.stdout.splitlines():
        assert line.split()[1] == steps == "8"
        found, wanted = (eval(text) for text in (line.split(maxsplit=2)[2], weights))
        assert found == [pytest.approx(each, rel=1e-5) for each in wanted]
    explained = [line for line in divided.stderr.splitlines() if "] explain: " in line]
    assert "equal seeds on all ranks" in explained[0]
    assert all(line.startswith("[0] ") for line in explained)
    assert any(f"{words[1]}:11: " in line and "sequential" in line for line in explained), explained
    assert any(f"{words[1]}:18: Dataset.map() without" in line for line in explained), explained
    words = (sys.executable, script("SCALED = True\n" + textwrap.dedent(FIT)))
    scaled = run("-n", "2", "--scale-batch", "--quiet-ranks", "--", *words)
    assert scaled.returncode == 0, scaled.stderr
    first, *others = scaled.stdout.splitlines()
    assert first.split()[1] == "4"
    assert others == ["[0] 6", *["[0] refused"] * 3]
    assert "batches of 12 examples, 6 for each of 2 ranks" in scaled.stderr
    assert "the learning rate stays" in scaled.stderr
