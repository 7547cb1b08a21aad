"""Train by fit with the usual callbacks, while processes end: FAULTS="NUMBER@BATCH:HOW ..."."""

import hashlib
import os
import signal
import time
from pathlib import Path

import numpy as np
import results

if os.environ.get("TF_USE_LEGACY_KERAS") == "1":
    import tf_keras as keras
else:
    import keras

SIZE = int(os.environ.get("WORLD_SIZE", 1))
NUMBER = os.environ.get("_RDMA_TRANSPORT_ELASTIC_MEMBER", "")  # of the process
FOLDER = Path(os.environ.get("FOLDER", "/tmp"))
SLOW_IN = os.environ.get("SLOW_IN", "train")
FAULTS = dict(each.split("@") for each in os.environ.get("FAULTS", "").split())

keras.utils.set_random_seed(3)
x = np.random.normal(size=(240, 6)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int32")
model = keras.Sequential(
    [
        keras.layers.Dense(16, "tanh"),
        keras.layers.Dense(8, "tanh"),
        keras.layers.Dense(2, "softmax"),
    ]
)
model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"])
print("before:", model.evaluate(x, y, verbose=0), flush=True)


class Faults(keras.callbacks.Callback):
    """Ends this process, and shows the weights of all."""

    lost = 0

    def slow(self, where):
        """Let others be taken in here."""
        if where == SLOW_IN and self.lost > len(list(FOLDER.glob("trains_*"))) - SIZE:
            time.sleep(0.3)

    def on_test_batch_end(self, batch, logs=None):
        self.slow("test")

    def on_train_batch_end(self, batch, logs=None):
        steps = int(model.optimizer.iterations)
        (FOLDER / f"trains_{NUMBER}").touch()
        self.lost = sum(int(each.partition(":")[0]) < steps for each in FAULTS.values())
        while self.lost > len(list(FOLDER.glob("ready_*"))) - SIZE:
            time.sleep(0.05)  # until others are there to take their place
        self.slow("train")
        bits = hashlib.sha256(b"".join(map(np.ndarray.tobytes, model.get_weights()))).hexdigest()
        print(f"{time.time():.3f} step {steps} {bits}", flush=True)
        at, _, how = FAULTS.get(NUMBER, "").partition(":")
        if at and steps >= int(at):
            print(f"{time.time():.3f} dies", flush=True)
            if how == "raises":
                raise ValueError("the cause")
            os.kill(os.getpid(), signal.SIGKILL)


(FOLDER / f"ready_{NUMBER}").touch()
history = model.fit(
    *(x, y),
    batch_size=20,
    epochs=8,
    validation_split=0.25,
    verbose=2,
    callbacks=[
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.95),
        keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(str(FOLDER / "last.weights.h5"), save_weights_only=True),
        Faults(),
    ],
)
results.save(
    model.get_weights(),
    **history.history,
    test=model.evaluate(x, y, verbose=0),
    predicted=model.predict(x, verbose=0),
)
model.save(str(FOLDER / "model.keras"))
print("done", flush=True)
