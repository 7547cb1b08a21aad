"""What programs written for Horovod do with elastic states, in a job of one rank."""

import os

SLOT, SLOTS = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])

import horovod.tensorflow.keras as hvd  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

keras = tf.keras
hvd.init()
assert (hvd.local_rank(), hvd.local_size()) == (SLOT, SLOTS)


class Own(hvd.elastic.State):
    """A state of the program's own."""

    def __init__(self) -> None:
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)

    def save(self) -> None:
        """Nothing is kept."""

    restore = sync = save


def made() -> keras.Model:
    return keras.Sequential([keras.Input([3]), keras.layers.Dense(1, use_bias=False)])


def test_passes_before_a_change_are_forgotten() -> None:
    weight = tf.Variable([8.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    begun = []

    @hvd.elastic.run
    def train(_state: hvd.elastic.State) -> None:
        begun.append(1)
        optimizer.apply_gradients([(tf.constant([1.0]), weight)])
        if len(begun) == 1:
            raise hvd.elastic.HostsUpdatedInterrupt
        optimizer.apply_gradients([(tf.constant([1.0]), weight)])

    train(Own())
    assert weight.numpy() == [6.0], "the sum of two passes, not of three"


def test_a_model_is_compiled_after_its_state_is_made() -> None:
    model = made()
    state = hvd.elastic.KerasState(model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    ones = np.ones([4, 3], np.float32)
    model.fit(ones, ones[:, :1], verbose=0)
    state.save()
    saved = [np.array(each) for each in model.get_weights()]
    model.fit(ones, ones[:, :1], verbose=0)
    state.restore()
    assert int(model.optimizer.iterations) == 1
    np.testing.assert_array_equal(saved[0], model.get_weights()[0])


def test_of_an_epoch_something_is_left() -> None:
    """Keras takes no steps as if they were not given."""
    model = made()
    model.compile("sgd", "mse")
    state = hvd.elastic.KerasState(model, batch=0)
    left = []

    class Watch(keras.callbacks.Callback):
        """Notes what a rank would do that begins here."""

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            left.append(5 - state.batch)

    ones = np.ones([10, 3], np.float32)
    callbacks = [hvd.elastic.UpdateBatchStateCallback(state), Watch()]
    model.fit(ones, ones[:, :1], batch_size=2, callbacks=callbacks, verbose=0)
    assert left == [4, 3, 2, 1, 1]
    assert state.batch == 0


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
print("done", flush=True)
