#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.export: what the file notes, and that the planner trains exactly that."""

import io
import pathlib
import re
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


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.calls, self.means = torch.nn.Linear(4, 4), 0, []


class Branches(Layer):
    def forward(self, x):
        if x.sum() > 0:
            x = x * 2
        return self.inner(x)


class Reads(Layer):
    def forward(self, x):
        most = x.abs().max().item()
        return self.inner(x / most if most > 1 else x)


class Leaves(Layer):
    def forward(self, x):
        return self.inner(torch.tensor(x.tolist()))


class Counts(Layer):
    def forward(self, x):
        return self.inner(x.view(3, 4))


class Loops(Layer):
    def forward(self, x):
        return torch.stack([self.inner(row) for row in x])


class Sizes(Layer):
    def forward(self, x):
        return self.inner(x * 2 if x.shape[0] > 2 else x)


class Effects(Layer):
    def forward(self, x):
        x = self.inner(x)
        self.calls += 1
        print("a pass", file=io.StringIO())
        self.means.append(x.mean())
        return x


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


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Explains(unittest.TestCase):
    """Messages name the line of the user's code, and what helps."""

    VALUES = ("goes on by the values of a tensor, which nobody knows while it is exported: '{}'\n  hint: torch.where or torch.cond in "
              "place of a branch, and tensors in place of what .item() and .tolist() return")
    SAMPLES = ("takes a batch for {} of them: '{}'\n  hint: x.shape[0] or -1 in place of a number, operations on the whole batch in "
               "place of a loop over samples, and a sample batch of at least 2 samples")
    LEFT = ("while the module computes, which the exported graph leaves out: '{}'\n  hint: do it outside of forward; a tensor that "
            "changes may be a buffer, or what forward returns")
    SIZES = ("decides by the number of samples, and the exported graph is that of {} samples: '{}'\n  hint: a sample batch of as many "
             "samples as a step has")

    def line(self, code, after=""):
        """FILE:LINE of the code in this file, the first one after the text `after`."""
        lines = [line.strip() for line in pathlib.Path(__file__).read_text().splitlines()]
        return f"{__file__}:{lines.index(code, lines.index(after)) + 1}"

    def refused(self, kind, samples):
        with self.assertRaises(agpcs.Error) as raised:
            agpcs.torch.export(kind(), (torch.randn(samples, 4),), io.BytesIO())
        with self.assertRaises(agpcs.Error) as by_plan:
            agpcs.torch.plan(kind(), (torch.randn(samples, 4), torch.zeros(samples)), cluster="none.yaml")
        self.assertEqual(str(by_plan.exception), str(raised.exception))
        return str(raised.exception)

    def said(self, kind, samples):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            agpcs.torch.export(kind(), (torch.randn(samples, 4),), io.BytesIO())
        return [str(warning.message) for warning in caught if "exported graph" in str(warning.message)
                or "assigned during export" in str(warning.message)]

    def test_code_that_goes_on_by_values(self):
        for kind, code in ((Branches, "if x.sum() > 0:"), (Reads, "return self.inner(x / most if most > 1 else x)")):
            for samples in (3, 1):
                self.assertEqual(self.refused(kind, samples),
                                 f"PyTorch cannot export the module: {self.line(code)} {self.VALUES.format(code)}")

    def test_what_leaves_torch(self):
        code = "return self.inner(torch.tensor(x.tolist()))"
        self.assertRegex(self.refused(Leaves, 3), rf"^PyTorch cannot export the module[a-z ]*: {re.escape(self.line(code))} .*"
                                                  rf": '{re.escape(code)}'\n  hint: ")

    def test_code_for_one_number_of_samples(self):
        for kind, code, samples, taken in ((Counts, "return self.inner(x.view(3, 4))", 3, 3),
                                           (Counts, "return self.inner(x.view(3, 4))", 1, 3),
                                           (Loops, "return torch.stack([self.inner(row) for row in x])", 3, 3),
                                           (Loops, "return torch.stack([self.inner(row) for row in x])", 1, 2)):
            self.assertEqual(self.refused(kind, samples), "PyTorch cannot export the module for any number of samples: "
                                                          f"{self.line(code)} {self.SAMPLES.format(taken, code)}")

    def test_code_that_decides_by_the_number_of_samples(self):
        code = "return self.inner(x * 2 if x.shape[0] > 2 else x)"
        for samples, of in ((3, "3 or more"), (1, "up to 2")):
            self.assertEqual(self.said(Sizes, samples), [f"{self.line(code)} {self.SIZES.format(of, code)}"])

    def test_what_else_the_code_does(self):
        first, forward = "self.calls += 1", "def forward(self, x):"
        shown = 'print("a pass", file=io.StringIO())'
        self.assertEqual(self.said(Effects, 3), [
            f"{self.line(first)} changes 'calls' {self.LEFT.format(first)}",
            f"{self.line(shown)} prints {self.LEFT.format(shown)}",
            f"{self.line(forward, 'class Effects(Layer):')} changes 'means' {self.LEFT.format(forward)}"])
        self.assertEqual(self.said(torch.nn.Sequential, 3), [])


if __name__ == "__main__":
    unittest.main()
