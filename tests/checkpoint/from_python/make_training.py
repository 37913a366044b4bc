# Writes training-2.pt and training-4.pt beside it: what torch.save gives of a whole training, in pickle's protocols 2
# and 4. It needs NumPy and no PyTorch: stand-ins of the right names give the pickles that PyTorch's classes give.
import argparse
import collections
import dataclasses
import datetime
import enum
import pathlib
import pickle
import struct
import sys
import types
import zipfile

import numpy

torch = types.ModuleType('torch')
utils = types.ModuleType('torch._utils')
mine = types.ModuleType('my_code')


def stand_in(module, name, value):
    value.__module__, value.__qualname__, value.__name__ = module.__name__, name, name
    setattr(module, name, value)
    return value


FloatStorage = stand_in(torch, 'FloatStorage', type('FloatStorage', (), {}))
rebuild = stand_in(utils, '_rebuild_tensor_v2', lambda *args: None)
rebuild_parameter = stand_in(utils, '_rebuild_parameter', lambda *args: None)
Size = stand_in(torch, 'Size', type('Size', (tuple,), {'__reduce__': lambda self: (Size, (tuple(self),))}))
device = stand_in(torch, 'device', type('device', (), {'__reduce__': lambda self: (device, ('cuda', 1))}))
dtype = stand_in(torch, 'dtype', type('dtype', (), {'__reduce__': lambda self: 'float32'}))
torch.float32 = dtype()
for module in (torch, utils, mine):
    sys.modules[module.__name__] = module


class Storage:
    def __init__(self, key, values):
        self.key, self.values = key, values


class Tensor:
    def __init__(self, storage, shape, parameter=False):
        self.storage, self.shape, self.parameter = storage, shape, parameter

    def __reduce__(self):
        stride = tuple(int(numpy.prod(self.shape[i + 1:])) for i in range(len(self.shape)))
        args = (self.storage, 0, self.shape, stride, False, collections.OrderedDict())
        if not self.parameter:
            return rebuild, args
        return rebuild_parameter, (Tensor(self.storage, self.shape), True, collections.OrderedDict())


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        if not isinstance(value, Storage):
            return None
        return 'storage', FloatStorage, value.key, 'cpu', len(value.values)


@dataclasses.dataclass
class Config:
    width: int = 3


Ema = type('Ema', (), {})
Mode = enum.Enum('Mode', 'TRAIN TEST')
Point = collections.namedtuple('Point', 'x y')
States = type('States', (dict,), {})
for name, value in {'Config': Config, 'Ema': Ema, 'Mode': Mode, 'Point': Point, 'States': States}.items():
    stand_in(mine, name, value)

storages = [Storage(str(i), [float(4 * i + k) for k in range(4)]) for i in range(4)]
weight, bias, slot, average = (Tensor(one, shape) for one, shape in zip(storages, [(2, 2), (4,), (2, 2), (2, 2)]))
state = collections.OrderedDict(weight=weight, bias=Tensor(storages[1], (4,), parameter=True))
state._metadata = collections.OrderedDict({'': {'version': 1}})
ema = Ema()
ema.shadow = {'weight': average}
training = {
    'epoch': 3, 'args': argparse.Namespace(lr=0.1, path=pathlib.PurePosixPath('/data'), nested=Config()),
    'best': numpy.float64(0.5), 'count': numpy.int64(7), 'flag': numpy.bool_(True), 'history': numpy.arange(3.0),
    'size': Size((2, 2)), 'device': device(), 'dtype': torch.float32, 'seen': {1, 2}, 'frozen': frozenset('ab'),
    'counter': collections.Counter('aab'), 'groups': collections.defaultdict(list, {'a': [1]}), 'complex': 1 + 2j,
    'bytes': b'\x00\xff', 'array': bytearray(b'ab'), 'path': pathlib.PurePosixPath('/a/b'),
    'time': datetime.datetime(2024, 5, 6), 'mode': Mode.TRAIN, 'point': Point(1, 2), 'ema': ema, 'config': Config(),
    'large': 2**100, 'queue': collections.deque([1]), 'range': range(3), 'text': 'ä', 'none': None,
    'model': state, 'states': States(weight=weight),
    'optimizer': {'state': {0: {'step': 4, 'momentum_buffer': slot}}, 'param_groups': [{'lr': 0.1, 'params': [0, 1]}]},
}
here = pathlib.Path(__file__).parent
for protocol in 2, 4:
    with zipfile.ZipFile(here / f'training-{protocol}.pt', 'w') as file, file.open('training/data.pkl', 'w') as pkl:
        Pickler(pkl, protocol=protocol).dump(training)
    with zipfile.ZipFile(here / f'training-{protocol}.pt', 'a') as file:
        for one in storages:
            file.writestr(f'training/data/{one.key}', struct.pack('<4f', *one.values))
