"""Two inputs and two outputs by name, with weights of the losses."""

import keras
import numpy as np
import results
from keras import layers

keras.utils.set_random_seed(2)
rng = np.random.default_rng(0)
data = {"title": rng.integers(0, 20, (61, 5)), "numbers": rng.random((61, 3), "float32")}
targets = {
    "priority": data["numbers"].sum(1, keepdims=True),
    "department": rng.integers(0, 4, (61,)),
}

title = keras.Input((5,), dtype="int32", name="title")
numbers = keras.Input((3,), name="numbers")
words = layers.GlobalAveragePooling1D()(layers.Embedding(20, 8)(title))
both = layers.concatenate([words, layers.Dense(4, "relu")(numbers)])
priority = layers.Dense(1, name="priority")(both)
department = layers.Dense(4, name="department")(both)
model = keras.Model([title, numbers], {"priority": priority, "department": department})
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-2),
    loss={
        "priority": "mse",
        "department": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    metrics={"department": ["accuracy"]},
)
history = model.fit(data, targets, epochs=2, batch_size=16, verbose=2)
out = model.predict(data, verbose=0)
results.save(model.get_weights(), **history.history, **out)
