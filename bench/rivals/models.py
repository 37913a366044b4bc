"""The models of `lockstep bench train` in PyTorch, with parameters of the same shapes in the same order."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        y += x if self.shortcut is None else self.shortcut(x)
        return F.relu(y, inplace=True)


class ResNet18(nn.Module):
    """The form for CIFAR-10: [n, 3, 32, 32] to [n, 10]."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        blocks, inputs = [], 64
        for outputs, first_stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            for stride in (first_stride, 1):
                blocks.append(BasicBlock(inputs, outputs, stride))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        x = self.blocks(F.relu(self.norm(self.conv(x)), inplace=True))
        return self.fc(x.mean((2, 3)))


def causal_attention(q, k, v):
    """One fused operator where PyTorch has it (2.0), as in Lockstep's own gpt."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    positions = q.shape[-2]
    later = torch.full((positions, positions), float("-inf")).triu_(1)
    return (q / q.shape[-1] ** 0.5 @ k.transpose(-2, -1) + later).softmax(-1) @ v


class DecoderBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, positions, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, positions, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = causal_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).reshape(n, positions, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary=65, width=256, layers=4, heads=8, context=128):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[DecoderBlock(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, characters):
        x = self.token(characters) + self.position.weight[: characters.shape[1]]
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


def make(name):
    """A model: mlp:W0,W1,..., resnet18 or gpt."""
    if name.startswith("mlp:"):
        widths = [int(w) for w in name[4:].split(",")]
        layers = []
        for i, (a, b) in enumerate(zip(widths, widths[1:])):
            layers += [nn.Linear(a, b)] + ([nn.ReLU()] if i + 2 < len(widths) else [])
        return nn.Sequential(*layers)
    if name == "resnet18":
        return ResNet18()
    if name == "gpt":
        return GPT()
    raise SystemExit(f"unknown model {name}: mlp:W0,W1,..., resnet18 or gpt")


def made_batch(name, size, seed):
    """Samples of the right shape where none were exchanged."""
    generator = torch.Generator().manual_seed(seed)
    if name == "gpt":
        return tuple(torch.randint(0, 65, (size, 128), generator=generator) for _ in range(2))
    shape, classes = ((3, 32, 32), 10) if name == "resnet18" else ((int(name[4:].split(",")[0]),), int(name.split(",")[-1]))
    return torch.randn(size, *shape, generator=generator), torch.randint(0, classes, (size,), generator=generator)


def fastest_adamw(parameters):
    """AdamW as fast as this PyTorch has it: fused where it can be on the CPU (2.4), else one call for many tensors."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    how = {"fused": True} if version >= (2, 4) else {"foreach": True}
    return torch.optim.AdamW(parameters, 1e-4, weight_decay=0.01, **how)
