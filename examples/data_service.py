"""Reads a dataset that two other processes prepare, with tf.data service.

Starts a dispatcher and two workers, reads all elements, and prints their size, their checksum and
the time. The order of the elements of two workers varies, so the checksum does not depend on it.

usage: python -m examples.data_service [--protocol rdma|grpc] [--elements 200] [--kib 1024]
"""

import argparse
import multiprocessing as mp
import os
import time
import zlib
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

WORKERS = 2


def dispatch(pipe: Connection) -> None:
    """Run a dispatcher until the pipe closes; send its address through the pipe."""
    import tensorflow as tf

    service = tf.data.experimental.service
    server = service.DispatchServer()
    pipe.send(server.target.split("://")[1])
    wait_for_end(pipe)


def work(pipe: Connection, dispatcher: str, protocol: str) -> None:
    """Run a worker until the pipe closes."""
    import tensorflow as tf

    service = tf.data.experimental.service
    config = service.WorkerConfig(dispatcher_address=dispatcher, data_transfer_protocol=protocol)
    server = service.WorkerServer(config)
    pipe.send("ready")
    wait_for_end(pipe)
    del server


def wait_for_end(pipe: Connection) -> None:
    with suppress(EOFError):
        pipe.recv()


def start(target: Any, *arguments: Any) -> tuple[BaseProcess, Connection, Any]:
    """Start a process that runs `target`; return it, our end of its pipe and its first message."""
    context = mp.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=target, args=(its, *arguments), daemon=True)
    process.start()
    its.close()
    return process, ours, ours.recv()


def dataset(elements: int, kib: int) -> Any:
    """Return images and labels that are computed from their numbers."""
    import tensorflow as tf

    def make(number: Any) -> tuple[Any, Any]:
        shape = [kib, 1024]
        seed = tf.stack([number, number])
        image = tf.random.stateless_uniform(shape, seed, 0, 256, tf.int32)
        return tf.cast(image, tf.uint8), tf.strings.as_string(number)

    return tf.data.Dataset.range(elements).map(make, num_parallel_calls=tf.data.AUTOTUNE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Read a dataset that other processes prepare.")
    parser.add_argument("--protocol", default="rdma", help="Set the transfer protocol.")
    parser.add_argument("--elements", type=int, default=200, help="Read this many elements.")
    parser.add_argument("--kib", type=int, default=1024, help="Set the size of an element.")
    options = parser.parse_args()
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

    dispatcher = start(dispatch)
    address = dispatcher[2]
    workers = [start(work, address, options.protocol) for _ in range(WORKERS)]

    import tensorflow as tf

    service = tf.data.experimental.service
    prepared = dataset(options.elements, options.kib).apply(
        service.distribute(
            processing_mode=service.ShardingPolicy.DYNAMIC,
            service=f"grpc://{address}",
            data_transfer_protocol=options.protocol,
            compression=None,
        )
    )
    count = checksum = size = 0
    begin = time.perf_counter()
    for image, label in prepared:
        pixels = image.numpy()
        checksum = (checksum + zlib.crc32(pixels, zlib.crc32(label.numpy()))) % 2**32
        count, size = count + 1, size + pixels.nbytes
    seconds = time.perf_counter() - begin
    print(
        f"{options.protocol}: {count} elements, {size / 2**20:.0f} MiB, "
        f"checksum {checksum:08x}, {seconds:.2f} s"
    )
    for process, pipe, _ in (*workers, dispatcher):
        pipe.close()
        process.join(5)


if __name__ == "__main__":
    main()
