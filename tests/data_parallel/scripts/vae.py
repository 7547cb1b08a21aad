"""A variational autoencoder: the encoder samples."""

import keras
import numpy as np
import results
import tensorflow as tf
from keras import layers, ops


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_variance) * noise


class VAE(keras.Model):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.total = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.total]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_variance, z = self.encoder(data)
            rebuilt = self.decoder(z)
            error = ops.mean(ops.sum((data - rebuilt) ** 2, axis=1))
            divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            loss = error + ops.mean(ops.sum(divergence, axis=1))
        grads = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.total.update_state(loss)
        return {"loss": self.total.result()}


keras.utils.set_random_seed(28)
inputs = keras.Input((10,))
hidden = layers.Dense(8, "relu")(inputs)
mean, log_variance = layers.Dense(2)(hidden), layers.Dense(2)(hidden)
encoder = keras.Model(inputs, [mean, log_variance, Sampling()([mean, log_variance])])
decoder = keras.Sequential([keras.Input((2,)), layers.Dense(8, "relu"), layers.Dense(10)])
vae = VAE(encoder, decoder)
vae.compile(keras.optimizers.Adam(0.01))
x = np.random.rand(300, 10).astype("float32")
history = vae.fit(x, epochs=8, batch_size=50, verbose=0)
results.save(vae.get_weights(), metric=history.history["loss"][-1])
