"""One batch at a time."""

import keras
import numpy as np
import results

keras.utils.set_random_seed(19)
x = np.random.rand(50, 6)
y = keras.utils.to_categorical(np.random.randint(0, 4, 50), 4)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "softmax")])
model.compile("rmsprop", "categorical_crossentropy", metrics=["accuracy"])
seen = []
for epoch in range(2):
    order = np.random.permutation(50)
    for i in range(0, 50, 15):
        part = order[i : i + 15]
        seen.append(model.train_on_batch(x[part], y[part]))
    print(epoch, seen[-1])
results.save(
    model.get_weights(),
    seen=seen,
    test=model.test_on_batch(x, y),
    predicted=model.predict_on_batch(x[:7]),
)
