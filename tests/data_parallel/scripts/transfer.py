"""Train a head on a frozen base, then all of it slowly."""

import keras
import numpy as np
import results

keras.utils.set_random_seed(27)
x = np.random.rand(40, 12, 12, 3).astype("float32")
y = np.random.randint(0, 2, 40)
base = keras.Sequential(
    [
        keras.Input((12, 12, 3)),
        keras.layers.Conv2D(4, 3, strides=2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
    ],
    name="base",
)
base.trainable = False
before = [w.copy() for w in base.get_weights()]
inputs = keras.Input((12, 12, 3))
features = base(keras.layers.Rescaling(2.0, offset=-1)(inputs), training=False)
model = keras.Model(inputs, keras.layers.Dense(1)(features))
loss = keras.losses.BinaryCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss, metrics=[keras.metrics.BinaryAccuracy()])
head = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
assert all(np.array_equal(a, b) for a, b in zip(before, base.get_weights(), strict=True))
base.trainable = True
base.layers[0].trainable = True
model.compile(keras.optimizers.Adam(1e-4), loss)
tuned = model.fit(x, y, batch_size=16, epochs=1, verbose=0)
results.save(model.get_weights(), head=head.history["loss"], tuned=tuned.history["loss"])
