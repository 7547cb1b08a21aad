"""tf-keras: fit on arrays and on a dataset, with a validation set."""

import numpy as np
import results
import tensorflow as tf
import tf_keras as keras

keras.utils.set_random_seed(49)
x = np.random.rand(70, 5).astype("float32")
y = (x.sum(1) > 2.5).astype("int32")
model = keras.Sequential(
    [
        keras.layers.Dense(8, activation="relu", input_shape=(5,)),
        keras.layers.Dense(2, activation="softmax", kernel_regularizer="l2"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
first = model.fit(x, y, batch_size=16, epochs=2, validation_split=0.2, verbose=0)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(70, seed=2).repeat().batch(12)
second = model.fit(dataset, epochs=2, steps_per_epoch=4, class_weight={0: 1.0, 1: 3.0}, verbose=0)
results.save(
    model.get_weights(),
    **first.history,
    second=second.history["loss"],
    test=model.evaluate(x, y, verbose=0),
    predicted=model.predict(x, verbose=0),
)
