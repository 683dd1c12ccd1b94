#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.plan: from a module to a plan that agpcs.torch.Job runs, and what it says of it."""

import io
import pathlib
import tempfile
import unittest
from unittest import mock

from cases import build, on_ranks
from test_job import CLUSTER, FOUR, NEWER, TWO, TWO_BY_TWO, Mlp, Transformer, batches, captured, job_of, plan_of

import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import agpcs
import agpcs.torch
from agpcs import _torch_plan


def losses_of(rank, kind, plan):
    job = job_of(kind, plan, exports=True)
    return [job.step(batch).item() for batch in batches(kind, 2)]


def by_one_process(rank, kind):
    model, losses = build(kind), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for *inputs, labels in batches(kind, 2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(*inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Plans(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cluster = pathlib.Path(folder.name, "cluster.yaml")
        self.cluster.write_text(CLUSTER)

    def planned(self, kind, layout=None, model=None, **options):
        """A plan of a module, for which `model` is exported; without it, `captured(kind)` is there."""
        if layout is not None:
            options = {"layout": layout, "micro_batches": 4, "bound": False, **options}
        capture = (lambda *_: captured(kind)) if model is None else _torch_plan.exported
        with mock.patch.object(_torch_plan, "exported", capture):
            return agpcs.torch.plan(model or build(kind), batches(kind, 1)[0], cluster=self.cluster, **options)

    def test_for_a_job_that_trains_as_one_process(self):
        plan = self.planned(Mlp, model=build(Mlp))
        losses, = on_ranks(by_one_process, Mlp, ranks=1)
        for found in on_ranks(losses_of, Mlp, plan, ranks=plan.ranks):
            for a, b in zip(found, losses):
                self.assertLess(abs(a - b), 1e-4 * b, (found, losses))

    def test_is_that_of_the_exported_file(self):
        file = io.BytesIO()
        agpcs.torch.export(build(Mlp), batches(Mlp, 1)[0][:-1], file)
        found = self.planned(Mlp, TWO_BY_TWO, model=build(Mlp), bucket_bytes=4096)
        self.assertEqual(found.text, plan_of(Mlp, TWO_BY_TWO, model=file.getvalue()).text)
        self.assertEqual(self.planned(Mlp, TWO_BY_TWO, batch=20).batch, 20)

    def test_says_which_modules_lie_where(self):
        two, four = self.planned(Transformer, TWO_BY_TWO), self.planned(Mlp, FOUR)
        self.assertEqual(two.modules, (("table", "layers.0"), ("layers.1", "norm", "head")))
        self.assertRegex(str(two), r"^batch 10 in 4 micro-batches, a step takes [0-9.]+ ms\n"
                                   r"stage s0: table, layers.0 on a/0-1, samples 2, 1\n"
                                   r"stage s1: layers.1, norm, head on b/0-1, samples 1, 2$")
        self.assertEqual(four.modules, (("layers.0-2",), ("layers.3-5",), ("layers.6-8",), ("layers.9-10",)))
        one = self.planned(Mlp, "a/0")
        self.assertEqual(one.modules, (("layers",),))

    def test_of_a_module_without_values(self):
        for where in (FakeTensorMode(), torch.device("meta")):
            with where:
                model = Transformer()
            own = dict(model.named_parameters())
            self.assertEqual(self.planned(Transformer, TWO, model=model, bucket_bytes=4096).text, plan_of(Transformer, TWO).text)
            for name, parameter in model.named_parameters():
                self.assertIs(parameter, own[name])
        self.assertTrue(all(parameter.is_meta for parameter in own.values()))
        model.table.usual = torch.empty(2, device="meta")
        with self.assertRaises(agpcs.Error) as raised:
            self.planned(Transformer, TWO, model=model)
        self.assertIn("'table.usual' is a tensor on the device 'meta', and neither a parameter nor a buffer\n"
                      "  hint: register_buffer(..., persistent=False)", str(raised.exception))

    def test_refuses_what_no_job_runs(self):
        with self.assertRaises(agpcs.UsageError) as raised:
            self.planned(Mlp, TWO, devices=["a/0", "b/0"])
        self.assertIn("devices and layout are both given", str(raised.exception))
        with self.assertRaises(agpcs.UsageError) as raised:
            agpcs.torch.plan(build(Mlp), batches(Mlp, 1)[0][0], cluster=self.cluster)
        self.assertIn("a batch is a tuple or list", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
