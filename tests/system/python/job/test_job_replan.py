#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job: which plans a job looks for when a rank changes."""

import functools
import pathlib
import tempfile
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


if __name__ == "__main__":
    unittest.main()
