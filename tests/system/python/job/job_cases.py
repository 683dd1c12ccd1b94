# SPDX-License-Identifier: Apache-2.0
"""Modules, plans and trainings for tests of agpcs.torch.Job."""

import functools
import json
import os
import pathlib
import subprocess
import tempfile
import unittest
from unittest import mock

from cases import Bert, ResNet18, build, on_ranks

import torch
from torch import nn

import agpcs
import agpcs.torch
from agpcs import _torch_job

BATCH = 10
STEPS = int(os.environ.get("AGPCS_STEPS", 6))  # that are compared with one process; the figures in docs/results are of 20
TOLERANCE = 1e-4
CLUSTER = """\
device_kinds:
  cpu: {peak: {fp32: 40 GFLOPS, bf16: 40 GFLOPS}, memory: 4 GiB, memory_bandwidth: 10 GB/s, launch_overhead: 5 us}
hosts:
  - name: a
    devices: {kind: cpu, count: 2}
    interconnect: {kind: tcp, bandwidth: 2 GB/s, latency: 20 us}
    nic: {bandwidth: 10 Gbit/s, latency: 20 us}
  - name: b
    devices: {kind: cpu, count: 2}
    interconnect: {kind: tcp, bandwidth: 2 GB/s, latency: 20 us}
    nic: {bandwidth: 10 Gbit/s, latency: 20 us}
network: {topology: switch}
training: {batch: 10, optimizer: {kind: sgd, momentum: 0.9}}
"""
TWO, FOUR, TWO_BY_TWO = "a/0|b/0", "a/0|a/1|b/0|b/1", "a/0:3,a/1:1|b/0:1,b/1:3"


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(part for _ in range(5) for part in (nn.Linear(16, 16), nn.Tanh())), nn.Linear(16, 4))

    def forward(self, x):
        return self.layers(x)

    @staticmethod
    def samples(count, generator):
        return torch.randn(count, 16, generator=generator), torch.randint(0, 4, (count,), generator=generator)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.position = nn.Embedding(20, 16), nn.Parameter(torch.randn(1, 6, 16))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, tokens):
        x = self.table(tokens) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))

    @staticmethod
    def samples(count, generator):
        return torch.randint(0, 20, (count, 6), generator=generator), torch.randint(0, 4, (count,), generator=generator)


class Gated(nn.Module):
    """SiLU and RMS normalization, which the exporter takes apart; one of the normalizations is written by hand."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.norm, self.scale, self.head = nn.RMSNorm(16, eps=1e-6), nn.Parameter(torch.ones(16)), nn.Linear(16, 4)

    def forward(self, x):
        for layer in self.layers:
            x = self.norm(x + nn.functional.silu(layer(x)))
        return self.head(self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)))

    samples = Mlp.samples


class Tagger(nn.Module):
    """A label for each word. Some do not count, among them all of the second micro-batch of four."""

    def __init__(self):
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(20, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, tokens):
        return self.head(torch.tanh(self.inner(self.table(tokens)))).transpose(1, 2)

    @staticmethod
    def samples(count, generator):
        tokens, labels = (torch.randint(0, most, (count, 6), generator=generator) for most in (20, 4))
        labels[torch.rand(count, 6, generator=generator) < 0.4] = -100
        labels[3:6] = -100
        return tokens, labels


class TiedHead(nn.Module):
    """Its head is its table of words: both ends read it, under two names."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(20, 16), nn.Linear(16, 20, bias=False)
        self.layers = nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(16, 16), nn.Tanh())))
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head(self.layers(self.table(tokens).mean(1)))

    @staticmethod
    def samples(count, generator):
        return torch.randint(0, 20, (count, 6), generator=generator), torch.randint(0, 20, (count,), generator=generator)


class UNet(nn.Module):
    """Skips over all stages, activations in place, and a scale that several stages read: a value without samples."""

    def __init__(self):
        super().__init__()
        widths = (3, 8, 12, 16)
        self.down = nn.ModuleList(self.block(a, b) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(self.block(a + b, b) for a, b in ((16, 12), (12, 8)))
        self.last, self.scale = nn.Conv2d(8, 4, 1), nn.Parameter(torch.ones(1, 1, 1, 1) / 2)

    @staticmethod
    def block(inputs, outputs):
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 1, 1), nn.ReLU(inplace=True))

    def forward(self, x):
        scale = torch.exp(self.scale)
        a = self.down[0](x * scale)
        b = self.down[1](nn.functional.max_pool2d(a, 2))
        c = self.down[2](nn.functional.max_pool2d(b, 2))
        b = self.up[0](torch.cat([nn.functional.interpolate(c, scale_factor=2.0), b], 1))
        a = self.up[1](torch.cat([nn.functional.interpolate(b, scale_factor=2.0), a], 1))
        return self.last(a * scale).mean((2, 3))

    @staticmethod
    def samples(count, generator):
        return torch.randn(count, 3, 8, 8, generator=generator), torch.randint(0, 4, (count,), generator=generator)


class Sloped(nn.Module):
    """Two layers of attention with ALiBi: both read the same slopes, a parameter that does not train."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(16, 16), nn.Linear(16, 4)
        self.layers = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.slopes = nn.Parameter(torch.tensor([0.5, 0.25]), requires_grad=False)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            distances = torch.arange(x.shape[1]) - torch.arange(x.shape[1])[:, None]
            query, key, value = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in layer(x).chunk(3, -1))
            scores = query @ key.transpose(-1, -2) / 3 - self.slopes[:, None, None] * distances.abs()
            x = x + (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        return self.head(x.mean(1))

    @staticmethod
    def samples(count, generator):
        return torch.randn(count, 6, 16, generator=generator), torch.randint(0, 4, (count,), generator=generator)


class OneBert(Bert):
    @staticmethod
    def samples(count, generator):
        return tuple(Bert.samples(count, generator).values())


class OneResNet(ResNet18):
    def __init__(self):
        super().__init__(width=8)

    @staticmethod
    def samples(count, generator):
        return tuple(ResNet18.samples(count, generator).values())


class Rows(Mlp):
    """ONNX computes its linear layers in three operators each."""

    def forward(self, x):
        return self.layers(x.unsqueeze(1)).squeeze(1)


class Tied(Mlp):
    """Two layers with one weight, and a layer with two names."""

    def __init__(self):
        super().__init__()
        self.layers[2].weight = self.layers[0].weight
        self.head = self.layers[10]


def batches(kind, count=STEPS, first=0):
    return [kind.samples(BATCH, torch.Generator().manual_seed(step)) for step in range(first, first + count)]


@functools.lru_cache(maxsize=None)
def captured(kind):
    """What a job makes of its module before it reads the plan, which takes seconds: the graph, its ONNXProgram, and the
    file of that without values."""
    return _torch_job.exported(build(kind), batches(kind, 1)[0], None, ("logits",), {})


def exported(kind):
    return captured(kind)[2]


@functools.lru_cache(maxsize=None)
def plan_of(kind, layout, micro_batches=4, recompute="", cluster=CLUSTER, model=None, **options):
    """A plan, of the exported module without `model`; the stages in `recompute` compute their forward passes again: "s0 s1", or
    with `s0=3,2` its first 3 operators, and then the next 2, and not those after them."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "cluster.yaml")
        file.write_text(cluster)
        plan = agpcs.plan(model or exported(kind), file, layout=layout, micro_batches=micro_batches, bound=False,
                          bucket_bytes=4096, **options)
    segments = dict(one.partition("=")[::2] for one in recompute.split())

    def recomputed(line):
        word, _, name = line.partition(" ")
        name = name.partition(" ")[0]
        if word != "stage" or name not in segments:
            return line
        return line.replace("recompute=no", "recompute=yes" + (f" segments={segments[name]}" if segments[name] else ""))

    return agpcs.Plan("\n".join(map(recomputed, plan.text.splitlines())) + "\n")


def operators_of(plan, model):
    """The operators of an ONNX file with their stages, as `agpcs-plan json` has them."""
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder, name) for name in ("model.onnx", "model.plan")]
        files[0].write_bytes(model)
        plan.save(files[1])
        said = subprocess.run([pathlib.Path(os.environ["AGPCS_BIN_DIR"], "agpcs-plan"), "json", files[1], "--model", files[0]],
                              check=True, capture_output=True).stdout
    return json.loads(said)["operators"]


def optimizer_of(parameters, rate=0.05):
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9)


def optimizer_fn_of(kind):
    return functools.partial(optimizer_of, rate=kind.RATE) if hasattr(kind, "RATE") else optimizer_of


def job_of(kind, plan, model=None, optimizer_fn=optimizer_of, exports=False, **options):
    """A job, which has `captured(kind)` of the process that forked its ranks unless it exports its module itself."""
    capture = _torch_job.exported if exports else lambda *_: captured(kind)
    with mock.patch.object(_torch_job, "exported", capture):
        return agpcs.torch.Job(model or build(kind), plan, nn.functional.cross_entropy, optimizer_fn, batches(kind, 1)[0],
                               **options)


def trained_by_job(rank, kind, plan, exports):
    """(losses, final state, names of the parameters that have values on this rank)."""
    model = build(kind)
    own = dict(model.named_parameters())
    job = job_of(kind, plan, model, optimizer_fn_of(kind), exports=exports)
    losses = [job.step(batch).item() for batch in batches(kind)]
    live = [name for name, parameter in model.named_parameters() if not parameter.is_meta]
    assert all(model.get_parameter(name) is own[name] for name in live), "a parameter is not the user's own object"
    return losses, {name: tensor.numpy() for name, tensor in job.state_dict().items()}, live


def trained_by_one_process(rank, kind, parts):
    """`parts` are the rows whose losses are computed together: what a replica has of a micro-batch."""
    model = build(kind)
    optimizer, losses = optimizer_fn_of(kind)(model.parameters()), []
    for inputs, labels in ((batch[:-1], batch[-1]) for batch in batches(kind)):
        optimizer.zero_grad()
        losses.append(0)
        for begin, end in parts:
            loss = nn.functional.cross_entropy(model(*(x[begin:end] for x in inputs)), labels[begin:end]) * (end - begin) / BATCH
            loss.backward()
            losses[-1] += loss.item()
        optimizer.step()
    return losses, {name: tensor.numpy() for name, tensor in model.state_dict().items()}


@functools.lru_cache(maxsize=None)
def expected(kind, parts):
    return on_ranks(trained_by_one_process, kind, parts, ranks=1)[0]


NEWER = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Compares(unittest.TestCase):
    def compare(self, kind, plan, parts=((0, BATCH),), states=True, exports=False):
        losses, state = expected(kind, parts)
        self.assertGreater(max(losses) - min(losses), 0.05, "nothing was trained")
        results = on_ranks(trained_by_job, kind, plan, exports, ranks=plan.ranks)
        for result in results:
            self.assertNotIsInstance(result[0], str, result)
            for a, b in zip(losses, result[0]):
                self.assertLess(abs(a - b), TOLERANCE * abs(a), f"{losses}\n{result[0]}")
            self.assertEqual((len(losses), list(state)), (len(result[0]), list(result[1])))
            for name, tensor in state.items() if states else ():
                scale = max(abs(tensor).max(), 1e-3)
                self.assertLess(abs(tensor - result[1][name]).max() / scale, TOLERANCE, name)
        return [live for *_, live in results]
