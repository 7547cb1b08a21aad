"""Rates that follow a schedule, are set by hand, and differ by layer."""

import keras
import numpy as np
import results

keras.utils.set_random_seed(78)
x, y = np.random.rand(50, 4), np.random.rand(50, 1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
schedule = keras.optimizers.schedules.CosineDecay(0.1, 20, warmup_target=0.2, warmup_steps=3)
model.compile(keras.optimizers.SGD(schedule, momentum=0.9), "mse")
first = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
model.compile(keras.optimizers.Lion(0.01, weight_decay=0.01), "mse")
model.optimizer.exclude_from_weight_decay(var_names=["bias"])
rate = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch))
second = model.fit(x, y, batch_size=16, epochs=3, callbacks=[rate], verbose=0)
model.optimizer.learning_rate = 1e-3
third = model.fit(x, y, batch_size=16, epochs=5, initial_epoch=3, verbose=0)
losses = [h.history["loss"][-1] for h in (first, second, third)]
results.save(model.get_weights(), losses=losses)
