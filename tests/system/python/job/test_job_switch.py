#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job: another plan between two steps, beside one process that knows of no plan."""

import contextlib
import functools
import io
import json
import multiprocessing
import os
import pathlib
import signal
import tempfile
import unittest
from unittest import mock

from cases import LIMIT, build, divided, on_ranks
from emulated import CALM, drifting
from switching import EACH, SAME, Switches, Training, adamw, by_one_process, sgd
from job_cases import BATCH, CLUSTER, FOUR, NEWER, TWO, TWO_BY_TWO, Mlp, TiedHead, batches, exported, job_of, plan_of

import torch
import torch.distributed as dist
from torch import nn

import agpcs
import agpcs.torch
from agpcs._job.memory import state_bytes
from agpcs._job.replan import Replanning, plan_on
from agpcs._torch_watch import Change

SLOW_A = CLUSTER.replace("hosts:", "  slow: {peak: {fp32: 10 GFLOPS, bf16: 10 GFLOPS}, memory: 4 GiB, "
                         "memory_bandwidth: 2.5 GB/s, launch_overhead: 20 us}\nhosts:").replace("{kind: cpu,", "{kind: slow,", 1)
ALIKE = CLUSTER.replace("launch_overhead: 5 us", "launch_overhead: 2 ms").replace(
    "momentum: 0.9}", "momentum: 0.9}, statistics_every: 1")
UNEVEN = "a/0:3,b/0:1"  # one stage of two replicas
THREE = "a/0:5,a/1:3,b/0:2"


class Normed(Mlp):
    """Its running statistics are buffers that steps change, and a bias does not train."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh())),
                                    nn.Linear(16, 4))
        self.layers[0].bias.requires_grad_(False)


def gentle(parameters):
    return torch.optim.SGD((parameter for _, parameter in parameters), lr=0.003, momentum=0.9)


def dividing(rank, plan, others, optimizer_of, path):
    """Losses of a job that saves a checkpoint and goes on, those of jobs by other plans that go on from it, the next from
    what the one before has saved; the final states; and the elements of which this rank kept a state by each plan."""
    results = []
    for number, plan in enumerate((plan, *others)):
        training = Training(Mlp, plan, optimizer_of, max_norm=0.5)
        if number > 0:
            training.rate.load_state_dict(training.job.load(f"{path}-{number - 1}"))
            training.losses += results[-1][0][:EACH]
        else:
            training.train()
        training.job.save(f"{path}-{number}", extra=training.rate.state_dict())
        training.train()
        kept = [value.numel() for state in training.job.optimizer.state.values() for key, value in state.items() if key != "step"]
        results.append((training.losses, training.state(), sum(kept), state_bytes(training.job.optimizer)))
    return results


def rounded(rank, *plans):
    """Losses by each plan."""
    results = []
    for plan in plans:
        training = Training(Mlp, plan, adamw)
        training.train()
        results.append(training.losses)
    return results


class Adam(torch.optim.Adam):
    """Who knows what it does."""


KINDS = {"RMSprop": {"momentum": 0.9, "centered": True}, "Adam": {"amsgrad": True}, "Adagrad": {"initial_accumulator_value": 0.1},
         "SGD": {}, "NAdam": {}, "RAdam": {}, "Adadelta": {}, "Adamax": {}, "ASGD": {"t0": 1, "lambd": 0.1}, "Rprop": {}}


def by_kinds(rank, plain, plan):
    """By the class of the optimizer, losses by a plan and those of a job that switches to it and back; what a job says of
    other classes."""
    losses, said = {}, []
    for name, options in KINDS.items():
        kind = functools.partial(getattr(torch.optim, name), lr=0.01, **options)
        whole, divided = Training(Mlp, plain, kind), Training(Mlp, plain, kind)
        whole.train(4)
        divided.train(1)
        for other, steps in ((plan, 2), (plain, 1)):
            divided.job.switch(other)
            divided.train(steps)
        losses[name] = whole.losses, divided.losses
    for kind in (Adam, torch.optim.LBFGS):
        try:
            Training(Mlp, plan, lambda parameters: kind([parameter for _, parameter in parameters]))
        except agpcs.Error as error:
            said.append(str(error))
    model = build(Mlp)
    model.layers[0].weight.data = model.layers[0].weight.data.t().contiguous().t()
    try:
        job_of(Mlp, plan, model)
    except agpcs.Error as error:
        said.append(str(error))
    return losses, said


def refusing(rank, kind, plan, others, after):
    """Losses of a job that does not take any of the plans `others`, and could not take the plan `after` at first; what was
    said; the final state."""
    calls, said = [], []

    def fails(parameters):
        calls.append(1)
        if rank == 1 and len(calls) == 2:
            raise ValueError("no optimizer today")
        return sgd(parameters)

    training = Training(kind, plan, fails)
    for other in (*others, after):
        training.train(1)
        before = dict(training.model.named_parameters())
        try:
            training.job.switch(other)
        except (agpcs.Error, ValueError, OSError) as error:
            said.append(f"{type(error).__name__}: {error}")
        assert all(before[name] is p for name, p in training.model.named_parameters()) and training.job.plan == plan
    training.train(1)
    training.job.switch(after)
    training.train(2)
    return training.losses, said, training.state()


def has_no_model(rank, plan):
    dist.barrier()
    if rank == 1:
        raise ValueError("no model today")
    agpcs.torch.Job(build(Normed), plan, nn.functional.cross_entropy, sgd, batches(Normed, 1)[0])


def begins_badly(rank, plan):
    def fails(parameters):
        if rank == 1:
            raise ValueError("no optimizer today")
        return sgd(parameters)

    agpcs.torch.Job(build(Normed), plan, nn.functional.cross_entropy, fails, batches(Normed, 1)[0])


def judged(rank, plan, model, cluster):
    """What is said, and which plans are found, of a rank that changes before anything is known; after calm steps, whose steps
    stay as they were; and whose steps take 20 times as long, while another change comes during the search."""
    data = json.loads(plan._command("json", [plan]))
    with contextlib.redirect_stderr(io.StringIO()) as said:
        replanning = Replanning(plan, data, model, cluster, None)
        found = []

        def change(rank, factor):
            replanning.drifted([Change("", "compute", rank, factor, replanning._steps - 8)])

        def look():
            assert not replanning.has_plan(), "a search has ended before it began"
            replanning._search.join()
            found.append(replanning.has_plan())

        change(1, 20.0)
        look()
        for _ in range(20):
            replanning.step_ended(0.5)
        change(1, 20.0)
        look()
        for _ in range(8):
            replanning.step_ended(10.0)
        change(1, 20.0)
        replanning.has_plan()
        change(0, 1.2)
        replanning._search.join()
        look()  # the first search was for other factors: this is the second
    return found, replanning._search is None and said.getvalue(), replanning._found


def lasting(rank, plan, folder, lost, kind):
    """Trains as a script does that torchrun starts: from the newest checkpoint, if there is one. Rank `lost` is killed in the
    middle of a step. Writes losses by step, and what ended the job."""
    ranks = plan.ranks
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store-{ranks}-{lost}", ranks), rank=rank, world_size=ranks)
    training, newest, said = Training(kind, plan, adamw), f"{folder}/newest", ""
    if os.path.exists(newest):
        extra = training.job.load(newest)
        training.losses += [None] * extra["step"]
        training.rate.load_state_dict(extra["rate"])
    try:
        while len(training.losses) < 3 * EACH:
            if rank == lost and len(training.losses) == 2 * EACH - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            training.train(1)
            if len(training.losses) % EACH == 0:
                training.job.save(newest, extra={"step": len(training.losses), "rate": training.rate.state_dict()})
    except agpcs.RankLost as error:
        said = str(error)
    pathlib.Path(folder, f"said-{ranks}").write_text(json.dumps([training.losses, said]))


def started(plan, folder, lost=None, kind=Mlp):
    """Runs `lasting` on a plan's ranks. Returns what the one that was not killed has written."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=lasting, args=(rank, plan, folder, lost, kind)) for rank in range(plan.ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT)
    assert all(process.exitcode is not None for process in processes), "a rank waits for one that is gone"
    return json.loads(pathlib.Path(folder, f"said-{plan.ranks}").read_text())


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Switch(Switches):
    def test_to_another_cut_and_to_uneven_replicas_and_back(self):
        two, other = plan_of(TiedHead, TWO), plan_of(TiedHead, TWO, cluster=SLOW_A)
        first, second = self.check(TiedHead, [two, other, plan_of(TiedHead, UNEVEN), two], adamw)
        self.assertLess(set(first[1]), set(first[0]), "the cut is where it was")
        self.assertEqual(set(first[2]), set(second[2]))
        self.assertEqual((first[0], second[0]), (first[3], second[3]))
        for before, after in zip(zip(first, second), (False, False, True, False)):
            self.assertEqual("layers.0.weight" in before[0] and "layers.0.weight" in before[1], after)
            self.assertTrue(all("table.weight" in held for held in before), "both ends read the table")

    def test_of_two_stages_of_two_replicas(self):
        plans = [plan_of(TiedHead, TWO_BY_TWO), plan_of(TiedHead, FOUR, 5),
                 plan_of(TiedHead, "a/0:1,a/1:1|b/0:3,b/1:1", cluster=SLOW_A)]
        held = self.check(TiedHead, plans, sgd, max_norm=0.5)
        self.assertEqual([names[0] == names[1] for names in zip(*held)], [True, False, True])

    def test_of_divided_state(self):
        plain = plan_of(Mlp, THREE, 1, all_reduce="ring")
        plans = [divided(plain, 5, 3, 0), divided(plain, 1, 0, 2), divided(plain, 2, 1, 3, level="gradients"), plain,
                 divided(plain, 0, 1, 0)]
        self.check(Mlp, plans, adamw, max_norm=0.5)
        stages = plan_of(TiedHead, TWO_BY_TWO, all_reduce="ring")
        self.check(TiedHead, [divided(stages, 3, 1, 0, 2), divided(stages, 1, 3, 2, 0, level="gradients"), plan_of(TiedHead, FOUR, 5),
                              divided(stages, 1, 1, 1, 1)], sgd, max_norm=0.5)

    def test_checkpoints_of_divided_state_are_those_of_whole_state(self):
        plain = plan_of(Mlp, THREE, 1, all_reduce="ring")
        plans, all_elements = [divided(plain, 5, 3, 0), plain, divided(plain, 1, 0, 2)], sum(sum(g.elements) for g in plain.groups)
        for optimizer_of, values in ((adamw, 2), (sgd, 1)):
            (losses, final), = on_ranks(by_one_process, Mlp, optimizer_of, 2 * EACH, ((0, BATCH),), 0.5, ranks=1)
            with tempfile.TemporaryDirectory() as folder:
                results = on_ranks(dividing, plans[0], plans[1:], optimizer_of, f"{folder}/step", ranks=3)
            for rank, result in enumerate(results):
                self.assertNotIsInstance(result[0], str, result)
                for plan, (found, state, kept, memory) in zip(plans, result):
                    self.assert_same(found, losses, state, final)
                    owned = sum(group.parts[rank] for group in plan.groups) if plan.groups[0].parts else all_elements
                    self.assertEqual((kept, memory), (values * owned, 4 * values * owned))

    def test_divided_state_of_each_kind_of_optimizer(self):
        plain = plan_of(Mlp, UNEVEN, 1, all_reduce="ring")
        for rank, result in enumerate(on_ranks(by_kinds, plain, divided(plain, 5, 3))):
            self.assertNotIsInstance(result[0], str, result)
            for name, (found, wanted) in result[0].items():
                self.assertEqual(len(found), 4)
                for a, b in zip(found, wanted):
                    self.assertLess(abs(a - b), SAME * abs(b), f"{name}: {found}\n{wanted}")
            for said, name in zip(result[1][:2], ("Adam", "LBFGS"), strict=True):
                self.assertRegex(said, rf"^the plan divides the optimizer's state, and [a-z_.]+\.{name} may need all of a parameter")
                self.assertTrue(said.endswith("\n  hint: agpcs.plan(..., without=['state'])"), said)
            self.assertIn("the parameter 'layers.0.weight' is not contiguous: its strides are (1, 16)\n  hint: ", result[1][2])

    def test_divided_state_with_gradients_that_travel_rounded(self):
        plain = plan_of(Mlp, UNEVEN, 1, all_reduce="ring", wire_type="bf16")
        exact = plan_of(Mlp, UNEVEN, 1, all_reduce="ring")
        for found, wanted, others in on_ranks(rounded, divided(plain, 5, 3), plain, exact):
            self.assertEqual(found, wanted)
            self.assertNotEqual(found, others)

    def test_is_whole_or_not_at_all(self):
        plan, after = plan_of(Normed, TWO), plan_of(Normed, TWO, cluster=SLOW_A)
        others = ["nowhere.plan", plan_of(Normed, TWO, batch=20), plan_of(TiedHead, TWO), plan_of(Normed, FOUR, 10),
                  plan_of(Normed, "a/0|a/1"), plan]
        (losses, final), = on_ranks(by_one_process, Normed, sgd, len(others) + 4, ((0, 3), (3, 6), (6, 8), (8, 10)), ranks=1)
        first, second = on_ranks(refusing, Normed, plan, others, after)
        for result in (first, second):
            self.assertNotIsInstance(result[0], str, result)
            self.assert_same(result[0], losses, result[2], final)
        self.assertEqual(first[1][1:-1], second[1][1:-1])
        self.assertEqual((first[1][0], second[1][0]), (
            "FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.plan'",
            "Error: rank 0 cannot switch: FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.plan'"))
        self.assertEqual(first[1][1], "PlanMismatch: the new plan has batch 20, and the job's has 10\n"
                                      "  hint: a plan of the same training; a new Job trains otherwise")
        self.assertRegex(first[1][2], "^PlanMismatch: the plan is not for this module: .* this model is 'model' ")
        self.assertRegex(first[1][3], "^PlanMismatch: the plan of model has 4 ranks, and the job has 2\n")
        self.assertEqual(first[1][4], "PlanMismatch: rank 1 is a/1 in the new plan, and it runs on b/0\n"
                                      "  hint: a plan of the same cluster file, with all of the job's devices")
        self.assertEqual((first[1][5:], second[1][5:]), (["Error: rank 1 cannot switch: ValueError: no optimizer today"],
                                                         ["ValueError: no optimizer today"]))

    def test_a_rank_whose_optimizer_cannot_be_made_is_named_on_the_others(self):
        first, second = on_ranks(begins_badly, plan_of(Normed, TWO))
        self.assertEqual(second, ("ValueError", "no optimizer today"))
        self.assertEqual(first, ("Error", "rank 1 cannot begin: ValueError: no optimizer today"))

    def test_a_rank_that_does_not_come_to_its_job_is_named_on_the_others(self):
        first, second = on_ranks(has_no_model, plan_of(Normed, TWO))
        self.assertEqual(second, ("ValueError", "no model today"))
        self.assertEqual(first, ("RankLost", "rank 1 did not come to its Job, and a connection is closed\n"
                                             "  hint: what it printed last says why"))

    def test_is_to_a_better_plan_when_a_rank_becomes_slower(self):
        plan = plan_of(Mlp, "a/0,a/1", 1, cluster=ALIKE)
        with tempfile.TemporaryDirectory() as folder:
            cluster = pathlib.Path(folder, "cluster.yaml")
            cluster.write_text(ALIKE)
            (losses, held, plans, said), (losses_1, held_1, plans_1, said_1) = on_ranks(
                drifting, Mlp, plan, gentle, str(cluster), 1, 2.5, 2)
        self.assertEqual((losses, plans), (losses_1, plans_1))
        before, now = map(agpcs.Plan, plans)
        parts = []  # of rank 1, in the parameters times samples of a step
        for i, by in enumerate((before, now)):
            work, work_1 = (len(names[i]) * by.shares[rank] for rank, names in enumerate((held, held_1)))
            parts.append(work_1 / (work + work_1))
        self.assertLess(parts[1], parts[0], said)
        self.assertRegex(said, rf"^agpcs: drift: a/1 computes 2.5 times slower than expected since step {CALM}: it needs more processor time\n"
                               r"agpcs: from step \d+ on stages are a/\d \d+ \| a/\d \d+: a step takes .*s, with those before .*s\n$")
        self.assertEqual(said_1, "")
        (expected, _), = on_ranks(by_one_process, Mlp, gentle, len(losses), ranks=1)
        for a, b in zip(losses, expected):
            self.assertLess(abs(a - b), SAME * b)

    def test_is_only_to_a_plan_that_saves_a_part_of_the_step_as_measured(self):
        plan = plan_of(Mlp, "a/0,a/1", 1, cluster=ALIKE)
        with tempfile.TemporaryDirectory() as folder:
            cluster = pathlib.Path(folder, "cluster.yaml")
            cluster.write_text(ALIKE)
            (found, said, better), = on_ranks(judged, plan, exported(Mlp), str(cluster), ranks=1)
        self.assertEqual(found, [False, False, True], said)
        self.assertRegex(said, r"^agpcs: the plan stays: what its steps took before is not known\n"
                               r"agpcs: the plan stays: a step takes 500 ms, with the best one [0-9.]+ m?s\n$")
        self.assertEqual(better.devices, plan.devices)
        self.assertNotEqual(better.stages, plan.stages)

    def test_of_a_job_that_has_lost_a_rank_is_by_what_is_left_from_the_newest_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            cluster = pathlib.Path(folder, "cluster.yaml")
            cluster.write_text(CLUSTER)
            first, said = started(plan_of(Mlp, TWO), folder, lost=1)
            left = agpcs.torch.plan(build(Mlp), batches(Mlp, 1)[0], cluster=cluster, devices=["a/0"], bound=False)
            rest, no_more = started(left, folder)
        self.assertRegex(said, r"^rank 1 \(host \S+, process \d+\) is gone: its process ended\n  hint: ")
        self.assertEqual((left.devices, no_more), (("a/0",), ""))
        self.assertEqual((len(first), rest[:EACH]), (2 * EACH - 1, [None] * EACH))
        (losses, _), = on_ranks(by_one_process, Mlp, adamw, 3 * EACH, ranks=1)
        for found, wanted in [*zip(first, losses), *zip(rest[EACH:], losses[EACH:])]:
            self.assertLess(abs(found - wanted), SAME * wanted, (first, rest, losses))

    def test_of_devices_in_another_order_or_with_a_layout_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            cluster = pathlib.Path(folder, "cluster.yaml")
            cluster.write_text(CLUSTER)
            with self.assertRaises(agpcs.UsageError) as raised:
                plan_on(["b/0", "a/0"], exported(Normed), cluster, bound=False)
            self.assertEqual(str(raised.exception), "the ranks are on b/0, a/0, and plans number them by the cluster file: a/0, "
                                                    "b/0\n  hint: number ranks as the cluster file has their devices")
            with self.assertRaises(agpcs.UsageError) as raised:
                agpcs.torch.plan(build(Normed), batches(Normed, 1)[0], cluster=cluster, devices=["a/0"], layout=TWO)
            self.assertEqual(str(raised.exception), "devices and layout are both given\n  hint: a layout has its devices")

    def test_needs_the_cluster_file_of_the_plan(self):
        with tempfile.TemporaryDirectory() as folder:
            cluster = pathlib.Path(folder, "cluster.yaml")
            cluster.write_text(SLOW_A)
            (kind, said), = on_ranks(judged, plan_of(Mlp, "a/0|a/1", cluster=ALIKE), exported(Mlp), str(cluster), ranks=1)
        self.assertEqual(kind, "InvalidInput")
        self.assertRegex(said, "^plan: error: the plan is for cluster 'cluster' .*, this cluster is 'cluster' ")


if __name__ == "__main__":
    unittest.main()
