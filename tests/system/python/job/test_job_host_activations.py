#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job by plans that keep activations in the memory of hosts: it trains to the bit as with activations on devices, and the
devices have less."""

import functools
import json
import pathlib
import tempfile
import types
import unittest
from unittest import mock

import numpy

from cases import build, divided, on_ranks
from job_cases import (CLUSTER, NEWER, STEPS, TWO, TWO_BY_TWO, FOUR, Mlp, OneResNet, TiedHead, Transformer, UNet, batches, exported, job_of,
                       plan_of)
from switching import Switches, Training, adamw, by_one_process
from test_job_dropout import Drops

import torch
from torch import nn

import agpcs
from agpcs._job import host_activations
from agpcs._job.host_activations import HostActivations
from agpcs._job.replan import Replanning
from agpcs._job.segments import _read_late

IN_STAGES = {"s0": "10,19,8", "s1": "8,19,8"}  # of a Transformer: what makes q, k and v; attention; all but the last norms


def moved(plan, segments, again):
    """The plan with activations of `segments`, by stage ("9,4"; "": all at once), in the memory of hosts, and computed `again` or not."""
    lines = plan.text.splitlines()
    for i, line in enumerate(lines):
        name = line.split()[1] if line.startswith("stage ") else None
        if name in segments:
            own = f" segments={segments[name]}" if segments[name] else ""
            lines[i] = line.replace(" recompute=no", f" recompute={'yes' if again else 'no'}{own} activations-in=host")
    return agpcs.Plan("\n".join(lines) + "\n")


def here(plan, segments):
    """The plan with these segments computed again, on devices."""
    return agpcs.Plan(moved(plan, segments, True).text.replace(" activations-in=host", ""))


def trained(rank, kind, plan, **options):
    """(losses, final state, bytes that were copied out and in)."""
    copied = {"out": 0, "in": 0}

    class Turns(host_activations._Turns):
        @staticmethod
        def out(pairs):
            copied["out"] += sum(source.numel() for source, _ in pairs)
            return host_activations._Turns.out(pairs)

        @staticmethod
        def come(pairs):
            copied["in"] += sum(source.numel() for source, _ in pairs)
            return host_activations._Turns.come(pairs)

    with mock.patch.object(host_activations, "_Turns", Turns):
        training = Training(kind, plan, adamw, **options)
    training.train(STEPS)
    return training.losses, training.state(), (copied["out"], copied["in"])


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Trains(Switches):
    def check_same(self, kind, plan, segments, **options):
        """The same to the bit: what is not recomputed as the plan itself, what is as the same segments on devices."""
        for again in (False, True):
            with self.subTest(kind=kind.__name__, again=again):
                work = functools.partial(trained, **options)
                wanted = on_ranks(work, kind, here(plan, segments) if again else plan, ranks=plan.ranks)
                found = on_ranks(work, kind, moved(plan, segments, again), ranks=plan.ranks)
                for (losses, state, copies), (known, final, none) in zip(found, wanted):
                    self.assertNotIsInstance(losses, str, state)
                    self.assertEqual(losses, known)
                    self.assertEqual(list(state), list(final))
                    for name, value in state.items():
                        numpy.testing.assert_array_equal(value, final[name], name)
                    self.assertEqual((copies[0], none), (copies[1], (0, 0)))
                self.assertGreater(max(losses) - min(losses), 0.01, "nothing was trained")
                self.assertGreater(sum(copies[0] for _, _, copies in found), 0)

    def test_one_stage(self):
        self.check_same(Transformer, plan_of(Transformer, "a/0", 3), {"s0": "10,19,10,19,8"})
        self.check_same(Mlp, plan_of(Mlp, "a/0", 1), {"s0": "3x4"})

    def test_pipelines(self):
        self.check_same(Transformer, plan_of(Transformer, TWO), IN_STAGES)
        self.check_same(Mlp, plan_of(Mlp, TWO), {"s0": "1,2", "s1": "2,3"})

    def test_replicas_in_a_pipeline_of_which_a_stage_keeps_all_on_devices(self):
        self.check_same(TiedHead, plan_of(TiedHead, TWO_BY_TWO), {"s1": "1,2"})

    def test_replicas_that_divide_gradients(self):
        plan = divided(plan_of(Transformer, "a/0,b/0", 2, all_reduce="ring"), 5, 3, level="gradients")
        self.check_same(Transformer, plan, {"s0": "10,19,10"})

    def test_a_unet_whose_skips_pass_segments_by(self):
        self.check_same(UNet, plan_of(UNet, FOUR), {"s0": "3,2", "s1": "2x2", "s3": "2,1"})
        self.check_same(UNet, plan_of(UNet, "a/0"), {"s0": "4,5,4"})

    def test_batch_norm(self):
        self.check_same(OneResNet, plan_of(OneResNet, TWO), {"s0": "7,6,5", "s1": "4,7"})

    def test_dropout_by_sample(self):
        self.check_same(Drops, plan_of(Drops, TWO), {"s0": "12,28,10", "s1": "8,28,10"}, dropout="by-sample")

    def test_half_precision(self):
        self.check_same(Transformer, plan_of(Transformer, TWO), IN_STAGES, autocast="bf16")

    def test_compiled(self):
        self.check_same(Transformer, plan_of(Transformer, TWO), {"s0": "10,19", "s1": "8,19"}, compile={"backend": "aot_eager"})

    def test_as_one_process_does(self):
        (wanted, final), = on_ranks(by_one_process, Transformer, adamw, STEPS, ranks=1)
        for again in (False, True):
            plan = moved(plan_of(Transformer, TWO), IN_STAGES, again)
            for losses, state, _ in on_ranks(trained, Transformer, plan, ranks=plan.ranks):
                self.assert_same(losses, wanted, state, final)

    def test_switches_to_and_from_activations_on_devices(self):
        plans = [plan_of(Transformer, layout) for layout in (TWO, "a/0,b/0")]
        self.check(Transformer, [moved(plans[0], IN_STAGES, True), plans[1], moved(plans[1], {"s0": "10,19,8"}, False),
                                 moved(plans[0], IN_STAGES, False), plans[0]], adamw)

    def test_goes_on_from_checkpoints(self):
        plan, other = plan_of(Transformer, TWO), plan_of(Transformer, "a/0,b/0")
        plans = [moved(plan, IN_STAGES, False), other, moved(other, {"s0": "10,19"}, True), plan]
        self.check_checkpoints(Transformer, plans, adamw)


class Deep(nn.Module):
    """Most of its memory are activations."""

    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(9)), nn.Linear(64, 4)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x.mean(1))

    @staticmethod
    def samples(count, generator):
        return torch.randn(count, 128, 64, generator=generator), torch.randint(0, 4, (count,), generator=generator)


WITH_HOSTS = CLUSTER.replace("launch_overhead: 5 us", "launch_overhead: 5 us, host_link: {bandwidth: 12 GB/s}").replace(
    "count: 2}\n", "count: 2}\n    memory: 4 GB\n")
PARTS = ("gradients", "activations", "transfers", "workspace")  # of what lives in a step; the others are there before it


def predicted(plan):
    """By rank: (bytes that live in a step at the most, bytes in the memory of the host)."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = pathlib.Path(folder, "cluster.yaml")
        cluster.write_text(WITH_HOSTS)
        memory = json.loads(plan._command("json", [plan, "--model", exported(Deep), "--cluster", cluster]))["memory"]
    return [(sum(of[part] for part in PARTS), of.get("host", 0)) for of in memory]


def measured(rank, plan):
    """The same of a job's second step; the profiler is told of what the device's side allocates."""
    taken = []

    class Turns(host_activations._Turns):
        @staticmethod
        def host_memory(size):
            taken.append(size)
            return host_activations._Turns.host_memory(size)

    with mock.patch.object(host_activations, "_Turns", Turns):
        job = job_of(Deep, plan)
    batch, = batches(Deep, 1)
    job.step(batch)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        job.step(batch)
    changes = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = most = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most, sum(taken)


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Bytes(unittest.TestCase):
    def test_devices_have_less_by_as_much_as_the_plan_says(self):
        """Within 1% on one stage, and within 7% in a pipeline. The host has the plan's bytes exactly."""
        one, two = plan_of(Deep, "a/0", 2, cluster=WITH_HOSTS), plan_of(Deep, TWO, cluster=WITH_HOSTS)
        for plan, segments, tolerance in ((one, {"s0": "2x6,4"}, 0.01), (one, {"s0": "2x10,3"}, 0.01),
                                          (two, {"s0": "2x3,3", "s1": "2x3,1"}, 0.07)):
            for again in (False, True):
                with self.subTest(segments=segments, again=again):
                    plans = [here(plan, segments) if again else plan, moved(plan, segments, again)]
                    of_plans = zip(*map(predicted, plans))
                    of_jobs = zip(*(on_ranks(measured, one, ranks=one.ranks) for one in plans))
                    for ((most, _), (less, in_host)), ((found, none), (left, taken)) in zip(of_plans, of_jobs):
                        self.assertGreater(most - less, 0.15 * most)
                        self.assertLess(abs((found - left) / (most - less) - 1), tolerance, (found, left, most, less))
                        self.assertGreater(in_host, 0)
                        self.assertEqual((taken, none), (in_host, 0))


# It has no memory for all that the layers keep.
SHORT = """\
device_kinds:
  gpu: {memory: 3 MB, memory_bandwidth: 100 GB/s, peak: {fp32: 5 TFLOPS}, launch_overhead: 0, host_link: {bandwidth: 12 GB/s}}
hosts: [{name: a, devices: {kind: gpu}, memory: 1 GB}]
training: {batch: 10, optimizer: {kind: sgd, momentum: 0.9}}
"""


def losses_of(rank, plan, cluster):
    job = job_of(Deep, plan, cluster=cluster)
    return [job.step(batch).item() for batch in batches(Deep, 3)], None


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Plans(unittest.TestCase):
    def test_where_memory_is_short_a_plan_keeps_activations_in_hosts_and_a_job_fits(self):
        exported(Deep)  # here, and not on each rank
        with tempfile.TemporaryDirectory() as folder:
            cluster = pathlib.Path(folder, "cluster.yaml")
            cluster.write_text(SHORT)
            plan = agpcs.torch.plan(build(Deep), batches(Deep, 1)[0], cluster=cluster, bound=False, micro_batches=1)
            self.assertEqual([stage.activations_in for stage in plan.stages], ["host"])
            (found, said), = on_ranks(losses_of, plan, cluster, ranks=1)
            self.assertIsNone(said, found)
        (wanted, _), = on_ranks(losses_of, plan_of(Deep, "a/0", 1), None, ranks=1)
        self.assertEqual(found, wanted)

    def test_what_a_new_plan_leaves_out_is_what_the_running_one_did(self):
        plan = agpcs.Plan(plan_of(Mlp, TWO).text)
        state = agpcs.Plan(plan.text.replace(" operators=", " state-in=host operators=", 1))
        for running, wanted in ((plan, ("state", "offload")), (state, ("state", "activations")), (moved(plan, {"s0": "2"}, False), ("state",))):
            self.assertEqual(Replanning._left_out(types.SimpleNamespace(_running=running, may_divide=True)), wanted)


class Stage:
    """Segments that something is computed in, one after the other. The first reads `x`, and `weight` is the parameter."""

    def __init__(self):
        self.host, self.taken = HostActivations(torch.device("cpu")), []
        self.weight, self.x = nn.Parameter(torch.randn(8, 8)), torch.randn(4, 8)
        self.moving = self.host.begun([self.weight, self.x])
        self.memories, self.on_device = [], []  #: what segments keep something in; how many have some of that on the device in each

    def segment(self, compute, *values):
        """(what a segment computes, the memories that it keeps something in)."""
        with self.moving.saving():
            made = compute(*values)
        kept = self.moving._alive(self.moving._segment)
        self.memories += kept
        self.on_device.append(len({memory.segment for memory in self.memories if memory.here is not None}))
        self.moving.end([])
        return made, kept

    def gradient(self, loss):
        loss.backward()
        found, self.weight.grad = self.weight.grad, None
        return found


def five_segments(rank):
    """(how many segments have something on the device in each of them, whether nothing is there between the passes, how many pieces of the
    host's memory are free at the end, whether the gradient is right)."""
    stage = Stage()

    def layer(x):
        return torch.tanh(x @ stage.weight).sin()

    value = stage.x
    for _ in range(5):
        value, _ = stage.segment(layer, value)
    stage.moving.end_forward([value])
    between = all(memory.here is None for memory in stage.memories)
    found = stage.gradient(value.sum())
    wanted = stage.gradient(functools.reduce(lambda x, _: layer(x), range(5), stage.x).sum())
    return stage.on_device, between, len(stage.host._all_free()), torch.equal(found, wanted)


def shared_memory(rank):
    """(the segments with which memory goes that two segments keep, bytes of it, of the host's memory, whether the gradient is right)."""
    stage = Stage()
    first, (memory,) = stage.segment(lambda x: (x @ stage.weight).exp(), stage.x)  # exp keeps its result
    before, size = memory.segment, first.nbytes
    second, kept = stage.segment(lambda x: x.t()[1:3].square(), first)  # square keeps a view of that
    del first
    third, _ = stage.segment(lambda x: x.sum() * 2, second)
    assert kept == [memory] and memory.here is None, kept
    stage.moving.end_forward([third])
    found = stage.gradient(third)
    wanted = stage.gradient((stage.x @ stage.weight).exp().t()[1:3].square().sum() * 2)
    return before, kept[0].segment, size, [one for one, *_ in stage.host._all_free()], torch.equal(found, wanted)


def half_precision(rank):
    """(bytes that two linear layers within torch.autocast keep and that leave the device, whether the gradient is right)."""
    stage = Stage()

    def layers(x):
        with torch.autocast("cpu", torch.bfloat16):
            return nn.functional.linear(nn.functional.linear(x, stage.weight), stage.weight).sum()

    value, kept = stage.segment(layers, stage.x)
    sizes = [memory.here.nbytes() for memory in kept]
    stage.moving.end_forward([value])
    return sizes, torch.equal(stage.gradient(value), stage.gradient(layers(stage.x)))


def what_leaves(rank):
    """How many memories leave the device of a segment's value that it keeps: of one that it keeps alone, of one that is read behind all
    segments through a view, and of one that nobody keeps any more."""
    found = []
    for read, kept in ((False, True), (True, True), (False, False)):
        stage = Stage()
        with stage.moving.saving():
            value = (stage.x @ stage.weight).exp()
        if not kept:
            value = value.detach()
        stage.moving.end([value.t()] if read else [])
        stage.moving.leave()
        found.append(sum(memory.here is None for memory in stage.moving._alive(0)))
    return found


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Passes(unittest.TestCase):
    """What a pass has on the device, and in the host. Ranks compute it, as this process must not."""

    def test_two_segments_have_something_on_the_device(self):
        self.assertEqual(on_ranks(five_segments, ranks=1), [([1, 2, 2, 2, 2], True, 9, True)])

    def test_memory_that_several_segments_keep_is_copied_once_and_goes_with_the_last_of_them(self):
        self.assertEqual(on_ranks(shared_memory, ranks=1), [(0, 1, 128, [128], True)])

    def test_half_precision_copies_of_weights_are_made_again(self):
        self.assertEqual(on_ranks(half_precision, ranks=1), [([64, 64], True)])  # their inputs, 4 x 8

    def test_what_is_read_behind_the_segments_or_through_a_view_there_is_late(self):
        graph, aten = torch.fx.Graph(), torch.ops.aten
        made = [graph.placeholder("x")]
        for target, more in ((aten.sin, ()), (aten.view, ([-1],)), (aten.exp, ()), (aten.cos, ())):
            made.append(graph.call_function(target.default, (made[-1], *more)))
        _, sine, view, exponential, cosine = made
        graph.output((cosine,))
        numbers = {sine: 0, view: 0, exponential: 1, cosine: 2}
        for count, late in ((1, {sine, view, exponential, cosine}), (2, {exponential, cosine}), (3, {cosine})):
            self.assertEqual(_read_late(list(graph.nodes), numbers, count), late)

    def test_what_is_read_later_stays_and_what_nobody_keeps_is_not_copied(self):
        self.assertEqual(on_ranks(what_leaves, ranks=1), [[1, 0, 0]])


if __name__ == "__main__":
    unittest.main()
