#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job: clipping, mixed precision, schedules and compiled stages, beside one process that does the same."""

import functools
import math
import unittest

from cases import build, on_ranks
from test_job import BATCH, NEWER, TOLERANCE, TWO, TWO_BY_TWO, Mlp, Tied, Transformer, batches, job_of, optimizer_of, plan_of

import torch
from torch import nn

STEPS = 6


def rows_of(plan):
    """The rows of which the ranks of the last stage take the loss at a time."""
    rows, begin = [], 0
    larger = plan.batch % plan.micro_batches or plan.micro_batches
    for k in range(plan.micro_batches):
        samples = list(plan.stages[-1].samples)
        if k >= larger:
            samples[samples.index(max(samples))] -= 1
        for count in samples:
            rows.append((begin, begin + count))
            begin += count
    assert begin == plan.batch
    return rows


def by_job(rank, kind, plan, options, steps=STEPS):
    """(losses, norms, final state) of a job."""
    job = job_of(kind, plan, **options)
    losses, norms = [], []
    for batch in batches(kind, steps):
        losses.append(job.step(batch).item())
        norms.append(None if job.grad_norm is None else job.grad_norm.item())
    return losses, norms, {name: tensor.numpy() for name, tensor in job.state_dict().items()}


def by_one_process(rank, kind, rows, max_norm, norm_type, steps=STEPS):
    model = build(kind)
    optimizer, losses, norms = optimizer_of(model.parameters()), [], []
    for *inputs, labels in batches(kind, steps):
        optimizer.zero_grad()
        losses.append(0)
        for begin, end in rows:
            loss = nn.functional.cross_entropy(model(*(x[begin:end] for x in inputs)), labels[begin:end])
            (loss * (end - begin) / BATCH).backward()
            losses[-1] += loss.item() * (end - begin) / BATCH
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type).item())
        optimizer.step()
    return losses, norms, {name: tensor.numpy() for name, tensor in model.state_dict().items()}


class Compares(unittest.TestCase):
    def assert_near(self, found, wanted, tolerance=TOLERANCE):
        self.assertEqual(len(found), len(wanted))
        for a, b in zip(found, wanted):
            self.assertLess(abs(a - b), tolerance * abs(b), f"{found}\n{wanted}")

    def assert_alike(self, results, losses, state, tolerance=TOLERANCE):
        """The losses and the final state of each rank are those of one process."""
        self.assertGreater(max(losses) - min(losses), 0.01, "nothing was trained")
        for found, *_, tensors in results:
            self.assertNotIsInstance(found, str, (found, tensors))
            self.assert_near(found, losses, tolerance)
            self.assertEqual(list(tensors), list(state))
            for name, tensor in state.items():
                scale = max(abs(tensor).max(), 1e-3)
                self.assertLess(abs(tensor - tensors[name]).max() / scale, tolerance, name)


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Clips(Compares):
    def compare(self, kind, layout, max_norm, norm_type=2.0):
        plan = plan_of(kind, layout)
        (losses, norms, state), = on_ranks(by_one_process, kind, ((0, BATCH),), max_norm, norm_type, ranks=1)
        results = on_ranks(by_job, kind, plan, {"max_norm": max_norm, "norm_type": norm_type}, ranks=plan.ranks)
        self.assert_alike(results, losses, state)
        for _, found, _ in results:
            self.assert_near(found, norms)
            self.assertEqual(found, results[0][1], "the ranks have other norms")
        return norms

    def test_by_the_norm_over_all_stages_and_counts_replicas_and_tied_parameters_once(self):
        self.assertGreater(min(self.compare(Transformer, TWO_BY_TWO, 0.3)), 0.3, "nothing was clipped")
        self.assertGreater(min(self.compare(Tied, TWO, 0.1)), 0.1, "nothing was clipped")

    def test_by_the_largest_gradient_and_leaves_small_ones_alone(self):
        norms = self.compare(Mlp, TWO_BY_TWO, 0.05, math.inf)
        self.assertTrue(min(norms) > 0.05, norms)
        self.compare(Mlp, TWO, 1e6, 1.0)

    def test_refuses_what_torch_does_not_know_and_options_that_differ(self):
        plan = plan_of(Mlp, TWO)
        for result in on_ranks(by_job, Mlp, plan, {"max_norm": 0}):
            self.assertEqual(result, ("UsageError", "max_norm is 0\n  hint: it is a number above 0, as "
                                                    "torch.nn.utils.clip_grad_norm_ takes it"))
        first, second = on_ranks(other_norms, plan)
        self.assertEqual(first, ("PlanMismatch", "max_norm is 2 on rank 1, and 1 on this rank"))
        self.assertEqual(second, ("PlanMismatch", "max_norm is 1 on rank 0, and 2 on this rank"))


def other_norms(rank, plan):
    return by_job(rank, Mlp, plan, {"max_norm": rank + 1})


if __name__ == "__main__":
    unittest.main()
