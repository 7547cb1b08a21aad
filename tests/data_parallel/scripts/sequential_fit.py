"""Classify points in the plane: fit, evaluate and predict on NumPy arrays."""

import keras
import numpy as np
import results

keras.utils.set_random_seed(1)
x = np.random.normal(size=(100, 2)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int32")

model = keras.Sequential(
    [
        keras.Input((2,)),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.Dense(2, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.summary()
history = model.fit(x, y, batch_size=32, epochs=3, validation_split=0.2)
loss, accuracy = model.evaluate(x, y, verbose=0)
predictions = model.predict(x, verbose=0)
print(f"accuracy: {accuracy:.2f}")
results.save(
    model.get_weights(), **history.history, final=[loss, accuracy], predictions=predictions
)
