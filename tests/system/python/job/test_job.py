#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job: plans of several stages on local ranks over Gloo train as one process does."""

import functools
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
import warnings
from unittest import mock

from cases import Bert, ResNet18, build, on_ranks

import torch
import torch.distributed as dist
from torch import nn

import agpcs
import agpcs.torch
from agpcs import _torch_job
from agpcs._job.loss import MeanLoss

BATCH, STEPS = 10, 20
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


class InPlace(Mlp):
    def forward(self, x):
        x = self.layers[0](x)
        x[:, :4].mul_(2)
        return self.layers[1:](x)


class Dropping(Mlp):
    def forward(self, x):
        return self.layers(nn.functional.dropout(x, 0.5))


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


def batches(kind, count=STEPS):
    return [kind.samples(BATCH, torch.Generator().manual_seed(step)) for step in range(count)]


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


def first_step(rank, kind, plans, batch=BATCH, change=None):
    """Begins a job and makes a step; the tests look at errors and warnings."""
    dist.barrier()  # all ranks are connected before one of them fails
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        job = job_of(kind, plans[rank])
        batch = kind.samples(batch, torch.Generator().manual_seed(1))
        job.step(batch if change is None else change(batch))
    return "ok", [str(warning.message) for warning in caught if "random" in str(warning.message)]


def goes_on(rank, kind, plan, other):
    """Losses of a job, and those of one that goes on from its state after two steps, by another plan."""
    job = job_of(kind, plan)
    first = [job.step(batch).item() for batch in batches(kind, 2)]
    state = job.state_dict()
    third = job.step(batches(kind, 3)[2]).item()
    second = job_of(kind, other)
    second.load_state_dict(state)
    try:
        second.load_state_dict({**state, "more": torch.zeros(1)})
    except agpcs.PlanMismatch as error:
        said = str(error)
    return first, third, second.step(batches(kind, 3)[2]).item(), said


def loads_tied(rank, plan):
    """The module's names and ties on this rank, and what a job says of a state whose tied names differ."""
    job = job_of(Tied, plan)
    job.step(batches(Tied, 1)[0])
    state = {name: tensor.clone() for name, tensor in job.state_dict().items()}
    job.load_state_dict(state)
    same = all(torch.equal(tensor, state[name]) for name, tensor in job.state_dict().items())
    try:
        job.load_state_dict({**state, "layers.2.weight": state["layers.2.weight"] + 1, "layers.0.bias": torch.zeros(16)})
    except agpcs.PlanMismatch as error:
        said = str(error)
    kept = torch.equal(job.state_dict()["layers.0.bias"], state["layers.0.bias"])
    return list(state), same, kept, said


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


class Trains(Compares):
    """Losses of 20 steps and final parameters equal those of one process."""

    def test_an_mlp_in_two_and_four_stages(self):
        first, second = self.compare(Mlp, plan_of(Mlp, TWO), exports=True)
        self.assertTrue(first and second)
        self.assertFalse(set(first) & set(second), "a parameter is on both ranks")
        self.compare(Mlp, plan_of(Mlp, FOUR, 10))

    def test_stages_with_other_numbers_in_flight_than_the_textbooks(self):
        for numbers, recompute in (((3, 1), "s0"), ((1, 1), ""), ((5, 3, 3, 1), ""), ((2, 2, 1, 1), "s1 s2")):
            devices = ("a/0", "b/0") if len(numbers) == 2 else ("a/0", "a/1", "b/0", "b/1")
            layout = "|".join(f"{device},in-flight={number}" for device, number in zip(devices, numbers))
            with self.subTest(layout=layout):
                plan = plan_of(Mlp, layout, 5, recompute=recompute)
                firsts = [section.split("  backward")[0].count("\n  forward") for section in plan.text.split("\nprogram ")[1:]]
                self.assertEqual(tuple(firsts), numbers)
                self.compare(Mlp, plan)

    def test_parted_backward_passes(self):
        # Matrix products, convolutions, and a table that is the head, too.
        for kind, layout, micro_batches in ((Mlp, TWO, 5), (Mlp, FOUR, 10), (Transformer, FOUR, 5), (TiedHead, TWO_BY_TWO, 4),
                                            (UNet, TWO, 5)):
            with self.subTest(kind=kind.__name__, layout=layout):
                plan = plan_of(kind, layout + "|schedule=zero-bubble", micro_batches)
                self.assertIn("schedule=zero-bubble", plan.text)
                self.assertIn("\n  backward_weight mb=", plan.text)
                self.compare(kind, plan)

    def test_parted_backward_passes_in_stages_with_other_numbers_in_flight(self):
        self.compare(Mlp, plan_of(Mlp, "a/0,in-flight=5|a/1,in-flight=3|b/0,in-flight=3|b/1,in-flight=1|schedule=zero-bubble", 5))

    def test_an_mlp_on_uneven_replicas(self):
        self.compare(Mlp, plan_of(Mlp, TWO_BY_TWO, 1))
        plan = plan_of(Mlp, TWO_BY_TWO)  # micro-batches of 3, 3, 2 and 2
        self.assertEqual([stage.samples for stage in plan.stages], [(2, 1), (1, 2)])
        self.assertEqual(plan.shares, (6, 4, 4, 6))
        self.compare(Mlp, plan)

    def test_a_transformer(self):
        for layout, recompute in ((TWO, "s0 s1"), (FOUR, ""), (TWO_BY_TWO, "s1")):
            with self.subTest(layout=layout):
                self.compare(Transformer, plan_of(Transformer, layout, recompute=recompute))

    def test_operators_that_the_exporter_took_apart(self):
        for layout in (TWO, FOUR):
            with self.subTest(layout=layout):
                plan = plan_of(Gated, layout)
                self.assertIn("\n  fused RMSNormalization\n  fused Swish\n", plan.text)
                self.compare(Gated, plan)

    def test_labels_of_which_some_do_not_count(self):
        self.compare(Tagger, plan_of(Tagger, TWO_BY_TWO))

    def test_a_table_that_is_the_head_too(self):
        for layout, recompute in ((TWO, ""), (FOUR, ""), (TWO_BY_TWO, "s1")):
            with self.subTest(layout=layout):
                plan = plan_of(TiedHead, layout, recompute=recompute)
                last = f"s{len(plan.stages) - 1}"
                shared, = (group for group in plan.groups if group.shared_with)
                self.assertEqual((shared.parameters, shared.stage, shared.shared_with), (("table.weight",), "s0", (last,)))
                self.assertEqual(shared.ranks, tuple(sorted(plan.stages[0].ranks + plan.stages[-1].ranks)))
                lives = self.compare(TiedHead, plan)
                self.assertEqual([rank for rank, live in enumerate(lives) if "table.weight" in live], list(shared.ranks))

    def test_a_unet_whose_skips_pass_stages_by(self):
        for layout, recompute in ((TWO, ""), (FOUR, "s0 s2"), (TWO_BY_TWO, "")):
            with self.subTest(layout=layout):
                plan = plan_of(UNet, layout, recompute=recompute)
                self.assertTrue("from=s0 to=s3" in plan.text or layout != FOUR)
                self.compare(UNet, plan)

    def test_a_bert_whose_mask_goes_to_each_stage(self):
        self.compare(OneBert, plan_of(OneBert, TWO_BY_TWO))

    def test_gradients_that_travel_rounded(self):
        self.assertLess(self.apart(Mlp, plan_of(Mlp, TWO_BY_TWO, wire_type="fp16")), 2e-3)

    def apart(self, kind, plan):
        losses, _ = expected(kind, ((0, BATCH),))
        results = on_ranks(trained_by_job, kind, plan, False, ranks=plan.ranks)
        apart = max(abs(a - b) for a, b in zip(losses, results[0][0]))
        self.assertGreater(apart, 1e-7, "nothing was rounded")
        return apart

    def test_batch_norm_takes_each_micro_batch_by_itself_and_counts_recomputed_ones_once(self):
        self.compare(OneResNet, plan_of(OneResNet, TWO, recompute="s0"), ((0, 3), (3, 6), (6, 8), (8, 10)))

    def test_batch_norm_takes_each_replica_by_itself(self):
        self.compare(OneResNet, plan_of(OneResNet, "a/0:1,a/1:1|b/0:1,b/1:1", 1), ((0, 5), (5, 10)), states=False)

    def test_a_job_goes_on_from_the_state_of_another_plan(self):
        for _, third, again, said in on_ranks(goes_on, Mlp, plan_of(Mlp, TWO), plan_of(Mlp, TWO, 2, recompute="s0")):
            self.assertLess(abs(third - again), 1e-5, "the loss of a step is that before its update")
            self.assertEqual(said, "the state is of another module: 'more' differs")

    def test_tied_parameters_have_all_their_names(self):
        self.compare(Tied, plan_of(Tied, TWO))
        for names, same, kept, said in on_ranks(loads_tied, plan_of(Tied, TWO)):
            self.assertEqual(names, list(Tied().state_dict()))
            self.assertTrue(same and kept)
            self.assertEqual(said, "'layers.0.weight' and 'layers.2.weight' are one tensor of the module, and two different "
                                   "ones of the state\n  hint: a state of a module in which they are tied")


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Refuses(unittest.TestCase):
    def refused(self, kind, *plans, **options):
        """(type, text) of the error on each rank."""
        captured(kind)
        results = on_ranks(functools.partial(first_step, **options), kind, plans, ranks=len(plans))
        for result in results:
            self.assertNotEqual(result[0], "ok", result)
        return results

    def assert_all(self, results, kind, text):
        for result in results:
            self.assertEqual(result, (kind, text))

    def test_another_number_of_ranks(self):
        plan = plan_of(Mlp, TWO)
        self.assert_all(self.refused(Mlp, plan, plan, plan), "PlanMismatch",
                        "the plan of model has 2 ranks, and the job has 3\n"
                        "  hint: torchrun --nproc-per-node and --nnodes that make 2, or a plan for 3 devices")

    def test_another_module_than_the_plans(self):
        plan = plan_of(Mlp, TWO)
        for kind, text in self.refused(Dropping, plan, plan):
            self.assertEqual(kind, "PlanMismatch")
            self.assertRegex(text, "^the plan is not for this module: .* this model is 'model' \\(sha256:[0-9a-f]{64}\\)")
            self.assertTrue(text.endswith("give Job the same input_names, output_names and options"), text)

    def test_ranks_that_have_other_plans(self):
        first, second = self.refused(Mlp, plan_of(Mlp, TWO), plan_of(Mlp, TWO, 2))
        text = "rank {} has another plan than this rank\n  hint: give every rank the same file"
        self.assertEqual((first, second), (("PlanMismatch", text.format(1)), ("PlanMismatch", text.format(0))))

    def test_a_rank_that_cannot_begin_is_named_on_the_others(self):
        first, second = self.refused(Mlp, plan_of(Mlp, TWO), "nowhere.plan")
        self.assertEqual(second[0], "FileNotFoundError")
        self.assertEqual(first, ("Error", f"rank 1 cannot begin: FileNotFoundError: {second[1]}"))

    def test_a_batch_of_another_size(self):
        plan = plan_of(Mlp, TWO)
        self.assert_all(self.refused(Mlp, plan, plan, batch=8), "PlanMismatch",
                        "input 0 has 8 samples; the plan's batch has 10\n"
                        "  hint: every rank gives the whole batch (drop_last=True)")

    def test_inputs_of_another_form(self):
        plan = plan_of(Mlp, TWO)
        self.assert_all(self.refused(Mlp, plan, plan, change=lambda batch: (batch[0][:, :8], batch[1])), "PlanMismatch",
                        "input 0 is a tensor of float32 and shape 10x8, and in sample_batch it was a tensor of float32 "
                        "and shape s77x16")
        self.assert_all(self.refused(Mlp, plan, plan, change=lambda batch: (batch[0], batch[1][:4])), "PlanMismatch",
                        "the targets have a tensor of int64 and shape 4; the plan's batch has 10 samples\n"
                        "  hint: every rank gives the whole batch (drop_last=True)")
        self.assert_all(self.refused(Mlp, plan, plan, change=lambda batch: (batch[0], *batch)), "UsageError",
                        "the batch has other inputs than sample_batch: 2 instead of 1")
        self.assert_all(self.refused(Mlp, plan, plan, change=lambda batch: batch[0]), "UsageError",
                        "a batch is a tuple or list of the module's inputs, in the order of its arguments, and then the "
                        "targets; this is a tensor of float32 and shape 10x16")

    def test_a_cut_inside_a_node(self):
        plan = plan_of(Rows, TWO)
        names = [operator["name"] for operator in operators_of(plan, exported(Rows))]
        cut = names.index("layers.4/linear_2")  # its addition, after the product
        runs = iter((names[:cut], names[cut:]))

        def run(_):
            of_stage = next(runs)
            return f"operators={len(of_stage)}\n  operators {of_stage[0]} .. {of_stage[-1]} count={len(of_stage)}\n"

        plan = agpcs.Plan(re.sub(r"operators=.*\n(  operators .*\n)+", run, plan.text))
        for kind, text in self.refused(Rows, plan, plan):
            self.assertEqual(kind, "PlanMismatch")
            self.assertRegex(text, r"^the plan cuts inside 'linear_2' \(linear.default\) in layers.4 .*: its operator "
                                   r"'layers.4/Transpose_\d+' is in s0, 'layers.4/linear_2' in s1\n"
                                   "  hint: agpcs.torch.Job cuts between the nodes of torch.export's graph, as do plans of "
                                   "what agpcs.torch.export writes; plan that$")

    def test_a_change_in_place_of_a_part(self):
        plan = plan_of(InPlace, TWO)
        for kind, text in self.refused(InPlace, plan, plan):
            self.assertEqual(kind, "UsageError")
            self.assertRegex(text, "^'mul_' \\(mul_.Tensor\\) .*changes a tensor in place that has other names, which "
                                   "agpcs.torch.Job does not follow\n  hint: write it without the change in place$")

    def test_a_loss_that_it_does_not_know(self):
        plan = plan_of(Mlp, TWO, ignore_index=-100)
        for kind, text in self.refused(Mlp, plan, plan, change=lambda batch: (batch[0], [batch[1], batch[1]])):
            self.assertIn("the plan's loss counts labels (ignore-index), and the targets have 2 tensors of whole numbers\n"
                          "  hint: one tensor of labels", text)

    def test_says_that_dropout_is_not_that_of_one_process(self):
        plan = plan_of(Dropping, TWO)
        for kind, said in on_ranks(first_step, Dropping, [plan, plan]):
            self.assertEqual(kind, "ok", said)
            self.assertEqual(len(said), 1)
            self.assertRegex(said[0], "^'dropout' \\(dropout.default\\) .*draws random numbers: other ones than one process")


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Means(unittest.TestCase):
    def said(self, loss_fn, **of_plan):
        loss = MeanLoss(loss_fn, torch.utils._pytree.tree_structure(torch.ones(1)), of_plan, BATCH, torch.device("cpu"))
        generator = torch.Generator().manual_seed(1)
        labels, outputs = Tagger.samples(BATCH, generator)[1], torch.randn(BATCH, 4, 6, generator=generator)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loss.begin(labels.clamp(min=-100 if of_plan else 0))
            loss.part([outputs], 0, BATCH)
        return [str(warning.message) for warning in caught]

    def test_warns_of_a_loss_that_is_no_mean(self):
        cross_entropy = nn.functional.cross_entropy
        self.assertEqual(self.said(cross_entropy), [])
        self.assertEqual(self.said(cross_entropy, ignore_index=-100), [])
        said, = self.said(functools.partial(cross_entropy, reduction="sum"))
        self.assertRegex(said, "^loss_fn gives .* for 10 samples, and .* is the mean of what it gives for their halves: steps are "
                               "not those of one process\n  hint: the mean over the samples$")
        said, = self.said(lambda outputs, labels: cross_entropy(outputs[..., :-1], labels[:, 1:]), ignore_index=-100)
        self.assertRegex(said, "hint: the mean over the labels that are not -100$")

    def test_refuses_shifted_labels_of_which_some_do_not_count(self):
        with self.assertRaises(agpcs.UsageError) as raised:
            self.said(nn.functional.cross_entropy, ignore_index=-100, next_token="tokens")
        self.assertIn("the targets have labels of -100, which do not count, and the plan's labels are the tokens that follow",
                      str(raised.exception))


class Older(unittest.TestCase):
    @unittest.skipIf(NEWER, "PyTorch is 2.6 or newer")
    def test_an_older_pytorch_is_refused(self):
        with self.assertRaises(agpcs.Error) as raised:
            agpcs.torch.Job(Mlp(), "model.plan", nn.functional.cross_entropy, optimizer_of, [])
        self.assertEqual(str(raised.exception), "agpcs.torch.Job needs PyTorch 2.6 or newer, whose exporter it uses; this is "
                                                f"{torch.__version__}")

    @unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
    def test_a_process_without_a_process_group_is_refused(self):
        with self.assertRaises(agpcs.UsageError) as raised:
            agpcs.torch.Job(Mlp(), "model.plan", nn.functional.cross_entropy, optimizer_of, [])
        self.assertIn("agpcs.torch.Job needs torch.distributed", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
