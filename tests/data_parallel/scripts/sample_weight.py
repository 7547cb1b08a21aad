"""Weights of examples, of which some are zero, and of steps in time."""

import keras
import numpy as np
import results

keras.utils.set_random_seed(7)
rng = np.random.default_rng(7)
x = rng.normal(size=(40, 6, 3)).astype("float32")
y = x.sum(-1, keepdims=True)
by_example = (rng.random((40, 1)) > 0.6).astype("float32")
by_step = rng.random((40, 6)).astype("float32")


def make():
    model = keras.Sequential(
        [keras.Input((6, 3)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse", weighted_metrics=["mae"])
    return model


one, two = make(), make()
a = one.fit(x, y, sample_weight=by_example, batch_size=9, epochs=2, verbose=0).history
b = two.fit(x, y, sample_weight=by_step, batch_size=9, epochs=2, verbose=0).history
final = one.evaluate(x, y, sample_weight=by_example, batch_size=7, verbose=0)
results.save(one.get_weights() + two.get_weights(), a=a["loss"], b=b["mae"], final=final)
