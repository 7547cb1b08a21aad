"""TensorFlow's strategies with replicas on pretend accelerators.

Both strategies count the devices of the type "GPU", and name their replicas' devices after it.
Nothing else in them depends on the type. A device of that type must not be pretended: TensorFlow's
wheel has kernels for it, which are CUDA's.
"""

from typing import Any

TYPE = "PRETEND"


def _count(where: str) -> int:
    """Return how many accelerators the task has."""
    import tensorflow as tf

    spec = tf.DeviceSpec.from_string(where)
    names = [device.name for device in tf.config.list_logical_devices(TYPE)]
    found = [tf.DeviceSpec.from_string(name) for name in names]
    return sum((each.job, each.task) == (spec.job, spec.task) for each in found)


def mirrored_strategy() -> Any:
    """Return MultiWorkerMirroredStrategy with a replica on each accelerator of each worker."""
    import tensorflow as tf
    from tensorflow.python.distribute.collective_all_reduce_strategy import (
        CollectiveAllReduceExtended,
    )

    def devices(_: Any, resolver: Any, worker: str) -> tuple[tuple[str, ...], str]:
        return tuple(f"{worker}/device:{TYPE}:{i}" for i in range(_count(worker))), TYPE

    CollectiveAllReduceExtended._initialize_local_devices = devices
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
    )


def parameter_server_strategy() -> Any:
    """Return ParameterServerStrategy with a replica on each accelerator of each worker."""
    import tensorflow as tf
    from tensorflow.python.distribute.parameter_server_strategy_v2 import (
        ParameterServerStrategyV2Extended,
    )

    def count(extended: Any) -> None:
        extended._num_gpus_per_worker = _count("/job:worker/task:0")

    def devices(extended: Any) -> tuple[str, ...]:
        return tuple(f"/device:{TYPE}:{i}" for i in range(extended._num_gpus_per_worker))

    ParameterServerStrategyV2Extended._set_num_gpus = count
    ParameterServerStrategyV2Extended.worker_devices = property(devices)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.ParameterServerStrategy(resolver)
