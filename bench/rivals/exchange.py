"""Reads what `lockstep bench train --dump DIR` wrote, and compares a rival's tensors with it."""
import json
import os

import torch

DTYPES = {"Float": torch.float32, "Long": torch.int64}


def read(folder, stem):
    """A list of (name, tensor)."""
    with open(os.path.join(folder, stem + ".json")) as file:
        entries = json.load(file)
    with open(os.path.join(folder, stem + ".bin"), "rb") as file:
        data = bytearray(file.read())
    tensors = []
    for entry in entries:
        count = 1
        for size in entry["shape"]:
            count *= size
        flat = torch.frombuffer(data, dtype=DTYPES[entry["dtype"]], count=count, offset=entry["offset"])
        tensors.append((entry["name"], flat.view(entry["shape"]).clone()))
    return tensors


def load_weights(model, folder):
    """Gives a model the dumped initial weights, in order."""
    weights = read(folder, "weights")
    parameters = list(model.parameters())
    shapes = [tuple(t.shape) for _, t in weights]
    if shapes != [tuple(p.shape) for p in parameters]:
        raise SystemExit(f"the models differ: {shapes} against {[tuple(p.shape) for p in parameters]}")
    with torch.no_grad():
        for parameter, (_, value) in zip(parameters, weights):
            parameter.copy_(value)


def gradient_error(model, folder):
    """The largest relative distance of a tensor's gradient to the dumped one."""
    worst = 0.0
    for parameter, (_, value) in zip(model.parameters(), read(folder, "gradients")):
        distance = (parameter.grad.double() - value.double()).norm().item()
        size = value.double().norm().item()
        worst = max(worst, distance / size if size > 0 else (0.0 if distance == 0 else float("inf")))
    return worst


def weight_error(model, folder, steps=20):
    """The distance of all weights to the dumped ones, as a share of the way that they went since the start."""
    distance = way = 0.0
    start, end = read(folder, "weights"), read(folder, f"weights{steps}")
    for parameter, (_, first), (_, last) in zip(model.parameters(), start, end):
        distance += (parameter.detach().double() - last.double()).norm().item() ** 2
        way += (last.double() - first.double()).norm().item() ** 2
    return (distance / way) ** 0.5
