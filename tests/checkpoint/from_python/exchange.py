# The other side of python_test.cpp: loads weights that Lockstep trained, gives their outputs, trains on, and saves
# weights for the way back.
import json
import pathlib
import struct
import sys

import torch
from torch import nn

folder = pathlib.Path(sys.argv[1])
kTypes = {'F32': torch.float32, 'F64': torch.float64, 'I64': torch.int64}


def load_file(path):
    """What safetensors.torch.load_file gives, by the format's description, where that package is not there."""
    content = path.read_bytes()
    length, = struct.unpack('<Q', content[:8])
    header = json.loads(content[8:8 + length])
    tensors = {}
    for name, one in header.items():
        if name == '__metadata__':
            continue
        begin, end = one['data_offsets']
        data = bytearray(content[8 + length + begin:8 + length + end])
        flat = torch.frombuffer(data, dtype=kTypes[one['dtype']])
        tensors[name] = flat.reshape(one['shape']).clone()
    return tensors


try:
    from safetensors.torch import load_file, save_file  # noqa: F811
except ImportError:
    save_file = None

torch.set_num_threads(1)
model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 16),
                      nn.Tanh(), nn.Linear(16, 5))
model.load_state_dict(load_file(folder / 'here.safetensors'), strict=True)
inputs = load_file(folder / 'inputs.safetensors')['inputs']
model.eval()
outputs = {'of_export': model(inputs).detach()}

# The same weights as a file of torch.save, which runs nothing that is not known.
dictionary = torch.load(folder / 'here.pt', weights_only=True)
outputs['same_dictionary'] = torch.tensor(
    type(dictionary) is dict and dictionary.keys() == model.state_dict().keys() and
    all(torch.equal(dictionary[name], value) for name, value in model.state_dict().items()))
every = torch.load(folder / 'every.pt', weights_only=True)
outputs['same_types'] = torch.tensor(all(
    str(value.dtype) == 'torch.' + name and value.shape == (2, 3) and not value.requires_grad and
    torch.equal(value, torch.arange(6).reshape(2, 3).to(value.dtype)) for name, value in every.items()))

# All files of a checkpoint, whose names begin with the module's. Replicas have buffers of their own.
saved = {path.stem: load_file(path) for path in (folder / 'checkpoint').glob('*.safetensors')}
outputs['same_weights'] = torch.tensor(all(
    torch.equal(saved['weights']['model.' + name], value) for name, value in model.named_parameters()))
outputs['same_buffers'] = torch.tensor(all(
    torch.allclose((saved['replicas'][f'model.{name}@0'] + saved['replicas'][f'model.{name}@1']) / 2, value.float())
    for name, value in model.named_buffers()))
outputs['slots_fit'] = torch.tensor(len(saved) == 3 and all(
    saved['optimizer'][f'model.{name}/{slot}'].shape == value.shape
    for name, value in model.named_parameters() for slot in ('exp_avg', 'exp_avg_sq')))

model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _ in range(3):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
model.eval()
outputs['of_return'] = model(inputs).detach()
torch.save(outputs, folder / 'outputs.pt')
torch.save(model.state_dict(), folder / 'back.pt')
if save_file:
    save_file(model.state_dict(), folder / 'back.safetensors')
