"""JAX without replicas: one process, the whole batch in one compiled step with AdamW, on made data; --inside steps a call.

Prints one JSON line. Multilayer perceptrons only.
"""
import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

import timing

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--world", type=int, default=2)
arguments.add_argument("--model", required=True)
arguments.add_argument("--batch", type=int, required=True, help="for each replica; JAX gets WORLD times as much")
arguments.add_argument("--inside", type=int, default=1, help="steps of a call")
arguments.add_argument("--blocks", type=int, default=15)
arguments.add_argument("--block-seconds", type=float, default=0.3)
a = arguments.parse_args()

widths, batch = [int(w) for w in a.model.removeprefix("mlp:").split(",")], a.batch * a.world
random = np.random.default_rng(0)
x = jnp.asarray(random.standard_normal((batch, widths[0])), jnp.float32)
y = jnp.asarray(random.integers(0, widths[-1], batch))
optimizer = optax.adamw(1e-4, weight_decay=0.01)


def fresh():
    keys = jax.random.split(jax.random.PRNGKey(0), len(widths))
    parameters = [(jax.random.normal(k, (i, o)) / i**0.5, jnp.zeros(o)) for k, i, o in zip(keys, widths, widths[1:])]
    return parameters, optimizer.init(parameters)


def loss(parameters):
    h = x
    for i, (w, b) in enumerate(parameters):
        h = h @ w + b
        h = jax.nn.relu(h) if i + 1 < len(parameters) else h
    return optax.softmax_cross_entropy_with_integer_labels(h, y).mean()


def step(parameters, slots):
    updates, slots = optimizer.update(jax.grad(loss)(parameters), slots, parameters)
    return optax.apply_updates(parameters, updates), slots


def steps(parameters, slots):
    if a.inside == 1:
        return step(parameters, slots)
    return jax.lax.fori_loop(0, a.inside, lambda _, state: step(*state), (parameters, slots))


call = jax.jit(steps, donate_argnums=(0, 1))
state = fresh()


def repeat(count):
    global state
    for _ in range(-(-count // a.inside)):
        state = call(*state)
    jax.block_until_ready(state)


def whole_calls(count):
    return -(-count // a.inside) * a.inside


took = timing.measure(repeat, a.blocks, a.block_seconds, agree=whole_calls)
timing.report(ms=took, samples_per_second=batch / took["median"] * 1e3, peak_memory_mib=timing.peak_memory_mib(), version=jax.__version__)
