"""Rank 1 fails in the middle of a training, while the others wait for its gradients."""

import os
import signal
import sys

import horovod.tensorflow.keras as hvd
import keras
import numpy as np

hvd.init()


class Fails(keras.callbacks.Callback):
    """Ends rank 1 in the way that the environment names."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if hvd.rank() != 1 or batch != 2:
            return
        if os.environ["FAILS"] == "exception":
            raise ValueError("the cause")
        if os.environ["FAILS"] == "exit":
            sys.exit(3)
        os.kill(os.getpid(), signal.SIGKILL)


model = keras.Sequential([keras.Input([8]), keras.layers.Dense(1)])
model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
x = np.ones((640, 8), np.float32)
model.fit(x, x[:, :1], batch_size=32, verbose=0, callbacks=[Fails()])
