"""TensorFlow's MirroredStrategy over logical CPU devices, with AdamW, on made data: one step a call, or --inside of them.

Prints one JSON line. Multilayer perceptrons only.
"""
import argparse
import os

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--world", type=int, default=2)
arguments.add_argument("--model", required=True)
arguments.add_argument("--batch", type=int, required=True, help="for each replica")
arguments.add_argument("--inside", type=int, default=1, help="steps of a call")
arguments.add_argument("--xla", action="store_true", help="compile the replica's step")
arguments.add_argument("--blocks", type=int, default=15)
arguments.add_argument("--block-seconds", type=float, default=0.3)
a = arguments.parse_args()

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

import timing

tf.config.threading.set_inter_op_parallelism_threads(a.world)
tf.config.threading.set_intra_op_parallelism_threads(1)
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * a.world)
strategy = tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(a.world)])
widths = [int(w) for w in a.model.removeprefix("mlp:").split(",")]
tf.random.set_seed(0)
with strategy.scope():
    layers = [tf.keras.layers.Dense(w, activation="relu" if i + 2 < len(widths) else None) for i, w in enumerate(widths[1:])]
    model = tf.keras.Sequential([tf.keras.Input((widths[0],))] + layers)
    optimizer = tf.keras.optimizers.AdamW(1e-4, weight_decay=0.01)
    optimizer.build(model.trainable_variables)
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
x, y = tf.random.normal((a.batch, widths[0])), tf.random.uniform((a.batch,), maxval=widths[-1], dtype=tf.int32)


@tf.function(jit_compile=a.xla)
def gradients():
    with tf.GradientTape() as tape:
        value = loss(y, model(x, training=True)) / (a.batch * a.world)
    return tape.gradient(value, model.trainable_variables)


def replica_step():
    optimizer.apply_gradients(zip(gradients(), model.trainable_variables))


@tf.function
def call():
    if a.inside == 1:
        strategy.run(replica_step)
    else:
        for _ in tf.range(a.inside):
            strategy.run(replica_step)


def repeat(steps):
    for _ in range(-(-steps // a.inside)):
        call()
    model.trainable_variables[0].numpy()  # what is under way has ended


def whole_calls(steps):
    return -(-steps // a.inside) * a.inside


took = timing.measure(repeat, a.blocks, a.block_seconds, agree=whole_calls)
timing.report(ms=took, samples_per_second=a.batch * a.world / took["median"] * 1e3, peak_memory_mib=timing.peak_memory_mib(),
              version=tf.__version__)
