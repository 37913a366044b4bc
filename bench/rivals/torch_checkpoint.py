"""PyTorch's ways to save the state of an MLP with AdamW; prints one JSON line with the seconds of each round, and the peak
memory of the process in MiB.

  torch.save   one file, synced; torch.load back into the tensors
  dcp          torch.distributed.checkpoint of one process, whose files it syncs itself; with --threads of its writer
"""
import argparse
import json
import os
import resource
import shutil
import time

import torch
import torch.distributed.checkpoint as dcp

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--layers", type=int, default=4)
arguments.add_argument("--width", type=int, default=4096)
arguments.add_argument("--rounds", type=int, default=5)
arguments.add_argument("--threads", type=int, default=1)
arguments.add_argument("--directory", required=True)
a = arguments.parse_args()

state = {}
for i in range(a.layers):
    for name in ("weight", "exp_avg", "exp_avg_sq"):
        state[f"{i}.{name}"] = torch.randn(a.width, a.width)
seconds = {}


def timed(what, keep, work):
    start = time.perf_counter()
    work()
    if keep:
        seconds.setdefault(what, []).append(round(time.perf_counter() - start, 4))


def save_one_file(path):
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def load_one_file(path):
    for name, value in torch.load(path, weights_only=True).items():
        state[name].copy_(value)


for round_ in range(a.rounds + 1):
    keep = round_ > 0
    os.makedirs(a.directory, exist_ok=True)
    one = os.path.join(a.directory, "one.pt")
    timed("torch.save", keep, lambda: save_one_file(one))
    timed("torch.load", keep, lambda: load_one_file(one))
    os.remove(one)
    folder = os.path.join(a.directory, "dcp")
    writer = dcp.FileSystemWriter(folder, thread_count=a.threads, single_file_per_rank=a.threads == 1)
    timed("dcp save", keep, lambda: dcp.save(state, storage_writer=writer, no_dist=True))
    timed("dcp load", keep, lambda: dcp.load(state, storage_reader=dcp.FileSystemReader(folder), no_dist=True))
    shutil.rmtree(folder)
print(json.dumps({**seconds, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
