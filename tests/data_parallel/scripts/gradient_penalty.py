"""Wasserstein GAN with a penalty of the critic's gradient: a gradient of a gradient."""

import keras
import results
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(29)
real_data = tf.random.stateless_normal((32, 3), [1, 1]) + 2.0
critic = keras.Sequential([keras.Input((3,)), layers.Dense(8, "tanh"), layers.Dense(1)])
generator = keras.Sequential([keras.Input((4,)), layers.Dense(8, "tanh"), layers.Dense(3)])
c_optimizer = keras.optimizers.Adam(1e-3, beta_1=0.5)
g_optimizer = keras.optimizers.Adam(1e-3, beta_1=0.5)


def gradient_penalty(real, fake):
    alpha = tf.random.uniform((tf.shape(real)[0], 1))
    mixed = real + alpha * (fake - real)
    with tf.GradientTape() as tape:
        tape.watch(mixed)
        prediction = critic(mixed, training=True)
    gradients = tape.gradient(prediction, mixed)
    norm = tf.sqrt(tf.reduce_sum(tf.square(gradients), axis=1))
    return tf.reduce_mean((norm - 1.0) ** 2)


@tf.function
def train_step(real):
    noise = tf.random.normal((tf.shape(real)[0], 4))
    with tf.GradientTape() as tape:
        fake = generator(noise, training=True)
        cost = tf.reduce_mean(critic(fake)) - tf.reduce_mean(critic(real))
        loss = cost + 10.0 * gradient_penalty(real, fake)
    grads = tape.gradient(loss, critic.trainable_variables)
    c_optimizer.apply_gradients(zip(grads, critic.trainable_variables, strict=True))
    with tf.GradientTape() as tape:
        g_loss = -tf.reduce_mean(critic(generator(noise, training=True)))
    grads = tape.gradient(g_loss, generator.trainable_variables)
    g_optimizer.apply_gradients(zip(grads, generator.trainable_variables, strict=True))
    return loss


losses = [float(train_step(real_data[i : i + 9])) for _ in range(2) for i in range(0, 32, 9)]
results.save(critic.get_weights() + generator.get_weights(), losses=losses)
