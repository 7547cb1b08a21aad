"""Processes load the examples: those of a Pool, of spawn, and of a PyDataset."""

import multiprocessing

import numpy as np
import results


def load(i):
    rng = np.random.default_rng(i)
    x = rng.random((10, 4)).astype("float32")
    return x, x.sum(1)


def main():
    import keras

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return load(i)

    keras.utils.set_random_seed(87)
    with multiprocessing.Pool(2) as pool:
        parts = pool.map(load, range(4))
    x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    first = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        parts = pool.map(load, range(4, 6))
    for x, y in parts:
        model.train_on_batch(x, y)
    dataset = Batches(workers=2, use_multiprocessing=True)
    second = model.fit(dataset, epochs=2, shuffle=False, verbose=0)
    results.save(model.get_weights(), a=first.history["loss"], b=second.history["loss"])


if __name__ == "__main__":
    main()
