"""tf-keras: batch normalization and dropout."""

import numpy as np
import results
import tf_keras as keras

keras.utils.set_random_seed(55)
x = np.random.randn(320, 6).astype("float32")
y = (x[:, 0] > x[:, 1]).astype("float32")
model = keras.Sequential(
    [
        keras.layers.Dense(16, input_shape=(6,)),
        keras.layers.BatchNormalization(momentum=0.8),
        keras.layers.ReLU(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
history = model.fit(x, y, batch_size=40, epochs=5, verbose=0)
results.save(
    model.get_weights(), metric=model.evaluate(x, y, verbose=0), trained=history.history["loss"][-1]
)
