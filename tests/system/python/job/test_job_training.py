#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job: clipping, mixed precision, schedules and compiled stages, beside one process that does the same."""

import math
import os
import tempfile
import unittest

from cases import build, divided, on_ranks
from job_cases import BATCH, CLUSTER, FOUR, NEWER, TOLERANCE, TWO, TWO_BY_TWO, Mlp, Tied, TiedHead, Transformer, batches, job_of, optimizer_of, plan_of

import torch
from torch import nn

STEPS = 6
ALIKE = "a/0:3,a/1:1|b/0:3,b/1:1"  # so that the replicas of both stages compute the same rows


class Half(Mlp):
    """Of bf16 itself."""

    def __init__(self):
        super().__init__()
        self.bfloat16()

    @staticmethod
    def samples(count, generator):
        x, labels = Mlp.samples(count, generator)
        return x.bfloat16(), labels


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
    """(losses, norms, scales, final state) of a job; `options` may be a function that returns them."""
    job = job_of(kind, plan, **(options() if callable(options) else options))
    losses, norms, scales = [], [], []
    for batch in batches(kind, steps):
        losses.append(job.step(batch).item())
        norms.append(None if job.grad_norm is None else job.grad_norm.item())
        scales.append(None if job.scaler is None else job.scaler.get_scale())
    return losses, norms, scales, {name: tensor.float().numpy() for name, tensor in job.state_dict().items()}


def by_one_process(rank, kind, rows, max_norm, norm_type=2.0, autocast=None, scaler=None, steps=STEPS):
    model = build(kind)
    optimizer, losses, norms, scales = optimizer_of(model.parameters()), [], [], []
    scaler = torch.amp.GradScaler("cpu", enabled=False) if scaler is None else scaler()["scaler"]
    for *inputs, labels in batches(kind, steps):
        optimizer.zero_grad()
        losses.append(0)
        for begin, end in rows:
            with torch.autocast("cpu", autocast, enabled=autocast is not None):
                loss = nn.functional.cross_entropy(model(*(x[begin:end] for x in inputs)), labels[begin:end])
            scaler.scale(loss.float() * ((end - begin) / BATCH)).backward()
            losses[-1] += loss.item() * (end - begin) / BATCH
        scaler.unscale_(optimizer)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type).item())
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return losses, norms, scales, {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}


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
        (losses, norms, _, state), = on_ranks(by_one_process, kind, ((0, BATCH),), max_norm, norm_type, ranks=1)
        results = on_ranks(by_job, kind, plan, {"max_norm": max_norm, "norm_type": norm_type}, ranks=plan.ranks)
        self.assert_alike(results, losses, state)
        for _, found, _, _ in results:
            self.assert_near(found, norms)
            self.assertEqual(found, results[0][1], "the ranks have other norms")
        return norms

    def test_by_the_norm_over_all_stages_and_counts_replicas_and_tied_parameters_once(self):
        self.assertGreater(min(self.compare(Transformer, TWO_BY_TWO, 0.3)), 0.3, "nothing was clipped")
        self.assertGreater(min(self.compare(Tied, TWO, 0.1)), 0.1, "nothing was clipped")
        self.assertGreater(min(self.compare(TiedHead, TWO, 0.1)), 0.1, "nothing was clipped")  # both stages hold its table

    def test_as_the_plan_says_where_the_job_says_nothing(self):
        cluster = CLUSTER.replace("momentum: 0.9}", "momentum: 0.9, max_norm: 0.1}")
        plan = plan_of(Tied, TWO_BY_TWO, cluster=cluster)
        self.assertIn("  update after=norm\n", plan.text)
        (losses, norms, _, state), = on_ranks(by_one_process, Tied, ((0, BATCH),), 0.1, ranks=1)
        self.assertGreater(min(norms), 0.1, "nothing was clipped")
        results = on_ranks(by_job, Tied, plan, {"trace": True}, ranks=plan.ranks)
        self.assert_alike(results, losses, state)
        for _, found, _, _ in results:
            self.assert_near(found, norms)

    def test_where_backward_passes_are_parted_and_ranks_divide_the_state(self):
        plan = divided(plan_of(Transformer, ALIKE + "|schedule=zero-bubble"), 3, 1, 1, 3)
        (losses, norms, _, state), = on_ranks(by_one_process, Transformer, ((0, BATCH),), 0.3, ranks=1)
        self.assertGreater(min(norms), 0.3, "nothing was clipped")
        results = on_ranks(by_job, Transformer, plan, {"max_norm": 0.3}, ranks=plan.ranks)
        self.assert_alike(results, losses, state)
        for _, found, _, _ in results:
            self.assert_near(found, norms)

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


def large_scale():
    return {"scaler": torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_interval=2)}


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class MixedPrecision(Compares):
    def compare(self, kind, plan, options, autocast, scaler=None, max_norm=0.3):
        losses, norms, scales, state = on_ranks(by_one_process, kind, rows_of(plan), max_norm, 2.0, autocast, scaler, ranks=1)[0]
        results = on_ranks(by_job, kind, plan, options, ranks=plan.ranks)
        self.assert_alike(results, losses, state)
        for _, found, of_job, _ in results:
            self.assert_near([x for x in found if math.isfinite(x)], [x for x in norms if math.isfinite(x)])
            self.assertEqual(of_job, [None] * STEPS if scaler is None else scales)
        return scales

    def test_bf16_of_the_job_and_of_the_plan(self):
        self.compare(Transformer, plan_of(Transformer, TWO, recompute="s1"), {"autocast": "bf16", "max_norm": 0.3}, torch.bfloat16)
        self.compare(Mlp, plan_of(Mlp, FOUR, precision="bf16"), {"max_norm": 0.3}, torch.bfloat16)

    def test_bf16_and_fp16_where_backward_passes_are_parted(self):
        parted = "|schedule=zero-bubble"
        self.compare(Mlp, plan_of(Mlp, FOUR + parted, precision="bf16"), {"max_norm": 0.3}, torch.bfloat16)
        self.compare(Transformer, plan_of(Transformer, ALIKE + parted, 2),
                     lambda: {"autocast": torch.float16, "max_norm": 0.3, **large_scale()}, torch.float16, large_scale)

    def test_a_module_of_bf16_needs_none(self):
        plan = plan_of(Half, TWO, precision="bf16")
        losses, _, _, state = on_ranks(by_one_process, Half, rows_of(plan), math.inf, ranks=1)[0]
        self.assert_alike(on_ranks(by_job, Half, plan, {}), losses, state)

    def test_fp16_leaves_out_a_step_on_all_ranks_and_unscales_before_it_clips(self):
        scales = self.compare(Transformer, plan_of(Transformer, ALIKE, 2),
                              lambda: {"autocast": torch.float16, "max_norm": 0.3, **large_scale()}, torch.float16, large_scale)
        self.assertLess(scales[0], 2.0 ** 22, "no gradient was infinite")
        self.assertGreater(scales[-1], min(scales), "the scale never grew")

    def test_all_ranks_leave_out_a_step_in_which_one_has_an_infinite_gradient(self):
        for same, state, scale in on_ranks(infinite_on_one_rank, plan_of(Mlp, TWO)):
            self.assertEqual((same, state, scale), (True, 0, 1.0))

    def test_the_scale_goes_on_from_a_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "checkpoint")
            for before, other, after in on_ranks(scale_of_checkpoint, plan_of(Mlp, TWO), path):
                self.assertEqual(before["scale"], 2.0 ** 21, "no gradient was infinite")
                self.assertEqual((other["scale"], after), (2.0 ** 16, before))

    def test_refuses_options_that_it_does_not_know(self):
        for result in on_ranks(by_job, Mlp, plan_of(Mlp, TWO), {"autocast": "fp8"}):
            self.assertEqual(result, ("UsageError", "autocast is 'fp8'; it is 'bf16', 'fp16' or False"))
        for result in on_ranks(by_job, Mlp, plan_of(Mlp, TWO), {"compile": "inductor"}):
            self.assertEqual(result, ("UsageError", "compile is 'inductor'\n  hint: it is True, or a dict of arguments of "
                                                    "torch.compile"))


def infinite_on_one_rank(rank, plan):
    """(whether the parameters stayed, how many have an optimizer's state, the scale) after a step."""
    job = job_of(Mlp, plan, scaler=torch.amp.GradScaler("cpu", init_scale=2.0))
    before = {name: tensor.clone() for name, tensor in job.state_dict().items()}
    if rank == 0:
        job.optimizer.param_groups[0]["params"][0].register_hook(lambda gradient: gradient * math.inf)
    job.step(batches(Mlp, 1)[0])
    same = all(torch.equal(tensor, before[name]) for name, tensor in job.state_dict().items())
    return same, len(job.optimizer.state), job.scaler.get_scale()


def scale_of_checkpoint(rank, plan, path):
    """States of a job's scaler, of a new job's, and of that one when it has read the checkpoint."""
    job = job_of(Mlp, plan, autocast="fp16", **large_scale())
    job.step(batches(Mlp, 1)[0])
    job.save(path)
    other = job_of(Mlp, plan, autocast="fp16")
    begun = other.scaler.state_dict()
    other.load(path)
    return job.scaler.state_dict(), begun, other.scaler.state_dict()


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Compiles(Compares):
    def test_stages_with_recomputation_and_micro_batches_of_unlike_size(self):
        plan = plan_of(Mlp, TWO, recompute="s0")
        losses, _, _, state = on_ranks(by_one_process, Mlp, rows_of(plan), math.inf, ranks=1)[0]
        self.assert_alike(on_ranks(compiled, Mlp, plan, {"compile": {"backend": "aot_eager"}}), losses, state)

    def test_stages_whose_backward_passes_are_parted(self):
        plan = plan_of(Mlp, TWO + "|schedule=zero-bubble")
        losses, _, _, state = on_ranks(by_one_process, Mlp, rows_of(plan), math.inf, ranks=1)[0]
        self.assert_alike(on_ranks(compiled, Mlp, plan, {"compile": {"backend": "aot_eager"}}), losses, state)


def compiled(rank, kind, plan, options):
    """As `by_job`, where something was compiled."""
    from torch._dynamo.utils import counters
    result = by_job(rank, kind, plan, options)
    assert counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    return result


def other_norms(rank, plan):
    return by_job(rank, Mlp, plan, {"max_norm": rank + 1})


if __name__ == "__main__":
    unittest.main()
