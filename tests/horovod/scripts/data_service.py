"""Two ranks get what the ranks of another job compute for them: Horovod's compute service."""

import os
from typing import Any

import horovod.tensorflow as hvd
import pytest
import tensorflow as tf
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
config = TfDataServiceConfig.read(os.environ["SERVICE"], wait_for_file_creation=True)
squares = tf.data.Dataset.range(100).map(lambda x: x * x).batch(7)
EXPECTED = [x * x for x in range(100)]


def numbers_of(dataset: Any) -> list[int]:
    return sorted(int(x) for batch in dataset for x in batch)


if config.dispatcher_side == "compute":
    # Each rank gets all of it; and its part, if they share one.
    assert numbers_of(squares.send_to_data_service(config, RANK, SIZE)) == EXPECTED
    shared = squares.send_to_data_service(config, RANK, SIZE, reuse_dataset=True)
    every = hvd.allgather_object(numbers_of(shared))
    assert sorted(x for part in every for x in part) == EXPECTED
    with pytest.raises(ValueError, match="size"):
        squares.send_to_data_service(config, RANK, round_robin=True)
else:
    with pytest.raises(RuntimeError, match="training side"):
        squares.send_to_data_service(config, RANK, SIZE)
    with tf_data_service(config, RANK) as address:
        distribute = tf.data.experimental.service.distribute("distributed_epoch", address)
        assert numbers_of(squares.apply(distribute)) == EXPECTED
        hvd.barrier()  # the other ranks may still use the dispatcher of this one
hvd.barrier()
if RANK == 0:
    config.compute_client().shutdown()
print("done")
