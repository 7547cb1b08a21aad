"""A GAN as a model with a training step of its own, which fit calls."""

import keras
import numpy as np
import results
import tensorflow as tf
from keras import layers


class GAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, real):
        size = tf.shape(real)[0]
        noise = keras.random.normal((size, self.latent_dim), seed=self.seed_generator)
        fake = self.generator(noise)
        both = tf.concat([fake, real], axis=0)
        labels = tf.concat([tf.ones((size, 1)), tf.zeros((size, 1))], axis=0)
        labels += 0.05 * tf.random.uniform(tf.shape(labels))
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(
            zip(grads, self.discriminator.trainable_weights, strict=True)
        )
        noise = keras.random.normal((size, self.latent_dim), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            predictions = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(tf.zeros((size, 1)), predictions)
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights, strict=True))
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


keras.utils.set_random_seed(26)
discriminator = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(1)])
generator = keras.Sequential([keras.Input((3,)), layers.Dense(8, "relu"), layers.Dense(6)])
gan = GAN(discriminator, generator, 3)
gan.compile(
    d_optimizer=keras.optimizers.Adam(3e-4),
    g_optimizer=keras.optimizers.Adam(3e-4),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
data = np.random.randn(44, 6).astype("float32")
history = gan.fit(data, batch_size=12, epochs=2, verbose=0)
results.save(discriminator.get_weights() + generator.get_weights(), **history.history)
