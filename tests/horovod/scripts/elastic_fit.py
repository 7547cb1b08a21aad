"""`fit()` in an elastic job, with Keras 3 and tf-keras. The process with number 1 is killed."""

import hashlib
import os
import signal
import time

SIZE = int(os.environ["WORLD_SIZE"])
DIES = os.environ["_RDMA_TRANSPORT_ELASTIC_MEMBER"] == "1"
EPOCHS, STEPS = 4, 6

import horovod.tensorflow.keras as hvd  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

keras = tf.keras
hvd.init()
keras.utils.set_random_seed(hvd.rank())
model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4), keras.layers.Dense(1)])
RATE = 0.01
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(RATE * hvd.size())), "mse")
state = hvd.elastic.KerasState(model, batch=0, epoch=0)


class Watch(keras.callbacks.Callback):
    """Ends one process, and the training once another has taken its place."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        time.sleep(0.02)
        if DIES and state.epoch == 1 and batch == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        bits = b"".join(map(np.ndarray.tobytes, model.get_weights()))
        print(f"{state.epoch}: step {hvd.size()} {hashlib.sha256(bits).hexdigest()}", flush=True)
        if state.epoch >= EPOCHS and hvd.size() == SIZE:
            model.stop_training = True


def resets() -> None:
    model.optimizer.learning_rate.assign(RATE * hvd.size())


state.register_reset_callbacks([resets])
callbacks = [
    hvd.elastic.UpdateBatchStateCallback(state),
    hvd.elastic.UpdateEpochStateCallback(state),
    Watch(),
    hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
]


@hvd.elastic.run
def train(state: hvd.elastic.KerasState) -> None:
    print(f"begins {hvd.rank()}/{hvd.size()} in epoch {state.epoch}", flush=True)
    random = np.random.default_rng(hvd.rank())
    x = random.normal(size=(STEPS * 4, 8)).astype(np.float32)
    model.fit(
        *(x, x.sum(1)),
        batch_size=4,
        epochs=1000 - state.epoch,
        callbacks=callbacks,
        verbose=0,
    )


train(state)
assert int(model.optimizer.iterations) >= EPOCHS * STEPS
np.testing.assert_allclose(float(tf.convert_to_tensor(model.optimizer.learning_rate)), RATE * SIZE)
print("done", flush=True)
