# Writes the files beside it, with Python's PyTorch and safetensors: what torch.save gives, and the same tensors as
# safetensors, under the names that Lockstep gives them.
import pathlib

import torch
from safetensors.torch import save_file

here = pathlib.Path(__file__).parent


def flat(value, name, found):
    if isinstance(value, torch.Tensor):
        value = value.detach()
        plain = value.resolve_conj().resolve_neg()
        found[name] = (torch.view_as_real(plain) if plain.is_complex() else plain).contiguous().clone()
    elif isinstance(value, dict):
        for key, one in value.items():
            flat(one, f'{name}.{key}' if name else str(key), found)
    elif isinstance(value, (list, tuple)):
        flat(dict(enumerate(value)), name, found)
    return found


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
optimizer = torch.optim.Adam(model.parameters())
model(torch.rand(4, 3)).sum().backward()
optimizer.step()
weight = model.state_dict()['0.weight']
for name, value in {
        'state_dict': model.state_dict(),
        'nested': {'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'epoch': 3, 'lr': 1e-3,
                   'text': 'x', 'none': None, 'shared': weight},
        'odd': {'parameter': model[0].weight, 'complex': torch.view_as_complex(torch.rand(2, 2)),
                'bool': torch.tensor([True, False]), 'half': torch.rand(3).half(), 'bfloat16': torch.rand(3).bfloat16(),
                'slice': torch.arange(10)[2:6], 'turned': torch.arange(6).view(2, 3).t(), 'empty': torch.zeros(0, 4)},
        'views': {'list': [torch.arange(3.), {'deep': torch.arange(4.)}, 7], 'tuple': (torch.ones(2), (torch.zeros(2),)),
                  'conjugate': torch.full((2,), 1 + 2j).conj(), 'negative': torch.full((2,), 1 + 2j).conj().imag,
                  'both': torch.arange(4.).view(2, 2).to(torch.complex64).conj().t()},
}.items():
    torch.save(value, here / f'{name}.pt')
    save_file(flat(value, '', {}), here / f'{name}.safetensors')
torch.save(model, here / 'object.pt')
torch.save(model.state_dict(), here / 'legacy.pt', _use_new_zipfile_serialization=False)  # as PyTorch 1.5 did
