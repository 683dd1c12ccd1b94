#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job by plans that leave devices idle: it trains as one process does, a rank gets and loses its stage by a switch, and a
device that has become slow is left out until it recovers."""

import functools
import itertools
import math
import pathlib
import tempfile
import unittest
from unittest import mock

from cases import build, divided, gathered, on_ranks
from emulated import CALM, drifting
from job_cases import BATCH, CLUSTER, FOUR, NEWER, Compares, Mlp, TiedHead, Transformer, UNet, batches, exported, plan_of
from switching import EACH, SAME, Switches, Training, adamw, by_one_process, sgd
from team_cases import Gpt4
from test_job_dropout import SEED, Drops, by_one_process as with_masks, job_of as dropping_job
from test_job_offload import offloaded
from test_job_switch import ALIKE, Normed, gentle
from test_job_teams import NEAR
from test_job_training import Compares as Near, by_job, by_one_process as clipped, large_scale
from test_job_unlike import by_checkpoint, unlike

import torch

import agpcs
import agpcs.torch
from agpcs._job.replan import _ways, plan_on

TWO, THREE = ("a/0", "b/0"), ("a/0", "a/1", "b/0")  # devices of jobs


def leaving(kind, layout, devices=None, **options):
    """A plan of these devices, by a layout that has not all of them."""
    plan = plan_of(kind, layout, devices=devices, idle_ranks=True, **options)
    assert plan.idle_ranks and set(plan.devices) == set(devices or ("a/0", "a/1", "b/0", "b/1")), plan.text
    return plan


def of_all(kind, layout, devices, **options):
    return plan_of(kind, layout, devices=devices, **options)


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Trains(Compares):
    """Losses of all steps and final parameters equal those of one process."""

    def check(self, kind, plan):
        for rank, live in enumerate(self.compare(kind, plan)):
            self.assertEqual(live == [], rank in plan.idle_ranks, (rank, live))

    def test_stages_beside_two_idle_ranks(self):
        self.check(UNet, leaving(UNet, "a/0|b/0", recompute="s0"))

    def test_replicas_whose_first_rank_is_not_rank_0(self):
        self.check(Transformer, leaving(Transformer, "a/1:3,b/0:1", THREE))

    def test_one_rank_of_two(self):
        self.check(TiedHead, leaving(TiedHead, "b/0", TWO))


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Agrees(Near):
    """On norms, and on gradients that are not finite."""

    def check(self, plan, options, max_norm=0.05, rows=((0, BATCH),), autocast=None, scaler=None):
        losses, norms, scales, state = on_ranks(clipped, Mlp, rows, max_norm, 2.0, autocast, scaler, ranks=1)[0]
        results = on_ranks(by_job, Mlp, plan, options, ranks=plan.ranks)
        self.assert_alike(results, losses, state)
        for _, found, of_job, _ in results:
            self.assert_near([x for x in found if math.isfinite(x)], [x for x in norms if math.isfinite(x)])
            self.assertEqual(of_job, [None] * len(of_job) if scaler is None else scales)
        return norms, scales

    def test_by_the_norm_of_the_ranks_that_compute(self):
        norms, _ = self.check(leaving(Mlp, "a/1|b/0", THREE), {"max_norm": 0.05})
        self.assertGreater(min(norms), 0.05, "nothing was clipped")

    def test_by_the_norm_of_a_plan_that_clips(self):
        plan = leaving(Mlp, "a/0|b/0", THREE, cluster=CLUSTER.replace("momentum: 0.9}", "momentum: 0.9, max_norm: 0.05}"))
        self.assertIn("program s2\n  norm\n  report\n", plan.text)
        self.check(plan, {"trace": True, "compile": {"backend": "eager"}})

    def test_that_a_step_is_left_out(self):
        plan = leaving(Mlp, "b/0", TWO, micro_batches=1)
        _, scales = self.check(plan, lambda: {"autocast": torch.float16, "max_norm": 0.3, **large_scale()}, 0.3, ((0, BATCH),),
                               torch.float16, large_scale)
        self.assertLess(scales[0], 2.0 ** 22, "no gradient was infinite")


def by_rate(rank, plans, folder):
    """By plan, the rates of the groups of a job's optimizer, and how many parameters these have, while a schedule goes on that keeps
    what it needs in the groups; the same of a new job by the last plan that goes on from a checkpoint of that."""
    found = []

    def noted(training):
        found.append([(group["lr"], group["momentum"], len(group["params"])) for group in training.job.optimizer.param_groups])

    def one_cycle(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 40)

    with mock.patch("switching.rate_of", one_cycle):
        training = Training(TiedHead, plans[0], grouped)
        optimizer = training.job.optimizer
        for plan in plans:
            training.job.switch(plan)
            training.train()
            noted(training)
        assert training.job.optimizer is optimizer, "a schedule holds another optimizer"
        training.job.save(folder, extra=training.rate.state_dict())
        other = Training(TiedHead, plans[-1], grouped)
        other.rate.load_state_dict(other.job.load(folder))
        noted(other)
    return found


def grouped(parameters):
    parameters = list(parameters)
    groups = [[one for _, one in parameters if (one.dim() > 1) == matrices] for matrices in (True, False)]
    return torch.optim.SGD([{"params": group} for group in groups if group], lr=0.05, momentum=0.9)


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class SwitchesTo(Switches):
    def test_fewer_ranks_and_back(self):
        plans = [plan_of(TiedHead, FOUR, 5), leaving(TiedHead, "a/0|b/0"), leaving(TiedHead, "a/1:1,b/1:3"), plan_of(TiedHead, FOUR, 5)]
        for optimizer_of, max_norm in ((adamw, None), (sgd, 0.5)):
            self.assert_idle(plans, self.check(TiedHead, plans, optimizer_of, max_norm))

    def assert_idle(self, plans, held):
        """Ranks have held nothing where they are idle."""
        for rank, of_rank in enumerate(held):
            self.assertEqual([names == [] for names in of_rank], [rank in plan.idle_ranks for plan in plans])

    def test_and_from_a_plan_with_which_the_job_begins(self):
        self.check(Mlp, [leaving(Mlp, "b/0", TWO), leaving(Mlp, "a/0", TWO), of_all(Mlp, "a/0|b/0", TWO)], adamw, 0.5)

    def test_buffers_that_change_go_with_their_stage(self):
        plans = [of_all(Normed, "a/0|b/0", TWO, micro_batches=1), leaving(Normed, "b/0", TWO, micro_batches=1),
                 leaving(Normed, "a/0", TWO, micro_batches=1)]
        self.check(Normed, plans, sgd)

    def test_states_and_parameters_that_ranks_divide(self):
        plain = of_all(Mlp, "a/0:5,a/1:3,b/0:2", THREE, micro_batches=1, all_reduce="ring")
        fewer = leaving(Mlp, "a/1:3,b/0:1", THREE, micro_batches=1, all_reduce="ring")
        self.check(Mlp, [divided(plain, 5, 3, 1), divided(fewer, 0, 3, 1, level="gradients"), gathered(plain, 1, 0, 2),
                         divided(fewer, 0, 1, 3), leaving(Mlp, "a/0", THREE)], adamw, 0.5)

    def test_teams(self):
        plans = [unlike(Gpt4, "a/0+a/1,b/0"), leaving(Gpt4, "a/0+a/1", THREE, micro_batches=2, cluster=NEAR),
                 leaving(Gpt4, "a/1|b/0", THREE, micro_batches=2, cluster=NEAR), unlike(Gpt4, "a/0,a/1+b/0")]
        self.assert_idle(plans, self.check(Gpt4, plans, adamw))

    def test_ranks_of_several_stages(self):
        two_each = {"micro_batches": 4, "devices": THREE}
        plans = [leaving(Mlp, "a/0|b/0|schedule=interleaved,each=2", **two_each), of_all(Mlp, "a/0|a/1|b/0", THREE),
                 leaving(Mlp, "b/0|a/1|schedule=interleaved,each=2", **two_each)]
        self.assert_idle(plans, self.check(Mlp, plans, adamw, 0.5))

    def test_states_in_the_memory_of_hosts(self):
        plans = [offloaded(leaving(Mlp, "a/1|b/0", THREE), "s0", "s1"), of_all(Mlp, "a/0|b/0|a/1", THREE),
                 offloaded(leaving(Mlp, "b/0|a/0", THREE), "s1"),
                 offloaded(of_all(Mlp, "a/0|a/1|b/0", THREE))]
        self.assert_idle(plans, self.check(Mlp, plans, adamw, 0.5))

    def test_others_while_the_rates_of_idle_ranks_follow_the_schedule(self):
        plans = [leaving(TiedHead, "a/0", TWO), of_all(TiedHead, "a/0|b/0", TWO), leaving(TiedHead, "b/0", TWO)]
        with tempfile.TemporaryDirectory() as folder:
            first, second = on_ranks(by_rate, plans, f"{folder}/checkpoint")
        rates = [[[numbers[:2] for numbers in groups] for groups in of_rank] for of_rank in (first, second)]
        self.assertEqual(rates[0], rates[1])
        self.assertEqual(rates[0][2], rates[0][3], "the checkpoint has other rates")
        self.assertEqual(len({groups[0] for groups in rates[0]}), 3, "the schedule did nothing")
        for rank, of_rank in enumerate((first, second)):
            self.assertEqual([all(count == 0 for *_, count in groups) for groups in of_rank],
                             [rank in plan.idle_ranks for plan in (*plans, plans[-1])])


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class GoesOn(Switches):
    def test_from_checkpoints_of_jobs_in_which_all_compute_and_the_reverse(self):
        plans = [leaving(TiedHead, "b/0|a/0", THREE), of_all(TiedHead, "a/0|a/1|b/0", THREE), leaving(TiedHead, "a/1", THREE),
                 leaving(TiedHead, "a/0:3,a/1:1", THREE)]
        (wanted, final), = on_ranks(by_one_process, TiedHead, adamw, EACH * len(plans), ranks=1)
        with tempfile.TemporaryDirectory() as folder:
            for losses, state in on_ranks(by_checkpoint, TiedHead, plans, folder, ranks=3):
                self.assertNotIsInstance(losses, str, state)
                self.assert_same(losses, wanted, state, final)

    def test_with_the_masks_of_one_process(self):
        plans = [of_all(Drops, "a/0|b/0", TWO), leaving(Drops, "b/0", TWO), of_all(Drops, "a/0:3,b/0:1", TWO)]
        (wanted, _), = on_ranks(functools.partial(with_masks, steps=EACH * len(plans)), Drops, ranks=1)
        for found in on_ranks(dropping, plans):
            for a, b in zip(found, wanted, strict=True):
                self.assertLess(abs(a - b), SAME * b, (found, wanted))


def dropping(rank, plans):
    """Losses of a job with dropout by the sample, EACH by each plan."""
    job, losses = dropping_job(Drops, plans[0], dropout="by-sample", seed=SEED), []
    for number, plan in enumerate(plans):
        job.switch(plan)
        losses += [job.step(batch).item() for batch in batches(Drops, EACH, EACH * number)]
    return losses


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Replans(unittest.TestCase):
    def drift(self, slow_rank):
        plan = plan_of(Mlp, "a/0,a/1", 1, cluster=ALIKE)
        with tempfile.TemporaryDirectory() as folder:
            cluster = pathlib.Path(folder, "cluster.yaml")
            cluster.write_text(ALIKE)
            results = on_ranks(drifting, Mlp, plan, gentle, str(cluster), slow_rank, 10.0, 3)
        for result in results:
            self.assertEqual(len(result), 4, result)
        (losses, _, texts, said), (_, _, _, said_1) = results
        self.assertEqual((said_1, results[1][0], results[1][2]), ("", losses, texts))
        plans = list(map(agpcs.Plan, texts))
        self.assertEqual([one.idle_ranks for one in plans], [(), (slow_rank,), ()], said)
        for rank, (_, held, *_) in enumerate(results):
            self.assertEqual([names == [] for names in held], [rank in one.idle_ranks for one in plans])
        slow, other = (f"a/{rank}" for rank in (slow_rank, 1 - slow_rank))
        self.assertRegex(said, rf"^agpcs: drift: {slow} computes 10 times slower than expected since step {CALM}: it needs more processor "
                               rf"time\nagpcs: from step \d+ on stages are {other} 10, without {slow}: a step takes .*s, with those "
                               rf"before .*s\nagpcs: drift: {slow} computes 10 times faster than expected since step \d+\n"
                               r"agpcs: from step \d+ on stages are a/\d 10 \| a/\d 10: a step takes .*s, with those before .*s\n$")
        (expected, _), = on_ranks(by_one_process, Mlp, gentle, len(losses), ranks=1)
        for a, b in zip(losses, expected):
            self.assertLess(abs(a - b), SAME * b)

    def test_without_a_rank_that_becomes_slow_and_with_it_when_it_recovers(self):
        self.drift(1)

    def test_without_rank_0_which_plans_for_all(self):
        self.drift(0)


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Plans(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cluster = pathlib.Path(folder.name, "cluster.yaml")
        self.cluster.write_text(ALIKE)

    def planned(self, slower, idle_ranks=True, near=(), **options):
        return plan_on(THREE, exported(Mlp), self.cluster, near, list(slower), idle_ranks=idle_ranks, slower=slower, bound=False, **options)

    def test_of_a_part_of_the_cluster_leave_a_device_idle_that_is_not_worth_it(self):
        plan, whole = self.planned({"a/1": 10.0}), self.planned({"a/1": 10.0}, idle_ranks=False)
        self.assertEqual((plan.devices, plan.idle_ranks), (THREE, (1,)))
        self.assertEqual((whole.devices, whole.idle_ranks), (THREE, ()))
        self.assertLess(plan.estimates.step_seconds, whole.estimates.step_seconds)
        self.assertEqual(self.planned({}).idle_ranks, ())

    def test_are_looked_for_with_and_without_the_slowest_devices(self):
        search, *layouts = _ways(THREE, [[("b/0", "a/0+a/1")], [("a/1",), ("b/0",)]], ["a/1"])
        self.assertIn("budget", search)
        of_all = {"a/0,a/1,b/0", "b/0,a/0+a/1", "a/1|b/0", "b/0|a/1", "a/0,a/1|b/0", "b/0|a/0,a/1"}
        in_any_order = {"|".join(order) for order in itertools.permutations(THREE)}
        without = {"a/0,b/0", "b/0,a/0", "b/0", "a/0|b/0", "b/0|a/0"}
        self.assertEqual(sorted(way["layout"] for way in layouts), sorted(of_all | in_any_order | without))

    def test_of_a_part_of_the_cluster_are_for_the_whole_cluster_file(self):
        plan = self.planned({})
        plan._command("check", [plan, "--model", exported(Mlp), "--cluster", str(self.cluster)])

    def test_say_which_devices_are_idle(self):
        plan = agpcs.torch.plan(build(Mlp), batches(Mlp, 1)[0], cluster=self.cluster, layout="a/0|b/0", idle_ranks=True, bound=False)
        self.assertRegex(str(plan), r"\nstage s1: .* on b/0, samples \d+\nidle: a/1, b/1$")
        self.assertEqual((plan.modules[2], plan.idle_ranks), ((), (1, 3)))


if __name__ == "__main__":
    unittest.main()
