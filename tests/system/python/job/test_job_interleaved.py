#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job: plans whose ranks have several stages train as one process does."""

import contextlib
import io
import os
import pathlib
import tempfile
import unittest
from unittest import mock

from cases import on_ranks
from job_cases import NEWER, Compares, Mlp, OneBert, Tagger, TiedHead, UNet, batches, job_of, plan_of
from switching import Switches, Training, adamw, by_one_process, sgd

import torch

from agpcs._job import replan
from agpcs._torch_watch import Change

CLUSTER = """\
device_kinds:
  cpu: {peak: {fp32: 40 GFLOPS, bf16: 40 GFLOPS}, memory: 4 GiB, memory_bandwidth: 10 GB/s, launch_overhead: 5 us}
hosts:
  - {name: a, devices: {kind: cpu, count: 4}, interconnect: {kind: tcp, bandwidth: 2 GB/s, latency: 20 us}}
training: {batch: 10, optimizer: {kind: sgd, momentum: 0.9}}
"""
# What takes time is to launch operators: with fewer micro-batches, a step is a part of what it was.
LAUNCHES = CLUSTER.replace("overhead: 5 us", "overhead: 2 ms").replace("momentum: 0.9}", "momentum: 0.9}, statistics_every: 1")
CALM, LATEST = 12, 20000  # steps before a rank changes, and the last one by which there is another plan; a search takes many
TWO, THREE, UNEVEN = "a/0|a/1", "a/0|a/1|a/2", "a/0:3,a/1:1|a/2:1,a/3:3"


def interleaved(kind, layout, micro_batches=4, each=2, cluster=CLUSTER, **options):
    """A plan in which each rank of a layout has so many stages."""
    return plan_of(kind, f"{layout}|schedule=interleaved,each={each}", micro_batches, cluster=cluster, **options)


def goes_on(rank, kind, plan, other, path):
    """Losses of a job that saves a checkpoint after two steps and goes on, and of one by another plan that goes on from it."""
    job = job_of(kind, plan)
    first = [job.step(batch).item() for batch in batches(kind, 2)]
    job.save(path)
    rest = [job.step(batch).item() for batch in batches(kind, 4)[2:]]
    second = job_of(kind, other)
    second.load(path)
    return first, rest, [second.step(batch).item() for batch in batches(kind, 4)[2:]], (job.stage, second.stage)


def replanned(rank, plan, better, cluster):
    """Losses and the final state of a job for which the search finds the plan `better` when a rank changes; this rank's stages before
    and after; and what was printed."""
    with contextlib.redirect_stderr(io.StringIO()) as said, mock.patch.object(replan, "plan_on", lambda *_, **__: better):
        training = Training(Mlp, plan, sgd, replan=cluster, on_drift=None)
        training.train(CALM)
        before = training.job.stage
        if rank == 0:
            training.job._replanning.drifted([Change("", "compute", 1, 1.5, CALM)])
        while training.job.plan == plan and len(training.losses) < LATEST:
            training.train(1)
        training.train()
    return training.losses, training.state(), (before, training.job.stage), said.getvalue()


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Interleaved(Compares):
    def test_two_and_three_ranks_of_two_and_three_stages(self):
        for layout, micro_batches, each in ((TWO, 4, 2), (TWO, 5, 2), (THREE, 5, 2), (TWO, 4, 3)):
            with self.subTest(layout=layout, micro_batches=micro_batches, each=each):
                plan = interleaved(Mlp, layout, micro_batches, each)
                self.assertEqual((len(plan.stages), plan.ranks), (len(layout.split("|")) * each, len(layout.split("|"))))
                self.assertIn(" schedule=interleaved ", plan.text)
                lives = self.compare(Mlp, plan)
                self.assertEqual(len(set(sum(lives, []))), len(sum(lives, [])), "a parameter is on two ranks")

    def test_uneven_replicas(self):
        plan = interleaved(Mlp, UNEVEN)  # micro-batches of 3, 3, 2 and 2
        self.assertEqual([stage.ranks for stage in plan.stages], [(0, 1), (2, 3)] * 2)
        self.compare(Mlp, plan)

    def test_a_table_that_is_the_head_too(self):
        self.compare(TiedHead, interleaved(TiedHead, TWO))
        self.compare(TiedHead, interleaved(TiedHead, UNEVEN))

    def test_a_mask_and_skips_that_stay_on_their_ranks(self):
        for kind, layout, recompute in ((OneBert, UNEVEN, "s1 s2"), (UNet, TWO, "s0 s3")):
            with self.subTest(kind=kind.__name__, layout=layout):
                plan = interleaved(kind, layout, recompute=recompute)
                self.assertIn(" from=s0 to=s2 ", plan.text)
                self.compare(kind, plan)

    def test_recomputation_and_labels_that_do_not_count(self):
        self.compare(Mlp, interleaved(Mlp, TWO, recompute="s1 s2"))
        plan = interleaved(Tagger, TWO, loss="softmax_cross_entropy", class_axis=1)
        self.compare(Tagger, plan)


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Moves(Switches):
    def test_goes_to_other_plans_and_back(self):
        plans = (interleaved(Mlp, TWO), plan_of(Mlp, TWO, cluster=CLUSTER), interleaved(Mlp, TWO, 5, each=3))
        for optimizer_of, max_norm in ((sgd, 0.5), (adamw, None)):
            with self.subTest(optimizer=optimizer_of.__name__):
                self.check(Mlp, plans, optimizer_of, max_norm)

    def test_plans_again_from_an_interleaved_plan_and_to_one(self):
        plan, other = interleaved(Mlp, TWO, 10, cluster=LAUNCHES), plan_of(Mlp, TWO, 2, cluster=LAUNCHES)
        back, again = plan_of(Mlp, TWO, 10, cluster=LAUNCHES), interleaved(Mlp, TWO, 2, cluster=LAUNCHES)
        for before, after in ((plan, other), (back, again)):
            with tempfile.TemporaryDirectory() as folder:
                cluster = pathlib.Path(folder, "cluster.yaml")
                cluster.write_text(LAUNCHES)
                results = on_ranks(replanned, before, after, str(cluster))
            for rank, result in enumerate(results):
                self.assertNotIsInstance(result[0], str, result)
                losses, state, stages, said = result
                self.assertEqual(stages, tuple(f"s{rank},s{rank + 2}" if made in (plan, again) else f"s{rank}"
                                               for made in (before, after)), results[0][3])
                (wanted, final), = on_ranks(by_one_process, Mlp, sgd, len(losses), ranks=1)
                self.assert_same(losses, wanted, state, final)
            self.assertRegex(results[0][3], r"agpcs: from step \d+ on stages are a/0 \d+ \| a/1 \d+")

    def test_goes_on_from_checkpoints_of_other_plans(self):
        plans = interleaved(Mlp, TWO), plan_of(Mlp, "a/0:1,a/1:1", cluster=CLUSTER)
        for plan, other in (plans, plans[::-1]):
            with tempfile.TemporaryDirectory() as folder:
                for rank, result in enumerate(on_ranks(goes_on, Mlp, plan, other, os.path.join(folder, "saved"))):
                    self.assertNotIsInstance(result[0], str, result)
                    _, rest, again, stages = result
                    self.assertIn(f"s{rank},s{rank + 2}", stages)
                    for a, b in zip(rest, again):
                        self.assertLess(abs(a - b), 1e-5 * abs(a))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
