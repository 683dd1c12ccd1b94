#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.plan: from a module to a plan that agpcs.torch.Job runs, and what it says of it. agpcs.torch.profile: what ranks
measure of a module, and the profile that plans follow."""

import collections
import io
import json
import pathlib
import re
import tempfile
import unittest
import warnings
from unittest import mock

from cases import build, on_ranks
from job_cases import (CLUSTER, FOUR, NEWER, TWO, TWO_BY_TWO, Mlp, OneResNet, Tagger, Transformer, UNet, batches, captured, job_of,
                      plan_of)

import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import agpcs
import agpcs.torch
from agpcs import _agpcs, _torch_plan, _torch_profile
from agpcs._job.passes import LOSS, Passes, Times


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


KINDS = "  other: {peak: {fp32: 40 GFLOPS}, memory: 4 GiB, memory_bandwidth: 10 GB/s}\nhosts:"
# Of a/0 of one kind, b/0 and b/1 of the other.
THREE_DEVICES = CLUSTER.replace("hosts:", KINDS).replace("count: 2", "count: 1", 1).replace(
    "{kind: cpu, count: 2}", "{kind: other, count: 2}")
TWO_DEVICES = CLUSTER.replace("count: 2", "count: 1")
MILLI = 1e-3


class Uneven(nn.Module):
    """A layer that takes much longer than all others."""

    def __init__(self):
        super().__init__()
        self.first, self.wide, self.large = nn.Linear(8, 8), nn.Linear(8, 1024), nn.Linear(1024, 1024)
        self.last = nn.Linear(1024, 4)

    def forward(self, x):
        return self.last(torch.relu(self.large(self.wide(torch.relu(self.first(x))))))

    @staticmethod
    def samples(count, generator):
        return torch.randn(count, 8, generator=generator), torch.randint(0, 4, (count,), generator=generator)


def optimizer_of(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr=0.1, momentum=0.9)


def profiled(kind, folder, model=None, **options):
    with mock.patch.object(_torch_profile, "exported", lambda *_: captured(kind)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agpcs.torch.profile(model or build(kind), nn.functional.cross_entropy, optimizer_of, batches(kind, 1)[0],
                            **{"cluster": folder / "cluster.yaml", "path": folder / "job.profile.yaml", "seconds": 1,
                               "quiet": True, **options})


def known_times(rank, kind, folder):
    """A profile by times that follow from rank and node: a node takes rank + 1 ms a sample forwards, 2 ms more backwards."""
    def times(passes):
        names = {name for parts in passes._parts[1] for half in parts for name in half} - {LOSS}
        return [Times(n, {name: ((rank + 1) * n * MILLI, (rank + 3) * n * MILLI) for name in names}, 0.0) for n in (2, 4)]

    with mock.patch.object(Passes, "times", times):
        profiled(kind, folder)


def untouched(rank, kind, folder):
    """Names of what profile changed of a model that has gradients and is not in training mode."""
    model = build(kind).eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    profiled(kind, folder, model)
    changed = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    changed += [name for name, parameter in model.named_parameters() if not torch.equal(parameter.grad, torch.ones_like(parameter))]
    return changed + ["mode"] * model.training + ["random"] * (not torch.equal(state, torch.get_rng_state()))


def divided(rank, kind, folder):
    """(times, whole passes) of each number of samples."""
    found = []

    def times(passes, times=Passes.times):
        for one in times(passes):
            steps, stretch = passes._steps[one.samples], passes.stretch(one.samples)
            found.append((one, sorted(stretch * step.forward for step in steps), sorted(stretch * step.backward for step in steps)))
        return [one for one, _, _ in found]

    with mock.patch.object(Passes, "times", times):
        profiled(kind, folder)
    return found


def refused(rank, kind, folder, options):
    profiled(kind, folder, **options)


def to_measure(kind, cluster):
    return _agpcs.to_measure({"cluster": str(cluster), "model": "model.onnx"}, captured(kind)[2], [])


def entries(text):
    """By kind of device and signature: by samples, (forward, backward) in seconds."""
    found, kind = collections.defaultdict(dict), None
    for line in text.splitlines():
        if re.fullmatch(r"  \S+:", line):
            kind = line.strip(" :")
        elif line.startswith("      - operator: "):
            points = found[kind].setdefault(json.loads(line.partition(": ")[2]), {})
        elif line.startswith("          - {samples: "):
            fields = dict(re.findall(r"(\w+): ([^,}]+)", line))
            points[int(fields["samples"])] = tuple(seconds(fields.get(name, "0s")) for name in ("forward", "backward"))
    return found


def seconds(text):
    number, unit = re.fullmatch(r"([-+0-9.e]+?)(ns|us|ms|s)", text).groups()
    return float(number) * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}[unit]


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Profiles(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.cluster, self.path = self.folder / "cluster.yaml", self.folder / "job.profile.yaml"

    def measured(self, work, kind, cluster, ranks, *arguments):
        self.cluster.write_text(cluster)
        captured(kind)  # the ranks, which are forked, have it
        return on_ranks(work, kind, self.folder, *arguments, ranks=ranks)

    def test_has_the_mean_of_a_kind_and_of_operators_that_are_alike(self):
        self.assertEqual(self.measured(known_times, Mlp, THREE_DEVICES, 3), [None] * 3)
        found, what = entries(self.path.read_text()), to_measure(Mlp, self.cluster)
        self.assertEqual(set(found), {"cpu", "other"})
        alike = collections.Counter(one["signature"] for one in what["operators"])
        nodes = 11  # six layers and five activations; the loss is no node here
        for kind, forward, backward in (("cpu", 1, 3), ("other", 2.5, 4.5)):
            self.assertEqual(set(found[kind]), set(alike))
            for samples in (2, 4):
                sums = [sum(alike[name] * points[samples][half] for name, points in found[kind].items()) for half in (0, 1)]
                self.assertAlmostEqual(sums[0], nodes * samples * forward * MILLI, 6)
                self.assertAlmostEqual(sums[1], nodes * samples * backward * MILLI, 6)
        text = self.path.read_text()
        self.assertEqual(re.findall("optimizer: (.*?), elements: ([0-9]+), tensors: ([0-9]+)", text),
                         2 * [("sgd momentum", "84", "6"), ("sgd momentum", "1344", "6")])
        posting = re.findall("(?m)^    message_compute: (.*)$", text)
        self.assertEqual(len(posting), 2)  # by kind
        for cost in map(seconds, posting):
            self.assertTrue(1e-6 < cost < 0.1, cost)
        self.assertEqual(len(re.findall("  - from: ", text)), 6)
        self.assertEqual(sorted(re.findall(r"devices: \[(.*)\]", text)), ["a/0, b/0", "a/0, b/0, b/1", "a/0, b/1", "b/0, b/1"])

    def test_plans_follow_it(self):
        self.measured(known_times, Mlp, TWO_DEVICES, 2)
        self.cluster.write_text("profile: job.profile.yaml\n" + TWO_DEVICES)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = agpcs.plan(captured(Mlp)[2], self.cluster, layout="a/0|b/0", micro_batches=5, bound=False)
        computed = dict(re.findall(r"(?m)^  ((?:forward|backward) s[01]) .*?([0-9.]+ms)", plan.text))
        # Ranks of one kind: 1.5 ms a node and sample forwards, 3.5 ms backwards; two samples.
        for what, node in (("forward", 1.5), ("backward", 3.5)):
            both = sum(seconds(computed[f"{what} s{s}"]) for s in (0, 1))
            self.assertAlmostEqual(both, 11 * 2 * node * MILLI, delta=0.005 * both)

    def test_divides_passes_among_their_nodes(self):
        for rank in self.measured(divided, Uneven, TWO_DEVICES, 2):
            sizes = [one.samples for one, _, _ in rank]
            self.assertEqual(sizes, [1, 2, 4, 8][:len(sizes)])  # as time allows
            self.assertGreaterEqual(len(sizes), 2)
            for times, forward, backward in rank:
                for half, whole in ((0, forward), (1, backward)):
                    self.assertLessEqual(whole[0], sum(node[half] for node in times.nodes.values()) * (1 + 1e-9))
                    self.assertGreaterEqual(whole[-1], sum(node[half] for node in times.nodes.values()) * (1 - 1e-9))
                both = sorted(times.nodes, key=lambda name: -sum(times.nodes[name]))
                self.assertEqual(len(both), 7)
                self.assertIn(LOSS, both)
                self.assertEqual(both[0], "linear_2")

    def test_leaves_the_model_as_it_was(self):
        self.assertEqual(self.measured(untouched, OneResNet, TWO_DEVICES, 2), [[], []])

    def test_measures_skips_and_labels_that_do_not_count(self):
        for kind in (UNet, Tagger):
            self.assertEqual(self.measured(refused, kind, TWO_DEVICES, 2, {}), [None, None])
            found, what = entries(self.path.read_text()), to_measure(kind, self.cluster)
            self.assertEqual(set(found["cpu"]), {one["signature"] for one in what["operators"]})
            sizes = {tuple(sorted(points)) for points in found["cpu"].values()}
            self.assertEqual(len(sizes), 1)
            self.assertEqual(sizes.pop()[:2], (1, 2))

    def test_refuses_by_name_on_every_rank(self):
        cases = (({}, CLUSTER, "the job has 2 ranks, and there are 4 devices: a/0, a/1, b/0, b/1\n  hint: a rank for each device"),
                 ({"devices": ["a/0", "c/0"]}, CLUSTER, "unknown device 'c/0'"),
                 ({}, TWO_DEVICES.replace("batch: 10, ", ""), "no batch to measure for"))
        for options, cluster, said in cases:
            for _, message in self.measured(refused, Mlp, cluster, 2, options):
                self.assertIn(said, message)
        self.assertFalse(self.path.exists())
        with torch.device("meta"):
            model = Mlp()
        for _, message in self.measured(refused, Mlp, TWO_DEVICES, 2, {"model": model}):
            self.assertIn("'layers.0.weight' has no values, and agpcs.torch.profile computes passes", message)

    def test_asks_for_samples_up_to_the_batch_and_paths_of_many_devices_in_a_ring(self):
        self.cluster.write_text(CLUSTER.replace("count: 2", "count: 3"))
        what = to_measure(Mlp, self.cluster)
        self.assertEqual(what["samples"], [1, 2, 4, 8])
        self.assertEqual([(path["from"], path["to"]) for path in what["paths"]], [(i, (i + 1) % 6) for i in range(6)])
        self.assertEqual(what["paths"][2]["links"], ["a/2 out", "a nic out", "b nic in", "b/0 in"])
        product = next(one for one in what["operators"] if one["class"] == "matmul")
        self.assertEqual([work[0] for work in product["work"]], [528.0, 1056.0, 2112.0, 4224.0])


if __name__ == "__main__":
    unittest.main()
