"""Policy gradients: the model acts on single observations, and learns from episodes."""

import keras
import numpy as np
import results
import tensorflow as tf

keras.utils.set_random_seed(73)
rng = np.random.default_rng(73)
policy = keras.Sequential([keras.Input((2,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(2)])
optimizer = keras.optimizers.Adam(0.01)
returns = []
for _ in range(4):
    state, states, actions, rewards = rng.normal(size=2), [], [], []
    for _ in range(7):
        chances = tf.nn.softmax(policy(state[None].astype("float32")))[0].numpy()
        action = int(rng.random() < chances[1])
        states.append(state)
        actions.append(action)
        state = 0.9 * state + rng.normal(0, 0.1, 2) + (2 * action - 1) * np.array([0.1, 0])
        rewards.append(-abs(state[0]))
    future = np.cumsum(rewards[::-1])[::-1].astype("float32")
    with tf.GradientTape() as tape:
        logits = policy(np.array(states, "float32"), training=True)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(actions, logits)
        loss = tf.reduce_mean(loss * (future - future.mean()))
    grads = tape.gradient(loss, policy.trainable_variables)
    optimizer.apply_gradients(zip(grads, policy.trainable_variables, strict=True))
    returns.append(sum(rewards))
results.save(policy.get_weights(), returns=returns)
