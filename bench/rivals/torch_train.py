"""PyTorch as a rival, with AdamW; prints one JSON line.

  ddp    one pinned process for each rank over Gloo, tuned: bucket views, static graph, the fused optimizer
  solo   the same without DDP: pinned, an optimizer of its own, no synchronisation; as many at once as there are lanes
         are the sum that replicas are held against
  one    no replicas: one process, WORLD intra-op threads, WORLD times the batch

With --dump it begins with the weights and on the data of `lockstep bench train --dump`, and says how far its first
gradients and its weights after 20 steps are from those.
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F

import exchange
import models
import timing

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("mode", choices=["ddp", "solo", "one"])
arguments.add_argument("--rank", type=int, default=0)
arguments.add_argument("--world", type=int, default=2)
arguments.add_argument("--model", required=True)
arguments.add_argument("--batch", type=int, required=True, help="for each rank")
arguments.add_argument("--address", default="127.0.0.1", help="of rank 0")
arguments.add_argument("--port", type=int, default=29533)
arguments.add_argument("--bucket-mb", type=int, default=25)
arguments.add_argument("--blocks", type=int, default=15)
arguments.add_argument("--block-seconds", type=float, default=0.3)
arguments.add_argument("--dump", help="a folder that Lockstep wrote")
a = arguments.parse_args()

if a.mode == "one":
    torch.set_num_threads(a.world)
else:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[a.rank % len(os.sched_getaffinity(0))]})
    torch.set_num_threads(1)
torch.set_flush_denormal(True)  # as Lockstep does
torch.manual_seed(0)
model = models.make(a.model)
if a.dump:
    exchange.load_weights(model, a.dump)
    ranks = range(a.world) if a.mode == "one" else [a.rank]
    parts = [dict(exchange.read(a.dump, f"batch{rank}")) for rank in ranks]
    x, y = (torch.cat([part[key] for part in parts]) for key in ("input", "target"))
else:
    x, y = models.made_batch(a.model, a.batch * (a.world if a.mode == "one" else 1), a.rank)
y = y.flatten()
module = model
if a.mode == "ddp":
    os.environ.update(MASTER_ADDR=a.address, MASTER_PORT=str(a.port))
    dist.init_process_group("gloo", rank=a.rank, world_size=a.world)
    module = torch.nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True, static_graph=True, broadcast_buffers=False, bucket_cap_mb=a.bucket_mb)
optimizer = models.fastest_adamw(model.parameters())


def backward():
    # DDP's gradients are views of its buckets and stay; without it a fresh gradient is cheaper than one to add to.
    optimizer.zero_grad(set_to_none=a.mode != "ddp")
    F.cross_entropy(module(x), y).backward()


def steps(count):
    for _ in range(count):
        backward()
        optimizer.step()


errors = {}
if a.dump and a.mode != "solo":
    backward()
    errors["gradient_error"] = exchange.gradient_error(model, a.dump)
    optimizer.step()
    steps(19)
    errors["weight_error"] = exchange.weight_error(model, a.dump)
else:
    steps(20)


def meet():
    if a.mode == "ddp":
        dist.barrier()


def agree(calls):
    """All ranks take as many calls as the first."""
    if a.mode != "ddp":
        return calls
    shared = torch.tensor([calls])
    dist.broadcast(shared, 0)
    return int(shared)


took = timing.measure(steps, a.blocks, a.block_seconds, meet, agree)
memory = timing.peak_memory_mib()
if a.mode != "ddp" or a.rank == 0:
    samples = x.shape[0] * (a.world if a.mode == "ddp" else 1)
    timing.report(ms=took, samples_per_second=samples / took["median"] * 1e3, peak_memory_mib=memory, version=torch.__version__, **errors)
if a.mode == "ddp":
    timing.end_ranks(dist.barrier)
