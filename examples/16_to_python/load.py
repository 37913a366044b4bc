"""Loads what to_python has written, and compares the outputs. Usage: load.py FOLDER; needs PyTorch.

With the package safetensors, load_file below is `from safetensors.torch import load_file`.
"""
import json
import pathlib
import struct
import sys

import torch
from torch import nn

folder = pathlib.Path(sys.argv[1])


def load_file(path):
    content = path.read_bytes()
    length, = struct.unpack('<Q', content[:8])
    header = json.loads(content[8:8 + length])
    header.pop('__metadata__', None)
    types = {'F32': torch.float32, 'I64': torch.int64}
    tensors = {}
    for name, one in header.items():
        begin, end = (8 + length + offset for offset in one['data_offsets'])
        tensors[name] = torch.frombuffer(bytearray(content[begin:end]), dtype=types[one['dtype']]).reshape(one['shape'])
    return tensors


model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
model.load_state_dict(load_file(folder / 'model.safetensors'))
model.eval()
expected = load_file(folder / 'expected.safetensors')
with torch.no_grad():
    outputs = model(expected['inputs'])
difference = (outputs - expected['outputs']).abs().max().item()
print('the outputs are the same' if difference <= 1e-6 else f'the outputs differ by {difference}')
sys.exit(difference > 1e-6)
