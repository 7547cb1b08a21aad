"""tf.data: shuffled, repeated, with steps per epoch, and a validation set whose last batch is
smaller."""

import results
import tensorflow as tf

keras = tf.keras
keras.utils.set_random_seed(4)
features = tf.random.normal((70, 6), seed=1)
labels = tf.cast(tf.reduce_sum(features, 1) > 0, tf.float32)[:, None]
everything = tf.data.Dataset.from_tensor_slices((features, labels))
# Every fifth example is for validation.
valid = everything.shard(5, 0).batch(4)
train = everything.enumerate().filter(lambda i, _: i % 5 != 0).map(lambda _, pair: pair)
train = train.shuffle(100, seed=7).repeat().batch(12).prefetch(tf.data.AUTOTUNE)

model = keras.Sequential(
    [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, activation="sigmoid")]
)
model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(), "accuracy"])
history = model.fit(train, epochs=3, steps_per_epoch=4, validation_data=valid, validation_steps=3)
results.save(
    [*model.get_weights()],
    loss=history.history["loss"],
    val_loss=history.history["val_loss"],
    accuracy=history.history["accuracy"],
    test=model.evaluate(valid, verbose=0),
)
