#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job: which plans a job looks for when a rank changes."""

import functools
import pathlib
import tempfile
import time
import unittest
from unittest import mock

from cases import on_ranks
from job_cases import NEWER, Mlp, exported, job_of

import torch

import agpcs
from agpcs._job import replan
from agpcs._torch_watch import Change

# A device has no memory for all parameters with Adam's whole state, and has it for half of the parameters, or of the state. The
# second is faster: computing takes long, and sending does not.
SMALL = """\
device_kinds:
  cpu: {peak: {fp32: 40 MFLOPS}, memory: 22 kB, memory_bandwidth: 10 GB/s, launch_overhead: 5 us}
hosts: [{name: a, devices: {kind: cpu, count: 2}, interconnect: {kind: tcp, bandwidth: 20 GB/s, latency: 1 us}}]
training: {batch: 4, statistics_every: 1, optimizer: {kind: adam}}
"""


class Whole(torch.optim.AdamW):
    """It may need all of a parameter at once, for all that anybody knows."""


def of_rank(rank, classes):
    """An optimizer_fn: the class of this rank's optimizer."""
    return functools.partial(getattr(torch.optim, classes[rank], Whole), lr=0.01)


def looking(rank, plan, cluster, classes):
    """Of each plan that rank 0 looks at, when rank 1 becomes slower: whether it divides state. And how many plans there are."""
    found = []

    def noted(*arguments, **options):
        found.append(agpcs.plan(*arguments, **options))
        return found[-1]

    with mock.patch.object(replan, "make_plan", noted):
        job = job_of(Mlp, plan, optimizer_fn=of_rank(rank, classes), replan=cluster, on_drift=None)
        if rank == 0:
            job._replanning.drifted([Change("", "compute", 1, 1.5, 1)])
            assert not job._replanning.has_plan()
            job._replanning._search.join()
            assert job._replanning._search.error is None, job._replanning._search.error
    return [any(group.parts for group in made.groups) for made in found], len(found)


def moving(rank, plan, cluster):
    """Of rank 0: how many searches began after a change that came with two moves, as often as asked; what was said; and whether one
    begins once the first move is ten minutes ago."""
    job = job_of(Mlp, plan, replan=cluster, on_drift=None)
    replanning, said, begun, now = job._replanning, [], [], time.monotonic()
    if rank != 0:
        return None
    with (mock.patch.object(replan, "_say", said.append), mock.patch.object(replan, "_Search", lambda *_: begun.append(1)),
          mock.patch.object(replan.time, "monotonic", lambda: now)):
        replanning._then = replanning._now = 1.0
        for _ in range(2):
            replanning._found = plan
            replanning.announce()
            replanning.switch(lambda plan, factors: None)
        del said[:]
        replanning.drifted([Change("", "compute", 1, 1.5, 1)])
        for _ in range(3):
            replanning.has_plan()
        early = len(begun)
        now += 601
        replanning.has_plan()
    return early, said, len(begun)


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Looks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cluster = pathlib.Path(folder.name, "cluster.yaml")
        self.cluster.write_text(SMALL)

    def planned(self, **options):
        return agpcs.plan(exported(Mlp), self.cluster, bound=False, **{"layout": "a/0|a/1", "micro_batches": 2, **options})

    def divided(self, plan, *classes):
        (found, count), _ = on_ranks(looking, plan, str(self.cluster), classes)
        self.assertGreater(count, 2, found)
        return any(found)

    def test_for_plans_that_divide_state_where_the_job_may_run_them(self):
        plan = self.planned()
        self.assertFalse(any(group.parts for group in plan.groups))
        self.assertEqual((plan.without, agpcs.Plan(plan.text).without), ((), None))
        self.assertTrue(self.divided(plan, "AdamW", "AdamW"))

    def test_for_none_where_an_optimizer_needs_whole_parameters(self):
        self.assertFalse(self.divided(self.planned(), "AdamW", "Whole"))

    def test_for_none_where_the_plan_was_made_without_them_or_may_have_been(self):
        plan = self.planned(without=["state"])
        self.assertEqual(plan.without, ("state",))
        self.assertFalse(self.divided(plan, "AdamW", "AdamW"))
        self.assertFalse(self.divided(agpcs.Plan(self.planned().text), "AdamW", "AdamW"))

    def test_for_them_where_a_plan_of_a_file_divides_state(self):
        plan = agpcs.Plan(self.planned(layout=None, micro_batches=None, budget=100).text)
        self.assertTrue(any(group.parts for group in plan.groups))
        self.assertTrue(self.divided(plan, "AdamW", "AdamW"))

    def test_for_none_until_there_were_less_than_two_moves_within_ten_minutes(self):
        (early, said, later), _ = on_ranks(moving, self.planned(), str(self.cluster))
        self.assertEqual((early, later), (0, 1))
        self.assertEqual(said, ["the plan stays: there were 2 moves within 600 s; the next one has to wait"])


if __name__ == "__main__":
    unittest.main()
