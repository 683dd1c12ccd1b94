#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.export: what the file notes, and that the planner trains exactly that."""

import io
import pathlib
import sys
import tempfile
import unittest
import warnings

try:
    import torch
except ImportError:
    print("skipped: PyTorch is not here")
    sys.exit(77)

import agpcs
import agpcs.torch

NEWER = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)
CLUSTER = """\
device_kinds:
  cpu: {peak: {fp32: 40 GFLOPS}, memory: 4 GiB, memory_bandwidth: 10 GB/s, launch_overhead: 5 us}
hosts:
  - {name: local, devices: {kind: cpu, count: 2}}
training: {batch: 8}
"""


class Net(torch.nn.Module):
    """A buffer that scales like a weight, a parameter that does not train, a scalar, a table that is used twice, and a
    norm that PyTorch before 2.6 exports with constants for weights."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(12, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.groups = torch.nn.GroupNorm(2, 8)
        self.scale = torch.nn.Parameter(torch.tensor(2.0))
        self.still = torch.nn.Linear(8, 8)
        self.still.weight.requires_grad_(False)
        self.register_buffer("window", torch.arange(1.0, 9.0))

    def forward(self, tokens):
        x = self.groups(self.norm(self.table(tokens).sum(1)).unsqueeze(-1)).squeeze(-1) * self.window * self.scale
        return self.still(x) @ self.table.weight.t()


TRAINED = {"table.weight", "norm.weight", "norm.bias", "groups.weight", "groups.bias", "scale", "still.bias"}


def planned(model):
    with tempfile.TemporaryDirectory() as folder:
        cluster = pathlib.Path(folder, "cluster.yaml")
        cluster.write_text(CLUSTER)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plan = agpcs.plan(model, cluster, data_parallel=True)
    return {name for group in plan.groups for name in group.parameters}


class Export(unittest.TestCase):
    def export(self, module, **options):
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            agpcs.torch.export(module, (torch.randint(0, 12, (3, 4)),), file, **options)
        return file.getvalue()

    def test_trains_parameters_and_nothing_else(self):
        self.assertEqual(planned(self.export(Net())), TRAINED)

    def test_restores_the_modes_of_parts(self):
        module = Net()
        module.norm.eval()
        self.export(module)
        self.assertTrue(module.training)
        self.assertFalse(module.norm.training)

    @unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
    def test_writes_shapes_without_values(self):
        with_values, without = self.export(Net()), self.export(Net(), weights=False)
        self.assertEqual(planned(without), TRAINED)
        self.assertLess(len(without), len(with_values) + 2000)
        with torch.device("meta"):
            module = Net()
        self.assertEqual(planned(self.export(module)), TRAINED)

    @unittest.skipIf(NEWER, "PyTorch is 2.6 or newer")
    def test_says_what_an_older_pytorch_cannot_do(self):
        with self.assertRaises(RuntimeError) as raised:
            self.export(Net(), weights=False)
        self.assertEqual(str(raised.exception),
                         "agpcs.torch.export writes a file without values with PyTorch 2.6 or newer only, this is "
                         f"{torch.__version__}")


if __name__ == "__main__":
    unittest.main()
