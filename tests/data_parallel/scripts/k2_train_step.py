"""tf-keras: a training step of one's own, which uses the compiled loss and metrics."""

import numpy as np
import results
import tensorflow as tf
import tf_keras as keras


class Model(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compiled_loss(y, y_pred, regularization_losses=self.losses)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        self.compiled_metrics.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


keras.utils.set_random_seed(51)
x, y = np.random.rand(45, 4), np.random.rand(45, 1)
inputs = keras.Input((4,))
hidden = keras.layers.Dense(6, "relu", kernel_regularizer="l2")(inputs)
model = Model(inputs, keras.layers.Dense(1)(hidden))
model.compile(keras.optimizers.RMSprop(0.01), "mse", metrics=["mae"])
history = model.fit(x, y, epochs=3, batch_size=10, verbose=0)
results.save(model.get_weights(), **history.history)
