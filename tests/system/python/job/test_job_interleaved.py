#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job: plans whose ranks have several stages train as one process does."""

import os
import tempfile
import unittest

from cases import on_ranks
from job_cases import NEWER, Compares, Mlp, Tagger, TiedHead, batches, job_of, plan_of
from switching import Switches, adamw, sgd

import torch

CLUSTER = """\
device_kinds:
  cpu: {peak: {fp32: 40 GFLOPS, bf16: 40 GFLOPS}, memory: 4 GiB, memory_bandwidth: 10 GB/s, launch_overhead: 5 us}
hosts:
  - {name: a, devices: {kind: cpu, count: 4}, interconnect: {kind: tcp, bandwidth: 2 GB/s, latency: 20 us}}
training: {batch: 10, optimizer: {kind: sgd, momentum: 0.9}}
"""
TWO, THREE, UNEVEN = "a/0|a/1", "a/0|a/1|a/2", "a/0:3,a/1:1|a/2:1,a/3:3"


def interleaved(kind, layout, micro_batches=4, each=2, **options):
    """A plan in which each rank of a layout has so many stages."""
    return plan_of(kind, f"{layout}|schedule=interleaved,each={each}", micro_batches, cluster=CLUSTER, **options)


def goes_on(rank, kind, plan, other, path):
    """Losses of a job that saves a checkpoint after two steps and goes on, and of one by another plan that goes on from it."""
    job = job_of(kind, plan)
    first = [job.step(batch).item() for batch in batches(kind, 2)]
    job.save(path)
    rest = [job.step(batch).item() for batch in batches(kind, 4)[2:]]
    second = job_of(kind, other)
    second.load(path)
    return first, rest, [second.step(batch).item() for batch in batches(kind, 4)[2:]], (job.stage, second.stage)


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
