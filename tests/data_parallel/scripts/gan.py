"""A GAN in the way of the DCGAN tutorial: two tapes, two optimizers, noise of each step."""

import results
import tensorflow as tf
from tensorflow.keras import layers

tf.keras.utils.set_random_seed(25)
real = tf.random.stateless_normal((48, 2), [3, 4]) * [1.0, 0.3] + [0.5, -1.0]
dataset = tf.data.Dataset.from_tensor_slices(real).shuffle(48, seed=5).batch(10)
generator = tf.keras.Sequential([layers.Dense(8), layers.LeakyReLU(), layers.Dense(2)])
discriminator = tf.keras.Sequential([layers.Dense(8), layers.LeakyReLU(), layers.Dense(1)])
cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True)
generator_optimizer = tf.keras.optimizers.Adam(1e-3)
discriminator_optimizer = tf.keras.optimizers.Adam(1e-3)


@tf.function
def train_step(images):
    noise = tf.random.normal([10, 5])
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        generated = generator(noise, training=True)
        real_output = discriminator(images, training=True)
        fake_output = discriminator(generated, training=True)
        gen_loss = cross_entropy(tf.ones_like(fake_output), fake_output)
        disc_loss = cross_entropy(tf.ones_like(real_output), real_output)
        disc_loss += cross_entropy(tf.zeros_like(fake_output), fake_output)
    gradients = gen_tape.gradient(gen_loss, generator.trainable_variables)
    generator_optimizer.apply_gradients(zip(gradients, generator.trainable_variables, strict=True))
    gradients = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
    discriminator_optimizer.apply_gradients(
        zip(gradients, discriminator.trainable_variables, strict=True)
    )
    return gen_loss, disc_loss


losses = [[float(loss) for loss in train_step(batch)] for _ in range(3) for batch in dataset]
sample = generator(tf.ones((4, 5)), training=False)
results.save(generator.get_weights() + discriminator.get_weights(), losses=losses, sample=sample)
