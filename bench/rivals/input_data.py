"""What all rivals read: the records and images of bench/input_pipeline.cpp, and a check that an epoch has each once."""
import glob
import os

import numpy

RECORDS, FILES, SIDE = 61440, 512, 224
MEAN, DEVIATION = 0.1307, 0.3081  # MNIST's usual numbers


def arguments(parser):
    parser.add_argument("work", choices=["batches", "samples", "images"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128, help="of a replica")
    parser.add_argument("--ahead", type=int, default=4, help="steps of two replicas that are read ahead")
    parser.add_argument("--dump", help="the folder of images that `input_pipeline lockstep images --dump` has made")
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--block-seconds", type=float, default=0.3)
    return parser.parse_args()


def records():
    """Bytes [n, 28, 28] and classes [n]."""
    i = numpy.arange(RECORDS, dtype=numpy.uint32)[:, None] * numpy.uint32(2654435761)
    j = numpy.arange(28 * 28, dtype=numpy.uint32)[None, :] * numpy.uint32(40503)
    return ((i + j) >> 24).astype(numpy.uint8).reshape(-1, 28, 28), numpy.arange(RECORDS, dtype=numpy.int64) % 10


def files(folder):
    """Paths of all images, and their classes."""
    paths = sorted(glob.glob(os.path.join(folder, "*", "*.jpg")))
    return paths, numpy.array([int(os.path.basename(os.path.dirname(path))) for path in paths], dtype=numpy.int64)


class Epochs:
    """`read(n)` reads n epochs of `batches`, an iterator over (size, sum of classes) that never ends."""

    def __init__(self, batches, images):
        self.batches, self.count = batches, FILES if images else RECORDS
        self.targets = sum(i % 10 for i in range(self.count))

    def read(self, epochs):
        for _ in range(epochs):
            samples = targets = 0
            while samples < self.count:
                size, classes = next(self.batches)
                samples, targets = samples + size, targets + classes
            if samples != self.count or targets != self.targets:
                raise RuntimeError(f"an epoch gave {samples} samples with targets of {targets} in place of {self.count} and {self.targets}")
