# SPDX-License-Identifier: Apache-2.0
"""Modules for tests of teams in agpcs.torch.Job: heads that divide unevenly, grouped queries, tables in parts, channels, experts."""

import torch
from torch import nn
from torch.nn import functional

WORDS, PLACES = 48, 12


class GptLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, places, width = x.shape
        query, key, value = (part.view(batch, places, self.heads, width // self.heads).transpose(1, 2)
                             for part in self.qkv(self.norm1(x)).split(width, -1))
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(batch, places, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt4(nn.Module):
    """GPT-2's form: one product makes queries, keys and values."""

    RATE = 0.02

    def __init__(self, layers=4, width=32, heads=8):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(PLACES, width)
        self.layers = nn.ModuleList(GptLayer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)).transpose(1, 2)

    @staticmethod
    def samples(count, generator):
        words = torch.randint(0, WORDS, (count, PLACES + 1), generator=generator)
        return words[:, :-1], words[:, 1:]


class OneHead(Gpt4):
    """Its attention divides by queries alone."""

    def __init__(self):
        super().__init__(layers=2, heads=1)


class LlamaLayer(nn.Module):
    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False)
                                         for a, b in ((width, 2 * width), (width, 2 * width), (2 * width, width)))

    def heads_of(self, x, count):
        return x.view(*x.shape[:2], count, self.size).transpose(1, 2)

    def repeated(self, x):
        batch, groups, places, size = x.shape
        of_each = self.heads // groups
        return x[:, :, None].expand(batch, groups, of_each, places, size).reshape(batch, self.heads, places, size)

    @staticmethod
    def turned(x, cos, sin):
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def forward(self, x, cos, sin):
        y = self.norm1(x)
        query = self.turned(self.heads_of(self.query(y), self.heads), cos, sin)
        key = self.turned(self.heads_of(self.key(y), self.groups), cos, sin)
        value = self.heads_of(self.value(y), self.groups)
        found = functional.scaled_dot_product_attention(query, self.repeated(key), self.repeated(value), is_causal=True)
        x = x + self.out(found.transpose(1, 2).contiguous().view(*x.shape))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Queries in groups of two, rotary places, gates."""

    RATE = 0.02
    samples = Gpt4.samples

    def __init__(self, layers=2, width=64, heads=16, groups=8):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, groups) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, WORDS, bias=False)
        size = width // heads
        turns = torch.outer(torch.arange(PLACES).float(), 1e4 ** (-torch.arange(0, size, 2).float() / size)).repeat(1, 2)
        self.register_buffer("cos", turns.cos(), persistent=False)
        self.register_buffer("sin", turns.sin(), persistent=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x)).transpose(1, 2)


class ExpertLayer(nn.Module):
    """The routing of docs/reference/onnx_import.md."""

    def __init__(self, width, experts, groups, capacity, one_hot):
        super().__init__()
        self.experts, self.groups, self.capacity, self.one_hot = experts, groups, capacity, one_hot
        self.gate = nn.Linear(width, experts, bias=False)
        self.up, self.down = (nn.Parameter(torch.randn(experts, a, b) / a**0.5) for a, b in ((width, 2 * width), (2 * width, width)))

    def forward(self, inputs):
        _, places, width = inputs.shape
        x = inputs.reshape(-1, self.groups, places // self.groups, width)
        p = self.gate(x).softmax(-1)
        if self.one_hot:
            mine = functional.one_hot(p.argmax(-1), self.experts).to(x.dtype)
        else:
            mine = (p.argmax(-1, keepdim=True) == torch.arange(self.experts)).to(x.dtype)
        place = ((mine.cumsum(2) - mine) * mine).sum(-1)
        slot = (place.unsqueeze(-1) == torch.arange(self.capacity, dtype=x.dtype)).to(x.dtype)
        send = mine.unsqueeze(-1) * slot.unsqueeze(-2)
        sent = torch.einsum("ngsec,ngsd->ngecd", send, x)
        y = torch.einsum("ngecf,efd->ngecd", functional.gelu(torch.einsum("ngecd,edf->ngecf", sent, self.up)), self.down)
        return torch.einsum("ngsec,ngecd->ngsd", send * p.unsqueeze(-1), y).reshape(-1, places, width)


class Mixture(nn.Module):
    """A mixture of experts, some of whose tokens find no room."""

    RATE = 0.02
    samples = Gpt4.samples

    def __init__(self, layers=2, width=32, experts=8, groups=2, capacity=2, one_hot=False):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.layers = nn.ModuleList(ExpertLayer(width, experts, groups, capacity, one_hot) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return self.head(self.norm(x)).transpose(1, 2)


class OneHotMixture(Mixture):
    def __init__(self):
        super().__init__(one_hot=True)


class BatchNet(nn.Module):
    """Convolutions with batch norm, one of them with each channel by itself, and a shortcut."""

    RATE = 0.02

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList((nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.Conv2d(16, 16, 3, 1, 1, groups=16),
                                    nn.Conv2d(16, 16, 1, bias=False)))
        self.norms, self.head = nn.ModuleList(nn.BatchNorm2d(16) for _ in self.convs), nn.Linear(16, 4)

    def forward(self, x):
        x = first = torch.relu(self.norms[0](self.convs[0](x)))
        for conv, norm in zip(self.convs[1:], self.norms[1:]):
            x = torch.relu(norm(conv(x)))
        return self.head((x + first).mean((2, 3)))

    @staticmethod
    def samples(count, generator):
        return torch.randn(count, 3, 8, 8, generator=generator), torch.randint(0, 4, (count,), generator=generator)
