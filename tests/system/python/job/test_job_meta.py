#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job of a module without values: each rank gets those of its stage, from files or by a function."""

import functools
import hashlib
import json
import os
import pathlib
import sys
import tempfile
import unittest
import warnings
from unittest import mock

from cases import build, gathered, on_ranks
from job_cases import CLUSTER, TWO, Mlp, batches, exported, optimizer_of, plan_of

try:
    import safetensors.torch
except ImportError:
    print(f"skipped: {sys.executable} has no safetensors")
    sys.exit(77)
import torch
from torch import nn
from torch.distributed import checkpoint

import agpcs
import agpcs.torch
from agpcs import _agpcs
from agpcs._job import weights as files
from agpcs._job.memory import state_bytes

STEPS, WIDTH, TIMES = 3, 16, 6


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("angles", torch.empty(TIMES, WIDTH), persistent=False)
        self.reset_buffers()

    def reset_buffers(self):
        self.angles.copy_(torch.cos(torch.arange(TIMES).unsqueeze(1) / torch.arange(1, WIDTH + 1)))

    def forward(self, x):
        q, k, v = (part.unsqueeze(1) for part in self.qkv(self.norm(x)).split(WIDTH, 2))
        q, k = q * self.angles, k * self.angles
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1))


class Decoder(nn.Module):
    """A tied head, buffers that no state has, one that each stage reads, and one that nothing reads."""

    def __init__(self):
        super().__init__()
        self.table, self.layers = nn.Embedding(20, WIDTH), nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, 20, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.tensor([0.5] * WIDTH))
        self.register_buffer("made", torch.tensor(3))

    def forward(self, tokens):
        x = self.table(tokens) * self.scale
        for layer in self.layers:
            x = layer(x) * self.scale
        return self.head(x[:, -1])

    @staticmethod
    def samples(count, generator):
        return torch.randint(0, 20, (count, TIMES), generator=generator), torch.randint(0, 20, (count,), generator=generator)


def on_meta(kind=Decoder):
    with torch.device("meta"):
        return kind()


def set_buffers(module):
    if isinstance(module, Layer):
        module.reset_buffers()


def initialize(module):
    set_buffers(module)
    if isinstance(module, Decoder):
        module.scale.fill_(0.5)
        module.made.fill_(3)
    elif hasattr(module, "reset_parameters"):
        module.reset_parameters()


def initialize_all_but_the_table(module):
    if not isinstance(module, nn.Embedding):
        initialize(module)


def job_of(plan, model=None, **options):
    return agpcs.torch.Job(on_meta() if model is None else model, plan, nn.functional.cross_entropy, optimizer_of,
                           batches(Decoder, 1)[0], **options)


def losses_of(job):
    return [job.step(batch).item() for batch in batches(Decoder, STEPS)]


def by_one_process(rank):
    model, losses = build(Decoder), []
    optimizer = optimizer_of(model.parameters())
    for tokens, labels in batches(Decoder, STEPS):
        optimizer.zero_grad()
        losses.append(nn.functional.cross_entropy(model(tokens), labels))
        losses[-1].backward()
        optimizer.step()
    return [loss.item() for loss in losses]


def from_files(rank, plan, shards, path):
    """Of a job of `shards`, and of one of the checkpoint of that at `path`: (losses, the names that it read, those that
    have values, whether its state was the files')."""
    found, names, read = [], [], files.Safetensors.read

    def reading(self, wanted):
        names.extend(wanted)
        read(self, wanted)

    for weights in (shards, path):
        model = on_meta()
        with mock.patch.object(files.Safetensors, "read", reading):
            job = job_of(plan, model, weights=weights, init=set_buffers)
        live = sorted(name for name, tensor in model.named_parameters() if not tensor.is_meta)
        state, wanted = job.state_dict(), build(Decoder).state_dict()
        same = [*state] == [*wanted] and all(torch.equal(state[name], wanted[name]) for name in wanted)
        if weights is shards:
            job.save(path)
        found.append((losses_of(job), live, same))
    return found, sorted(names)


def by_init(rank, plan):
    """State and losses of a job that makes its own values, and that its caller's random numbers stay."""
    before = torch.random.get_rng_state()
    job = job_of(plan, init=initialize, seed=5)
    assert torch.equal(before, torch.random.get_rng_state())
    return {name: tensor.numpy() for name, tensor in job.state_dict().items()}, losses_of(job)


def begins_apart(rank, plan):
    """The state of a job whose module has values of its own in one layer, which were made by other random numbers on each rank."""
    model = on_meta()
    torch.manual_seed(rank)
    model.layers[1] = Layer()
    return {name: tensor.numpy() for name, tensor in job_of(plan, model, init=initialize, seed=5).state_dict().items()}


def in_parts(rank, plan, shards):
    """By a plan whose ranks divide parameters: losses of jobs that read `shards` and that make values, whether their states are those
    that were asked for, and the names of each time that files were read."""
    names, read, found = [], files.Safetensors.read, []

    def reading(self, wanted):
        names.append(set(wanted))
        read(self, wanted)

    made = job_of(plan_of(Decoder, "a/0:1,b/0:1"), init=initialize, seed=5).state_dict()
    read_ones, made_ones = {"weights": shards, "init": set_buffers}, {"init": initialize, "seed": 5}
    for options, wanted in ((read_ones, build(Decoder).state_dict()), (made_ones, made)):
        with mock.patch.object(files.Safetensors, "read", reading):
            job = job_of(plan, **options)
        state = job.state_dict()
        same = all(torch.equal(state[name], wanted[name]) for name in wanted)
        found.append((losses_of(job), same))
    return found, names


def switching(rank, plans):
    """Losses of a job that makes its own values, a step by each plan; that it has those of its stage alone; its state."""
    model = on_meta()
    job, losses, held = job_of(plans[0], model, init=initialize, seed=5), [], []
    for plan, batch in zip(plans, batches(Decoder, len(plans))):
        job.switch(plan)
        losses.append(job.step(batch).item())
        live = [not tensor.is_meta for tensor in model.parameters()]
        held.append(not any(live) if rank in plan.idle_ranks else all(live) == all(stage.idle for stage in plan.stages[1:]))
    return losses, held, {name: tensor.numpy() for name, tensor in job.state_dict().items()}


def refused(rank, plan, cases):
    """What a job says to each of `cases`, (module, options)."""
    said = []
    for make, options in cases:
        try:
            job_of(plan, make(), **options)
            said.append("ok")
        except (agpcs.Error, OSError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def write(folder, state, shards=1):
    """Writes a state as Hugging Face does."""
    names = list(state)
    if shards == 1:
        safetensors.torch.save_file(state, folder / "model.safetensors")
        return folder
    weight_map = {name: f"model-{i * shards // len(names) + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        safetensors.torch.save_file({name: state[name] for name in names if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


class Meta(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.state = {name: tensor.clone() for name, tensor in build(Decoder).state_dict().items()}

    def new(self, name):
        (self.folder / name).mkdir()
        return self.folder / name

    def near(self, found, wanted):
        for a, b in zip(found, wanted, strict=True):
            self.assertLess(abs(a - b), 1e-4 * abs(b), (found, wanted))

    def test_reads_what_its_stage_needs(self):
        del self.state["head.weight"]  # Hugging Face writes a tied tensor once
        shards = write(self.new("shards"), self.state, 4)
        results = on_ranks(from_files, plan_of(Decoder, TWO), shards, str(self.folder / "job"))
        losses, = on_ranks(by_one_process, ranks=1)
        for result, others in zip(results, ("layers.1.qkv.weight", "layers.0.qkv.weight")):
            self.assertNotIsInstance(result[0], str, result)
            for found, live, same in result[0]:
                self.near(found, losses)
                self.assertTrue(same)
                self.assertNotIn(others, live)
            self.assertEqual({*result[1]} - {"scale", "made"}, {*live})
        first, second = ({*result[0][0][1]} for result in results)
        self.assertEqual(first & second, {"table.weight"})
        self.assertEqual(first | second, {name for name, _ in Decoder().named_parameters()})

    def test_knows_files_of_safetensors_and_checkpoints(self):
        del self.state["head.weight"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # this is one process
            checkpoint.save(self.state, checkpoint_id=self.new("plain"), no_dist=True)
            checkpoint.save({"model": self.state, "step": 3}, checkpoint_id=self.new("nested"), no_dist=True)
        one = write(self.new("one"), self.state)
        for path in (one, one / "model.safetensors", write(self.new("shards"), self.state, 3), self.folder / "plain",
                     self.folder / "nested"):
            source = files.opened(path)
            self.assertEqual({name: (entry.shape, entry.dtype) for name, entry in source.entries.items()},
                             {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self.state.items()})
            found = {name: torch.zeros_like(tensor) for name, tensor in self.state.items() if name.startswith("layers.1")}
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                source.read(found)
            for name, tensor in found.items():
                self.assertTrue(torch.equal(tensor, self.state[name]), (path, name))

    def test_makes_values_that_no_plan_changes(self):
        expected = Decoder()
        for name, module in expected.named_modules():
            torch.manual_seed(int.from_bytes(hashlib.sha256(f"5:{name}".encode()).digest()[:8], "big") >> 1)
            if name != "head":  # its tensor is the table's
                initialize(module)
        losses = []
        for layout in (TWO, "a/0"):
            plan = plan_of(Decoder, layout)
            for result in on_ranks(by_init, plan, ranks=plan.ranks):
                self.assertNotIsInstance(result[0], str, result)
                for name, tensor in expected.state_dict().items():
                    self.assertTrue(torch.equal(tensor, torch.as_tensor(result[0][name])), name)
                losses.append(result[1])
        for found in losses[1:]:
            self.near(found, losses[0])

    def test_fills_parameters_that_ranks_divide_bucket_by_bucket(self):
        plan = gathered(plan_of(Decoder, "a/0:1,b/0:1", all_reduce="ring"), 3, 1, model=exported(Decoder), cluster=CLUSTER)
        buckets = [{name for name in group.parameters} for group in plan.groups]
        self.assertGreater(len(buckets), 3)
        losses, = on_ranks(by_one_process, ranks=1)
        read = set()
        for result in on_ranks(in_parts, plan, write(self.new("shards"), self.state, 4)):
            self.assertNotIsInstance(result[0], str, result)
            (found, same), (_, same_made) = result[0]
            self.near(found, losses)
            self.assertTrue(same and same_made)
            named = [names & set().union(*buckets) for names in result[1]]
            self.assertTrue(all(any(names <= bucket for bucket in buckets) for names in named), named)
            read = read.union(*named)
        self.assertEqual(read, set().union(*buckets))
        torch.manual_seed(0)
        wanted = Layer().state_dict()
        for result in on_ranks(begins_apart, plan):
            self.assertNotIsInstance(result, tuple, result)
            for name, tensor in wanted.items():
                self.assertTrue(torch.equal(tensor, torch.as_tensor(result[f"layers.1.{name}"])), name)

    def test_switches_to_another_plan(self):
        two = plan_of(Decoder, TWO)
        first, second = (plan_of(Decoder, device, devices=("a/0", "b/0"), idle_ranks=True) for device in ("a/0", "b/0"))
        wanted, _ = on_ranks(switching, [two] * STEPS)
        for plans in ([two, plan_of(Decoder, "a/0:3,b/0:1"), two], [first, second, two]):
            for losses, held, state in on_ranks(switching, plans):
                self.near(losses, wanted[0])
                self.assertTrue(all(held), held)
                for name, tensor in wanted[2].items():
                    self.assertLess(abs(tensor - state[name]).max(), 1e-4, name)

    def test_refuses_by_name_what_does_not_fit(self):
        bias, table = "layers.1.out.bias", "table.weight"
        state, plan = self.state, plan_of(Decoder, TWO)
        lacking = {name: tensor for name, tensor in state.items() if name != bias}
        variants = {"lacking": lacking, "extra": {**state, "tail": torch.zeros(2)}, "shape": {**state, bias: torch.zeros(9)},
                    "type": {**state, bias: state[bias].half()}, "tied": {**state, "head.weight": state[table] + 1}}
        at = {name: write(self.new(name), variant) / "model.safetensors" for name, variant in variants.items()}
        damaged, index = self.new("damaged") / "model.safetensors", write(self.new("index"), state, 2)
        damaged.write_bytes(at["tied"].read_bytes()[:-7])
        (index / "model-00002-of-00002.safetensors").unlink()
        empty = self.new("empty")
        outside = write(self.new("outside"), state, 2)
        listed = outside / "model.safetensors.index.json"
        listed.write_text(listed.read_text().replace("model-00002", "../index/model-00002"))
        os.mkfifo(self.folder / "pipe")
        cases = [
            ({}, "UsageError: 'table.weight' has no values: it is on the device 'meta'\n  hint: weights=FILE_OR_FOLDER reads "
                 "them, init=FUNCTION makes them, on each rank those of its stage"),
            ({"weights": at["lacking"], "init": set_buffers},
             f"PlanMismatch: {at['lacking']}: has no '{bias}', which is a tensor of float32 and shape 16 of the module"),
            ({"weights": at["extra"], "init": set_buffers},
             f"PlanMismatch: {at['extra']}: has 'tail', a tensor of float32 and shape 2, and the module has no such name"),
            ({"weights": at["shape"], "init": set_buffers},
             f"PlanMismatch: {at['shape']}: '{bias}' is a tensor of float32 and shape 9, and the module's is a tensor of "
             "float32 and shape 16"),
            ({"weights": at["type"], "init": set_buffers},
             f"PlanMismatch: {at['type']}: '{bias}' is a tensor of float16 and shape 16, and the module's is a tensor of "
             "float32 and shape 16\n  hint: model.to(torch.float16) before the plan"),
            ({"weights": at["tied"], "init": set_buffers},
             f"PlanMismatch: {at['tied']}: 'table.weight' and 'head.weight' are one tensor of the module, and two different "
             "ones here"),
            ({"weights": at["tied"]},
             "UsageError: the buffer 'layers.0.angles' has no values, and is not persistent, so it is in no file\n  hint: "),
            ({"weights": damaged, "init": set_buffers}, f"InvalidInput: {damaged}: is damaged: "),
            ({"weights": index, "init": set_buffers}, "FileNotFoundError: "),
            ({"weights": outside, "init": set_buffers},
             f"InvalidInput: {listed}: names the file '../index/model-00002-of-00002.safetensors', which is not in its folder"),
            ({"weights": self.folder / "pipe", "init": set_buffers}, f"InvalidInput: {self.folder}/pipe: is not a file"),
            ({"weights": empty, "init": set_buffers}, f"UsageError: '{empty}' has no weights\n  hint: "),
            ({"init": initialize_all_but_the_table},
             "UsageError: init left the parameter 'table.weight' of Embedding without values\n  hint: "),
        ]
        cases = [((on_meta, options), said) for options, said in cases]
        cases.append(((functools.partial(build, Decoder), {"init": initialize}),
                      "UsageError: init is for a module without values, and this one has all of its own\n  hint: make it under "
                      "torch.device('meta')"))
        results = on_ranks(refused, plan, [case for case, _ in cases])
        for said, (_, wanted) in zip(zip(*results), cases, strict=True):
            self.assertTrue(any(text.startswith(wanted) for text in said), (said, wanted))
            for text in said:  # a rank that has nothing against it names the one that has
                self.assertTrue(wanted in text or text.startswith("Error: rank"), (text, wanted))


SMALL = """\
device_kinds:
  cpu: {peak: {fp32: 40 GFLOPS}, memory: MEMORY B, memory_bandwidth: 10 GB/s, launch_overhead: 5 us}
hosts: [{name: a, devices: {kind: cpu, count: 2}, interconnect: {kind: tcp, bandwidth: 2 GB/s, latency: 20 us}}]
training: {batch: 10, optimizer: {kind: sgd}}
"""


def begins(rank, jobs):
    """What jobs with AdamW by plans on clusters say, or the bytes that their optimizers have after a step."""
    said = []
    for plan, cluster in jobs:
        try:
            with mock.patch.object(_agpcs, "plan_command", wraps=_agpcs.plan_command) as command:
                job = agpcs.torch.Job(build(Mlp), plan, nn.functional.cross_entropy, torch.optim.AdamW, batches(Mlp, 1)[0],
                                      cluster=cluster)
            assert command.call_count == (1 if cluster else 2), "the plan is read once, and again if its cluster file is another one"
            job.step(batches(Mlp, 1)[0])
            said.append(kept_by(job.optimizer))
        except agpcs.Error as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def kept_by(optimizer):
    return sum(value.nbytes for state in optimizer.state.values() for value in state.values()
               if isinstance(value, torch.Tensor) and value.dim() > 0)


class Memory(unittest.TestCase):
    def test_of_another_optimizer_is_compared_with_what_the_plan_left(self):
        model, folder = exported(Mlp), tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)

        def planned(memory):
            file = pathlib.Path(folder.name, f"{memory}.yaml")
            file.write_text(SMALL.replace("MEMORY", str(memory)))
            return agpcs.plan(model, file, layout="a/0|a/1", micro_batches=2, bound=False), file

        plan, file = planned(2**30)
        memory = json.loads(plan._command("json", [plan, "--model", model, "--cluster", file]))["memory"]
        kept = [2 * 4 * sum(sum(group.elements) for group in plan.groups if group.stage == stage.name) for stage in plan.stages]
        parts = ("parameters", "gradients", "activations", "transfers", "workspace")
        needs = [sum(of[part] for part in parts) + adam for of, adam in zip(memory, kept)]
        self.assertEqual([(of["capacity"], of["optimizer"]) for of in memory], [(2**30, 0)] * 2)
        most = needs.index(max(needs))
        self.assertNotEqual(*needs)
        changed, changed_file = planned(needs[most] - 2)
        changed_file.write_text(file.read_text())
        found = on_ranks(begins, [planned(needs[most]), planned(needs[most] - 1), (changed, changed_file), (changed, None)])
        of_plan = memory[most]["parameters"] + memory[most]["gradients"]
        text = (f"rank {most} needs {needs[most]} bytes of memory, and a/{most} has {needs[most] - 1}: the plan counts {of_plan} bytes "
                f"of parameters, gradients and state for sgd, and the job has {of_plan + kept[most]} with AdamW\n  hint: plan with the "
                "optimizer of the job, `training: {optimizer: ...}` of the cluster file")
        for rank, of_rank in enumerate(found):
            other = "" if rank == most else f"Error: rank {most} cannot begin: "
            self.assertEqual((of_rank[:2], of_rank[3]), ([kept[rank], f"{other}PlanMismatch: {text}"], kept[rank]))
            self.assertRegex(of_rank[2], "^PlanMismatch: the plan is not for this cluster: .*sha256")

    def test_within_autocast_parameters_and_gradients_have_their_own_bytes(self):
        model, folder = exported(Mlp), tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for layout, copies in (("a/0|a/1", 0), ("a/0,a/1", 2)):  # of bytes an element, while it travels in bf16
            def planned(memory):
                file = pathlib.Path(folder.name, f"{memory}.yaml")
                file.write_text(SMALL.replace("MEMORY", str(memory)).replace("40 GFLOPS", "40 GFLOPS, bf16: 40 GFLOPS"))
                return agpcs.plan(model, file, layout=layout, micro_batches=2, bound=False, precision="bf16", without=["state"]), file

            plan, file = planned(2**30)
            memory = json.loads(plan._command("json", [plan, "--model", model, "--cluster", file]))["memory"]
            needs = []
            for of, stage in zip(memory, [stage for stage in plan.stages for _ in stage.ranks]):
                elements = sum(sum(group.elements) for group in plan.groups if group.stage == stage.name)
                self.assertEqual((of["parameters"], of["gradients"], of["optimizer"]), (2 * elements, 2 * elements, 4 * elements))
                needs.append((4 + 4 + 8 + copies) * elements + sum(of[part] for part in ("activations", "transfers", "workspace")))
            most = needs.index(max(needs))
            for rank, (fits, said) in enumerate(on_ranks(begins, [planned(needs[most]), planned(needs[most] - 1)])):
                self.assertIsInstance(fits, int)
                self.assertIn(f"rank {most} needs {needs[most]} bytes of memory, and a/{most} has {needs[most] - 1}: " if rank == most or copies
                              else f"rank {most} cannot begin: ", said)

    def test_of_an_optimizer_is_what_it_has_after_a_step(self):
        for make in (functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), torch.optim.SGD, torch.optim.RMSprop,
                     functools.partial(torch.optim.AdamW, amsgrad=True, foreach=True), torch.optim.Adagrad):
            parameters = [nn.Parameter(torch.ones(3, 5)), nn.Parameter(torch.ones(7))]
            optimizer = make(parameters)
            before = state_bytes(optimizer)
            self.assertTrue(all(parameter.grad is None for parameter in parameters))
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            self.assertEqual((before, state_bytes(optimizer)), (kept_by(optimizer),) * 2, optimizer)
        for make in (torch.optim.LBFGS, torch.optim.Adafactor):
            with self.assertWarnsRegex(UserWarning, f"^{make.__name__} takes no step on parameters without values"):
                self.assertIsNone(state_bytes(make(parameters)))


if __name__ == "__main__":
    unittest.main()
