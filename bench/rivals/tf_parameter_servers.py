"""TensorFlow's ParameterServerStrategy with a ClusterCoordinator: steps a second of the same models as
bench/parameter_servers.cpp. It starts its workers and its server as processes of this machine, and is the chief.

Prints one JSON line. Variables are updated by TensorFlow's own Adagrad kernels where they lie, as its optimizers do:
Keras 3 has no optimizer for this strategy.
"""
import argparse
import json
import os
import socket
import subprocess
import sys

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("work", choices=["empty", "dense", "recommender"])
arguments.add_argument("--workers", type=int, default=2)
arguments.add_argument("--widths", default="784,1024,1024,10")
arguments.add_argument("--batch", type=int, default=32)
arguments.add_argument("--table-rows", type=int, default=1_000_000)
arguments.add_argument("--inside", type=int, default=1, help="steps of a scheduled function")
arguments.add_argument("--threads", type=int, default=0, help="of an operator, in each process; 0: TensorFlow's choice")
arguments.add_argument("--blocks", type=int, default=15)
arguments.add_argument("--block-seconds", type=float, default=0.3)
arguments.add_argument("--task", help=argparse.SUPPRESS)  # of a process that this one has started
a = arguments.parse_args()

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

import timing

if a.threads:
    tf.config.threading.set_intra_op_parallelism_threads(a.threads)
tf.config.threading.set_inter_op_parallelism_threads(max(4, a.workers + 1))  # fewer may not be enough for a server

if a.task:
    cluster, job, index = json.loads(a.task)
    server = tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index, protocol="grpc")
    sys.stdin.read()  # until the chief has ended
    os._exit(0)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


addresses = [f"127.0.0.1:{port}" for port in free_ports(a.workers + 2)]
cluster = {"chief": addresses[:1], "ps": addresses[1:2], "worker": addresses[2:]}
tasks = [subprocess.Popen([sys.executable, *sys.argv, "--task", json.dumps([cluster, job, index])], stdin=subprocess.PIPE,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
         for job in ("ps", "worker") for index in range(len(cluster[job]))]

os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc"))
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
RATE, EPSILON, DIM = 0.01, 1e-10, 32


def variable(value):
    """With its Adagrad slot, beside it on the server."""
    with strategy.scope():
        one = tf.Variable(value)
        with strategy.extended.colocate_vars_with(one):
            return one, tf.Variable(tf.zeros_like(value), trainable=False)


def update(pair, gradient):
    one, slot = pair
    if isinstance(gradient, tf.IndexedSlices):  # repeated rows are added first, as TensorFlow's optimizers do
        ids, places = tf.unique(gradient.indices)
        rows = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(ids))
        tf.raw_ops.ResourceSparseApplyAdagradV2(var=one.handle, accum=slot.handle, lr=RATE, epsilon=EPSILON, grad=rows, indices=ids)
    else:
        tf.raw_ops.ResourceApplyAdagradV2(var=one.handle, accum=slot.handle, lr=RATE, epsilon=EPSILON, grad=gradient)


def layer(inputs, outputs):
    bound = inputs ** -0.5
    return [variable(tf.random.uniform(shape, -bound, bound)) for shape in ((inputs, outputs), (outputs,))]


def dense():
    widths = [int(w) for w in a.widths.split(",")]
    variables = [one for shape in zip(widths, widths[1:]) for one in layer(*shape)]
    rng = __import__("numpy").random.default_rng(0)
    x, y = rng.normal(size=(a.batch, widths[0])).astype("float32"), rng.integers(widths[-1], size=(a.batch,))

    def loss():
        h = tf.constant(x)
        for i in range(0, len(variables), 2):
            h = tf.matmul(h, variables[i][0]) + variables[i + 1][0]
            h = tf.nn.relu(h) if i + 2 < len(variables) else h
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.constant(y), logits=h))

    return variables, loss


def recommender():
    tables = [variable(tf.random.uniform((a.table_rows, DIM), -0.05, 0.05)) for _ in range(2)]
    layers = layer(2 * DIM, 64) + layer(64, 1)

    def loss():
        ids = [tf.random.uniform((a.batch,), maxval=a.table_rows, dtype=tf.int64) for _ in tables]
        labels = tf.round(tf.random.uniform((a.batch, 1)))
        rows = tf.concat([tf.nn.embedding_lookup(table[0], one) for table, one in zip(tables, ids)], 1)
        h = tf.nn.relu(tf.matmul(rows, layers[0][0]) + layers[1][0])
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=tf.matmul(h, layers[2][0]) + layers[3][0]))

    return tables + layers, loss


@tf.function
def train():
    if a.work == "empty":
        return tf.constant(0.0)
    value = tf.constant(0.0)
    for _ in range(a.inside):
        with tf.GradientTape() as tape:
            tape.watch([one for one, _ in variables])
            value = loss()
        for pair, gradient in zip(variables, tape.gradient(value, [one for one, _ in variables])):
            update(pair, gradient)
    return value


def repeat(steps):
    for _ in range(-(-steps // a.inside)):
        coordinator.schedule(train)
    coordinator.join()


if a.work != "empty":
    variables, loss = dense() if a.work == "dense" else recommender()
took = timing.measure(repeat, a.blocks, a.block_seconds, agree=lambda steps: -(-steps // a.inside) * a.inside)
timing.report(ms=took, samples_per_second=1e3 / took["median"], peak_memory_mib=0, version=tf.__version__)
sys.stdout.flush()
for task in tasks:
    task.kill()
    task.wait()
os._exit(0)  # without the coordinator's threads, which would report lost tasks
