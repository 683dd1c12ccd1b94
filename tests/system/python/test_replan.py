#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""New shares in a running job: what ranks train on does not change, and a rank that becomes slower gets less of it."""

import contextlib
import io
import tempfile
import types
import unittest
import warnings

from cases import BATCH, Data, GroupResNet18, build, loss_of, on_ranks, optimizer_of, plan_of, wrapped

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import agpcs
import agpcs.torch
from agpcs._torch_replan import Replanning
from agpcs.torch import AutoPlan, Change, PlanSampler

STEPS, EPOCHS = 12, 2
CALM, SLOW = 150, 400  # steps before a rank becomes slower, and the most after it


class Numbered(Data):
    """Samples that say which they are."""

    def __getitem__(self, index):
        return (index, *super().__getitem__(index))


def trained(rank, plan, later, after, last):
    """Losses of all steps, which samples this rank had in each, and the step from which on it had other shares. The
    ranks take over the plan `later` after step `after`; ranks load ahead unlike far."""
    warnings.filterwarnings("ignore", "This DataLoader will create 4 worker processes")
    data = Numbered(GroupResNet18, BATCH * STEPS - last)
    sampler = PlanSampler(data, plan, rank)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=4 * rank)
    ddp, _ = wrapped(build(GroupResNet18), plan, {"on_drift": None})
    optimizer, losses, seen, first = optimizer_of(ddp), [], [], None
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for i, (numbers, *batch) in enumerate(loader):
            optimizer.zero_grad()
            loss = sampler.weigh(loss_of(ddp, batch), i)
            loss.backward()
            optimizer.step()
            total = loss.detach() * plan.shares[rank] / plan.batch
            dist.all_reduce(total)
            losses.append(total.item())
            seen.append(numbers.tolist())
            if len(losses) == after:
                first = sampler.take(later)
    return losses, seen, first, sampler.shares


class Switch(unittest.TestCase):
    def check(self, after, last=0):
        plan, later = plan_of(GroupResNet18, shares="3:1"), plan_of(GroupResNet18, shares="1:3")
        (losses, seen, first, shares), (losses_1, seen_1, first_1, _) = on_ranks(trained, plan, later, after, last)
        (alone, seen_alone, never, _), (_, seen_alone_1, _, _) = on_ranks(trained, plan, later, 0, last)
        self.assertEqual((losses, first), (losses_1, first_1))
        self.assertIsNone(never)
        self.assertEqual([a + b for a, b in zip(seen, seen_1)], [a + b for a, b in zip(seen_alone, seen_alone_1)])
        for loss, expected in zip(losses, alone):
            self.assertAlmostEqual(loss, expected, delta=1e-5 * expected)
        self.assertEqual(shares, (2, 6))
        full = [i for i in range(STEPS * EPOCHS) if not last or (i + 1) % STEPS]
        self.assertEqual([len(seen[i]) for i in full], [6 if i < first else 2 for i in full])
        return first

    def test_is_at_the_first_step_that_nobody_has_drawn(self):
        self.assertEqual(self.check(after=2), 2 + 8)  # rank 1 has two batches for each of four workers

    def test_waits_for_the_next_epoch_where_all_of_this_one_is_drawn(self):
        self.assertEqual(self.check(after=STEPS - 1), STEPS)

    def test_divides_the_rest_of_an_epoch_by_the_new_shares(self):
        self.check(after=1, last=4)


def drifting(rank, folder):
    """Trains by autoplan; rank 1 becomes slower. Shares before and after, and what was printed."""
    module = build(GroupResNet18)
    sample = tuple(GroupResNet18.samples(4, torch.Generator().manual_seed(1)).values())
    with contextlib.redirect_stderr(io.StringIO()) as said, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how well fits explain measurements on a busy machine
        plan = agpcs.torch.autoplan(module, loss_of, sample, 2 * BATCH, seconds=4, max_samples=2 * BATCH, cache=folder)
        data = Data(GroupResNet18, 2 * BATCH * 10)
        sampler = PlanSampler(data, plan, rank)
        ddp, state = wrapped(module, plan, {"sampler": sampler, "replan": True})
        loader, step = DataLoader(data, batch_sampler=sampler), 0
        while step < CALM + SLOW:
            for i, batch in enumerate(loader):
                for _ in range(6 if rank == 1 and step >= CALM else 0):  # in proportion to its samples
                    with torch.no_grad():
                        loss_of(ddp.module, batch)
                        loss_of(ddp.module, batch)
                ddp.zero_grad()
                sampler.weigh(loss_of(ddp, batch), i).backward()
                step += 1
            finished = torch.tensor(float(len(state.replanning.plans) > 1 and step > CALM + 50))
            dist.all_reduce(finished, op=dist.ReduceOp.MIN)
            if finished:
                break
    return plan.shares, [p.shares for p in state.replanning.plans], sampler.shares, said.getvalue()


def refused(rank, plan):
    """What is said of a plan that autoplan did not make."""
    try:
        agpcs.torch.plan_hook(plan, sampler=PlanSampler(64, plan, rank), replan=True)
    except agpcs.UsageError as error:
        return str(error), None
    return None, None


def unweighed(rank, folder):
    """What is said of a loop that does not weigh its losses."""
    module = build(GroupResNet18)
    sample = tuple(GroupResNet18.samples(4, torch.Generator().manual_seed(1)).values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = agpcs.torch.autoplan(module, loss_of, sample, BATCH, seconds=3, max_samples=2, cache=folder, quiet=True)
    ddp, _ = wrapped(module, plan, {"sampler": PlanSampler(64, plan, rank)})
    try:
        loss_of(ddp, [column[:plan.shares[rank]] for column in Data(GroupResNet18, BATCH).columns]).backward()
    except (agpcs.PlanMismatch, RuntimeError) as error:  # PyTorch 1.13 gives it as a RuntimeError
        return str(error), None
    return None, None


def replanned(rank, plan, better, micro_batches):
    """The factors that are known of rank 1, and the shares, after each of three changes; and what was printed. The plan
    `better` begins to hold after the second."""
    facts = dict(files=["a.plan", "a.yaml", "a.profile.yaml", "a.onnxtxt"], equal=None, in_ddp_buckets=False, best=plan.devices,
                 best_seconds=1.0, measuring=None, copied=None, measured_ranks=2)
    sampler = PlanSampler(64, plan, rank, micro_batches=micro_batches)
    replanning = Replanning(AutoPlan(plan.text, facts, None, rank, True), sampler, None)
    replanning._better = lambda: (better.text, 2.0, 1.0)
    next(iter(sampler))
    seen = []

    def change(factor):
        replanning.drifted([Change("", "compute", 1, factor, 3)], None, torch.device("cpu"))
        seen.append((replanning._factors["local/1"], sampler.shares))
    with contextlib.redirect_stderr(io.StringIO()) as said:
        change(2.0)
        change(3.0)
        sampler.loss_weight(micro_batches)
        replanning.step_ended(types.SimpleNamespace(expect=lambda plan: None))
        change(0.5)
    return seen, said.getvalue()


class Replan(unittest.TestCase):
    def test_a_rank_that_becomes_slower_gets_fewer_samples(self):
        with tempfile.TemporaryDirectory() as folder:
            (before, plans, now, said), (before_1, plans_1, now_1, said_1) = on_ranks(drifting, folder)
        self.assertEqual((before, plans, now), (before_1, plans_1, now_1))
        self.assertGreater(len(plans), 1, said)
        # A machine that was busy while autoplan measured may first make a rank look faster.
        self.assertLess(plans[-1][1], max(shares[1] for shares in (before, *plans)), said)
        self.assertRegex(said, r"agpcs: from step \d+ on shares are \S+/0 \d+, \S+/1 \d+: a step takes .*, with those "
                               r"before ")
        self.assertEqual(said_1, "")

    def test_a_change_counts_from_the_plan_that_was_running(self):
        plan, better = plan_of(GroupResNet18, shares="3:1"), plan_of(GroupResNet18, shares="1:3")
        for seen, _ in on_ranks(replanned, plan, better, 1):
            self.assertEqual(seen, [(2.0, (2, 6)), (3.0, (2, 6)), (1.0, (2, 6))])

    def test_shares_stay_that_are_the_last_to_make_the_micro_batches(self):
        plan, better = plan_of(GroupResNet18, shares="3:1"), plan_of(GroupResNet18, shares="7:1")
        (seen, said), (seen_1, said_1) = on_ranks(replanned, plan, better, 2)
        self.assertEqual((seen, said_1), (seen_1, ""))
        self.assertEqual([shares for _, shares in seen], [(6, 2)] * 3)
        self.assertEqual(said, 3 * "agpcs: the shares stay: a share of 1 samples does not make 2 micro-batches\n")

    def test_other_plans_than_autoplans_are_refused(self):
        (error, _), _ = on_ranks(refused, plan_of(GroupResNet18))
        self.assertEqual(error, "replan needs a plan that autoplan made, with its files\n"
                                "  hint: plan = agpcs.torch.autoplan(..., cache='.agpcs')")

    def test_new_shares_need_the_sampler(self):
        with self.assertRaises(agpcs.UsageError) as raised:
            agpcs.torch.plan_hook(plan_of(GroupResNet18), replan=True)
        self.assertEqual(str(raised.exception), "replan needs the job's sampler\n"
                                                "  hint: plan_hook(plan, sampler=sampler, replan=True)")

    def test_losses_that_are_not_weighed_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            (error, _), _ = on_ranks(unweighed, folder)
        self.assertIn("no loss was weighed in this step\n"
                      "  hint: sampler.weigh(loss, i) before each backward pass, by the sampler that the hook knows; "
                      "sampler.sync reduces micro-batches once", error)


if __name__ == "__main__":
    unittest.main()
