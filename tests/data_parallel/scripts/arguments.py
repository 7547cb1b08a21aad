"""A program with options, a main function, a folder of its own and one thread."""

import argparse
import logging
import os
import tempfile

import numpy as np
import results
import tensorflow as tf

os.environ["CUDA_VISIBLE_DEVICES"] = ""
tf.config.threading.set_inter_op_parallelism_threads(2)
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.set_visible_devices([], "GPU")
tf.config.set_soft_device_placement(True)
tf.get_logger().setLevel("ERROR")
logging.basicConfig(level=logging.INFO)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--units", nargs="+", type=int, default=[6, 4])
    return parser.parse_args()


def main():
    args = parse()
    tf.keras.utils.set_random_seed(88)
    os.chdir(tempfile.mkdtemp())
    x = np.random.rand(50, 3)
    np.savetxt("data.csv", x)
    y = np.loadtxt("data.csv").max(1)
    layers = [tf.keras.layers.Dense(n, activation="relu") for n in args.units]
    model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
    history = model.fit(x, y, batch_size=args.batch_size, epochs=args.epochs)
    model.save("model.keras")
    logging.info("saved in %s", os.getcwd())
    results.save(model.get_weights(), **history.history)


if __name__ == "__main__":
    main()
