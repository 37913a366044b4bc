"""What PyTorch's DDP does after the last gradient is there, alone; one pinned process for each rank over Gloo.

  all-reduce   dist.all_reduce of --bytes, in place, on the same buffer again and again
  step         gradients that are views of buckets, as DDP keeps them: all-reduce of the buckets, several at once, the
               division by the number of ranks, and the fused AdamW; --shapes 4096x4096*4,1000

Prints one JSON line.
"""
import argparse
import os

import torch
import torch.distributed as dist

import models
import timing

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("mode", choices=["all-reduce", "step"])
arguments.add_argument("--rank", type=int, default=0)
arguments.add_argument("--world", type=int, default=2)
arguments.add_argument("--bytes", type=int, default=4096)
arguments.add_argument("--shapes", default="", help="of the gradients")
arguments.add_argument("--model", help="whose gradients, instead")
arguments.add_argument("--port", type=int, default=29533)
arguments.add_argument("--bucket-mb", type=int, default=25)
arguments.add_argument("--blocks", type=int, default=15)
arguments.add_argument("--block-seconds", type=float, default=0.3)
a = arguments.parse_args()

os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[a.rank % len(os.sched_getaffinity(0))]})
torch.set_num_threads(1)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
dist.init_process_group("gloo", rank=a.rank, world_size=a.world)


def agree(calls):
    """All ranks take as many calls as the first."""
    shared = torch.tensor([calls])
    dist.broadcast(shared, 0)
    return int(shared)


def shapes_of(text):
    for item in text.split(","):
        sizes, _, count = item.partition("*")
        yield from [[int(size) for size in sizes.split("x")]] * int(count or 1)


if a.mode == "all-reduce":
    buffer = torch.full((a.bytes // 4,), float(a.rank + 1))
    dist.all_reduce(buffer)
    if not bool((buffer == a.world * (a.world + 1) / 2).all()):
        raise SystemExit("the sum is wrong")
    buffer.zero_()

    def repeat(calls):
        for _ in range(calls):
            dist.all_reduce(buffer)
else:
    shapes = [p.shape for p in models.make(a.model).parameters()] if a.model else shapes_of(a.shapes)
    parameters = [torch.ones(shape, requires_grad=True) for shape in shapes]
    buckets = []
    waiting, size = [], 0
    for parameter in reversed(parameters):
        waiting.append(parameter)
        size += 4 * parameter.numel()
        if size >= a.bucket_mb << 20 or parameter is parameters[0]:
            bucket, offset = torch.full((size // 4,), 1e-3 * (a.rank + 1)), 0
            for one in waiting:
                one.grad = bucket[offset:offset + one.numel()].view(one.shape)
                offset += one.numel()
            buckets.append(bucket)
            waiting, size = [], 0
    optimizer = models.fastest_adamw(parameters)

    def repeat(calls):
        for _ in range(calls):
            for bucket in buckets:
                bucket.div_(a.world)
            for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
                work.wait()
            optimizer.step()


took = timing.measure(repeat, a.blocks, a.block_seconds, dist.barrier, agree)
if a.rank == 0:
    timing.report(ms=took, peak_memory_mib=timing.peak_memory_mib(), version=torch.__version__)
timing.end_ranks(dist.barrier)
