"""An epoch of records or images by tf.data, read ahead by some threads. Prints one JSON line."""
import argparse
import os

import input_data
import timing

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--gather", action="store_true", help="of batches: shuffle numbers, and take the rows of a batch at once")
a = input_data.arguments(parser)

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

tf.config.threading.set_inter_op_parallelism_threads(a.threads)
tf.config.threading.set_intra_op_parallelism_threads(1)
SIDE = input_data.SIDE


def as_numbers(pixels, target):
    return (tf.cast(pixels, tf.float32) / 255 - input_data.MEAN) / input_data.DEVIATION, target


def window(path, target):
    file = tf.io.read_file(path)
    size = tf.io.extract_jpeg_shape(file)
    crop = tf.stack([(size[0] - SIDE) // 2, (size[1] - SIDE) // 2, SIDE, SIDE])
    rows = tf.image.decode_and_crop_jpeg(file, crop, channels=3, dct_method="INTEGER_ACCURATE")
    return tf.transpose(rows, [2, 0, 1]), target


def batches():
    parallel = {"num_parallel_calls": a.threads}
    if a.work == "images":
        dataset = tf.data.Dataset.from_tensor_slices(input_data.files(a.dump)).shuffle(input_data.FILES).map(window, **parallel).batch(a.batch)
    elif a.gather:
        images, targets = (tf.constant(array) for array in input_data.records())
        dataset = tf.data.Dataset.range(input_data.RECORDS).shuffle(input_data.RECORDS).batch(a.batch)
        dataset = dataset.map(lambda rows: as_numbers(tf.gather(images, rows), tf.gather(targets, rows)), **parallel)
    else:
        dataset = tf.data.Dataset.from_tensor_slices(input_data.records()).shuffle(input_data.RECORDS)
        if a.work == "samples":
            dataset = dataset.map(as_numbers, **parallel).batch(a.batch)
        else:
            dataset = dataset.batch(a.batch, **parallel).map(as_numbers, **parallel)
    options = tf.data.Options()
    options.threading.private_threadpool_size = a.threads
    options.threading.max_intra_op_parallelism = 1
    for inputs, targets in dataset.repeat().prefetch(2 * a.ahead).with_options(options):
        yield len(inputs), int(targets.numpy().sum())


epochs = input_data.Epochs(batches(), a.work == "images")
ms = timing.measure(epochs.read, a.blocks, a.block_seconds)
timing.report(ms=ms, samples_per_second=1e3 * epochs.count / ms["median"], peak_memory_mib=timing.peak_memory_mib(), version=tf.__version__)
