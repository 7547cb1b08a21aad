"""Trains a small recommender like DLRM on clicks, with its embeddings divided among the ranks.

The clicks are in Criteo's format: lines of a label, 13 integers and 26 hexadecimal categories,
separated by tabs, any of which may be missing. Without a file, they are generated.

usage: rdma-transport run --horovod -n 2 -- python examples/recommender.py [CLICKS.tsv]
"""

import itertools
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import rdma_transport.tensorflow as rt
from rdma_transport.embeddings import Adagrad, Table
from rdma_transport.embeddings.keras import Embedding

NUMBERS, CATEGORIES = 13, 26
ROWS = 1 << 18  # of the table of all categories, by a hash
DIM = 16
BATCH = 256  # clicks of a rank in a step
STEPS = 150


def generated(seed: int) -> Iterator[str]:
    """Yield clicks that depend on two of the categories and one of the numbers."""
    random = np.random.default_rng(seed)
    while True:
        numbers = random.integers(0, 50, NUMBERS)
        categories = np.minimum(random.zipf(1.3, CATEGORIES), 10_000)
        odds = (categories[0] % 2) + (categories[1] % 2) + (numbers[0] > 25) - 1.5
        label = int(random.random() < 1 / (1 + np.exp(-4 * odds)))
        yield "\t".join([str(label), *map(str, numbers), *(f"{each:08x}" for each in categories)])


def lines_of(file: str | None, rank: int, size: int) -> Iterator[str]:
    """Yield the lines of a rank, over and over."""
    if file is None:
        yield from generated(rank)
    while True:
        with Path(file or "").open() as lines:
            yield from itertools.islice(lines, rank, None, size)


def batches(lines: Iterator[str]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield labels, numbers and rows of the table."""
    while True:
        fields = [line.rstrip("\n").split("\t") for line in itertools.islice(lines, BATCH)]
        labels = [[float(each[0])] for each in fields]
        numbers = [[float(text or 0) for text in each[1 : 1 + NUMBERS]] for each in fields]
        rows = [
            [
                zlib.crc32(f"{place} {text}".encode()) % ROWS
                for place, text in enumerate(each[1 + NUMBERS :])
            ]
            for each in fields
        ]
        scaled = np.log1p(np.maximum(np.array(numbers, np.float32), 0))
        yield np.array(labels, np.float32), scaled, np.array(rows, np.int64)


def model_of(table: Table) -> Any:
    """Return a model of two inputs, numbers and rows."""
    keras = tf.keras
    numbers = keras.Input((NUMBERS,))
    rows = keras.Input((CATEGORIES,), dtype="int64")
    vectors = Embedding(table)(rows)
    dense = keras.layers.Dense(DIM, "relu")(keras.layers.Dense(64, "relu")(numbers))
    all_vectors = keras.layers.Concatenate(1)([keras.layers.Reshape((1, DIM))(dense), vectors])
    products = keras.layers.Dot((2, 2))([all_vectors, all_vectors])
    joined = keras.layers.Concatenate()([dense, keras.layers.Flatten()(products)])
    hidden = keras.layers.Dense(64, "relu")(joined)
    return keras.Model([numbers, rows], keras.layers.Dense(1)(hidden))


def main() -> None:
    """Train, and print the first losses and the last ones."""
    import horovod.tensorflow as hvd

    hvd.init()
    keras = tf.keras
    keras.utils.set_random_seed(1)  # the same dense weights on all ranks
    table = Table(ROWS, DIM, optimizer=Adagrad(0.1), name="categories")
    model = model_of(table)
    optimizer = keras.optimizers.Adam(0.003)
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def step(labels: Any, numbers: Any, rows: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model([numbers, rows]))
        gradients = tape.gradient(loss, model.trainable_variables)  # updates the table
        gradients = rt.grouped_all_reduce(gradients, "average")
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return rt.all_reduce(loss, "average")

    lines = lines_of(sys.argv[1] if len(sys.argv) > 1 else None, hvd.rank(), hvd.size())
    losses = [
        float(step(*map(tf.constant, batch))) for batch in itertools.islice(batches(lines), STEPS)
    ]
    if hvd.rank() == 0:
        print(f"loss {np.mean(losses[:10]):.3f} -> {np.mean(losses[-10:]):.3f}")
    table.close()


if __name__ == "__main__":
    main()
