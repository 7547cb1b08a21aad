"""tf-keras: float16 with a loss scale in fit."""

import numpy as np
import results
import tf_keras as keras

keras.utils.set_random_seed(54)
keras.mixed_precision.set_global_policy("mixed_float16")
x, y = np.random.rand(48, 6).astype("float32"), np.random.rand(48, 1).astype("float32")
model = keras.Sequential(
    [keras.layers.Dense(8, "relu", input_shape=(6,)), keras.layers.Dense(1, dtype="float32")]
)
model.compile(keras.optimizers.SGD(0.05), "mse")
history = model.fit(x, y, batch_size=12, epochs=3, verbose=0)
results.save(model.get_weights(), **history.history)
