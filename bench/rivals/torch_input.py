"""An epoch of records or images by PyTorch's DataLoader or by Grain, read ahead by some processes or threads.

Prints one JSON line.
"""
import argparse

import numpy
import torch
from PIL import Image

import input_data
import timing

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("loader", choices=["dataloader", "grain"])
parser.add_argument("--getitems", action="store_true", help="of the DataLoader: whole batches by index_select")
parser.add_argument("--processes", action="store_true", help="of Grain, which reads on threads otherwise")


def as_numbers(pixels):
    return pixels.to(torch.float32).div_(255).sub_(input_data.MEAN).div_(input_data.DEVIATION)


def numbers_of_numpy(pixels):
    return (pixels.astype(numpy.float32) / numpy.float32(255) - numpy.float32(input_data.MEAN)) / numpy.float32(input_data.DEVIATION)


def window(path):
    """The middle of an image as planes of bytes."""
    with Image.open(path) as image:
        image = image.convert("RGB")
        left, top = (image.width - input_data.SIDE) // 2, (image.height - input_data.SIDE) // 2
        rows = numpy.asarray(image.crop((left, top, left + input_data.SIDE, top + input_data.SIDE)))
    return numpy.ascontiguousarray(rows.transpose(2, 0, 1))


class Records(torch.utils.data.Dataset):
    def __init__(self, each):
        self.each = each
        self.images, self.targets = (torch.from_numpy(array) for array in input_data.records())

    def __len__(self):
        return input_data.RECORDS

    def __getitem__(self, i):
        return self.each(self.images[i]), self.targets[i]


class WholeBatches(Records):
    def __getitems__(self, rows):
        index = torch.tensor(rows)
        return self.images.index_select(0, index), self.targets.index_select(0, index)


class Images(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.paths, self.targets = input_data.files(folder)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return torch.from_numpy(window(self.paths[i])), int(self.targets[i])


def collated(samples):
    inputs, targets = torch.utils.data.default_collate(samples)
    return as_numbers(inputs), targets


def changed(batch):
    return as_numbers(batch[0]), batch[1]


def unchanged(pixels):
    return pixels


def by_dataloader(a):
    collate = None
    if a.work == "images":
        dataset = Images(a.dump)
    elif a.getitems:
        dataset, collate = WholeBatches(unchanged), changed
    elif a.work == "samples":
        dataset = Records(as_numbers)
    else:
        dataset, collate = Records(unchanged), collated
    loader = torch.utils.data.DataLoader(dataset, batch_size=a.batch, shuffle=True, num_workers=a.threads, collate_fn=collate,
                                         prefetch_factor=max(1, 2 * a.ahead // a.threads), persistent_workers=True)
    while True:
        for inputs, targets in loader:
            yield len(inputs), int(targets.sum())


class Source:
    """For Grain."""

    def __init__(self, a):
        self.a = a
        self.inputs, self.targets = input_data.files(a.dump) if a.work == "images" else input_data.records()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        if self.a.work == "images":
            return window(self.inputs[i]), self.targets[i]
        return (numbers_of_numpy(self.inputs[i]) if self.a.work == "samples" else self.inputs[i]), self.targets[i]


def by_grain(a):
    import grain

    dataset = grain.MapDataset.source(Source(a)).seed(1).shuffle().repeat().batch(a.batch)
    if a.work == "batches":
        dataset = dataset.map(lambda batch: (numbers_of_numpy(batch[0]), batch[1]))
    ahead = 2 * a.ahead
    if a.processes:
        options = grain.MultiprocessingOptions(num_workers=a.threads, per_worker_buffer_size=max(1, ahead // a.threads))
        batches = dataset.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)).mp_prefetch(options)
    else:
        batches = dataset.to_iter_dataset(grain.ReadOptions(num_threads=a.threads, prefetch_buffer_size=ahead))
    for inputs, targets in batches:
        yield len(inputs), int(targets.sum())


def main():
    a = input_data.arguments(parser)
    torch.set_num_threads(1)
    version = torch.__version__
    if a.loader == "grain":
        from importlib.metadata import version as version_of
        version = version_of("grain")
        # Its processes expect the flags of the library that it is written with.
        from absl import flags
        flags.FLAGS.mark_as_parsed()
    epochs = input_data.Epochs(by_dataloader(a) if a.loader == "dataloader" else by_grain(a), a.work == "images")
    ms = timing.measure(epochs.read, a.blocks, a.block_seconds)
    timing.report(ms=ms, samples_per_second=1e3 * epochs.count / ms["median"], peak_memory_mib=timing.peak_memory_mib(), version=version)


if __name__ == "__main__":
    main()
