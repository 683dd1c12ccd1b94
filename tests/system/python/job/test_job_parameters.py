#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job by plans whose ranks divide parameters, too: it trains as one process does, and what a rank has is its part."""

import functools
import math
import os
import pathlib
import tempfile
import unittest

from cases import build, divided, gathered, on_ranks
from switching import EACH, Switches, Training, adamw, by_one_process as by_adamw, sgd
from job_cases import BATCH, CLUSTER, FOUR, NEWER, STEPS, Mlp, OneBert, TiedHead, batches, exported, job_of, optimizer_of, plan_of
from test_job_training import Compares, by_job, by_one_process, compiled, rows_of

import torch
from torch import nn

import agpcs

CLUSTER = CLUSTER.replace("count: 2", "count: 3", 1)
PAIR, THREE, TWO_BY_TWO = "a/0,a/1", "a/0:2,a/1:1,a/2:1", "a/0:3,a/1:1|b/0:1,b/1:3"


class Gpt(nn.Module):
    """Its head is its table of words."""

    def __init__(self):
        super().__init__()
        self.table, self.position = nn.Embedding(20, 16), nn.Parameter(torch.randn(1, 6, 16) / 4)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 20, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("mask", torch.triu(torch.full((6, 6), -1e9), 1))

    def forward(self, tokens):
        x = self.table(tokens) + self.position
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.head(self.norm(x)).transpose(1, 2)

    @staticmethod
    def samples(count, generator):
        words = torch.randint(0, 20, (count, 7), generator=generator)
        return words[:, :-1], words[:, 1:]


class GroupNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = (3, 8, 8, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(a, b, 3, 1, 1), nn.GroupNorm(2, b), nn.ReLU(inplace=True))
                                    for a, b in zip(widths, widths[1:]))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        weight = self.head.weight.type_as(x)  # the parameter itself
        return nn.functional.linear(x.mean((2, 3)), weight, self.head.bias)

    @staticmethod
    def samples(count, generator):
        return torch.randn(count, 3, 8, 8, generator=generator), torch.randint(0, 4, (count,), generator=generator)


def plan3(kind, layout, *weights, micro_batches=3, recompute=""):
    """A plan whose stages divide parameters by these weights of its ranks."""
    plan = plan_of(kind, layout, micro_batches, recompute=recompute, cluster=CLUSTER, all_reduce="ring")
    made = gathered(plan, *weights, model=exported(kind), cluster=CLUSTER)
    assert {group.state for group in made.groups if not group.shared_with} == {"parameters"}, made
    return made


@functools.lru_cache(maxsize=None)
def expected(kind, limit):
    return on_ranks(by_one_process, kind, ((0, BATCH),), limit, 2.0, None, None, STEPS, ranks=1)[0]


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Trains(Compares):
    """Losses of all steps and final parameters equal those of one process."""

    def compare(self, kind, plan, max_norm=None, **options):
        losses, norms, _, state = expected(kind, math.inf if max_norm is None else max_norm)
        self.assertGreater(max(norms), max_norm or 0, "nothing was clipped")
        results = on_ranks(by_job, kind, plan, {"max_norm": max_norm, **options}, STEPS, ranks=plan.ranks)
        self.assert_alike(results, losses, state)

    def test_on_two_ranks_with_uneven_parts(self):
        for kind in (Gpt, OneBert, GroupNet):
            with self.subTest(kind=kind.__name__):
                self.compare(kind, plan3(kind, PAIR, 3, 1))

    def test_on_three_ranks_of_which_one_owns_nothing_with_recomputation_and_clipping(self):
        for kind, recompute in ((Gpt, "s0=31,10,29,17"), (OneBert, "s0=6,23"), (GroupNet, "s0")):
            with self.subTest(kind=kind.__name__):
                self.compare(kind, plan3(kind, THREE, 5, 0, 3, recompute=recompute), 0.3)

    def test_in_two_stages_of_two_ranks_with_shares_3_to_1(self):
        for kind, recompute in ((Gpt, "s1"), (OneBert, ""), (GroupNet, "s0")):
            with self.subTest(kind=kind.__name__):
                self.compare(kind, plan3(kind, TWO_BY_TWO, 1, 2, 5, 1, micro_batches=4, recompute=recompute), 0.3)

    def test_where_autograd_comes_to_buckets_in_another_order_than_the_plan(self):
        plan = plan3(Gpt, PAIR, 3, 1)
        other = gathered(plan_of(Gpt, PAIR, 3, cluster=CLUSTER, all_reduce="ring"), 3, 1)
        self.assertNotEqual(plan.text, other.text)
        self.compare(Gpt, other)

    def test_compiled_and_within_autocast(self):
        plan = plan3(Mlp, PAIR, 3, 1, recompute="s0=5,7")
        (losses, _, _, state), = on_ranks(by_one_process, Mlp, rows_of(plan), math.inf, ranks=1)
        self.assert_alike(on_ranks(compiled, Mlp, plan, {"compile": {"backend": "aot_eager"}}), losses, state)
        (losses, _, _, state), = on_ranks(by_one_process, Mlp, rows_of(plan), math.inf, 2.0, torch.bfloat16, ranks=1)
        self.assert_alike(on_ranks(by_job, Mlp, plan, {"autocast": "bf16"}), losses, state)


def seen(rank, plan):
    """What a script sees of a module between steps."""
    model = build(TiedHead)
    before, own = {name: tensor.clone() for name, tensor in model.state_dict().items()}, dict(model.named_parameters())
    job = job_of(TiedHead, plan, model)
    begun = job.state_dict()
    assert list(begun) == list(before) and all(torch.equal(begun[name], tensor) for name, tensor in before.items())
    for batch in batches(TiedHead, 2):
        job.step(batch)
    for name, parameter in model.named_parameters():
        assert parameter is own[name] and parameter.isnan().all() and parameter.grad is None, name
        assert (parameter.shape, parameter.dtype, parameter.requires_grad) == (before[name].shape, torch.float32, True)
        assert parameter.untyped_storage().nbytes() == 4, "it has memory"
    try:
        model.table.weight.data.mul_(2)
    except RuntimeError as error:
        said = str(error)
    kept = sum(p.numel() for group in job.optimizer.param_groups for p in group["params"]) if job.optimizer else 0
    trained = {name: tensor.clone() for name, tensor in job.state_dict().items()}
    assert trained["head.weight"] is not None and torch.equal(trained["head.weight"], trained["table.weight"])
    changed = any(not torch.equal(trained[name], before[name]) for name in before)
    job.load_state_dict(before)
    same = all(torch.equal(job.state_dict()[name], tensor) for name, tensor in before.items())
    return said, kept, changed, same


def going_on(rank, plans, path):
    """Losses of jobs that each go on from the checkpoint of the one before, and the final state."""
    losses, state = [], None
    for number, plan in enumerate(plans):
        training = Training(Mlp, plan, adamw)
        if number > 0:
            training.rate.load_state_dict(training.job.load(f"{path}-{number - 1}"))
            training.losses += losses
        training.train()
        training.job.save(f"{path}-{number}", extra=training.rate.state_dict())
        losses, state = training.losses, training.state()
    return losses, state


def whole(parameters):
    return torch.optim.LBFGS([parameter for _, parameter in parameters])


def begun(rank, plan, cluster, optimizer_of):
    job_of(Mlp, plan, optimizer_fn=optimizer_of, cluster=cluster).step(batches(Mlp, 1)[0])
    return "ok", ""


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Holds(Compares):
    def test_parameters_without_values_between_steps(self):
        plan = plan3(TiedHead, PAIR, 3, 1)
        elements = sum(sum(group.elements) for group in plan.groups)
        results = on_ranks(seen, plan)
        for said, _, changed, same in results:
            self.assertIn("refers to a single memory location", said)
            self.assertTrue(changed and same)
        self.assertEqual(sum(kept for _, kept, _, _ in results), elements)
        self.assertEqual(results[0][1], sum(group.parts[0] for group in plan.groups))

    def test_checkpoints_are_those_of_whole_parameters(self):
        plain = plan_of(Mlp, PAIR, 3, cluster=CLUSTER, all_reduce="ring")
        plans = [plan3(Mlp, PAIR, 5, 3), plain, divided(plain, 1, 2, level="gradients"), plan3(Mlp, PAIR, 0, 1)]
        (losses, final), = on_ranks(by_adamw, Mlp, adamw, EACH * len(plans), rows_of(plain), ranks=1)
        with tempfile.TemporaryDirectory() as folder:
            results = on_ranks(going_on, plans, os.path.join(folder, "step"))
        self.assert_alike(results, losses, final)

    def test_what_the_plan_counts_with_its_optimizer_and_no_larger_one(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "cluster.yaml")
            file.write_text(CLUSTER.replace("4 GiB", "14 kB"))
            plan = agpcs.plan(exported(Mlp), file, layout=PAIR, micro_batches=5, bound=False)
            self.assertEqual({group.state for group in plan.groups}, {"parameters"})
            self.assertEqual(on_ranks(begun, plan, file, optimizer_of), [("ok", "")] * 2)
            for kind, said in on_ranks(begun, plan, file, adamw):
                self.assertEqual(kind, "PlanMismatch" if "rank 0 needs" in said or "rank 1 needs" in said else "Error")
                self.assertRegex(said, "rank [01] needs [0-9]+ bytes of memory, and a/[01] has 14000: the plan counts ")

    def test_an_optimizer_that_may_need_whole_parameters_is_refused(self):
        for kind, said in on_ranks(begun, plan3(Mlp, PAIR, 3, 1), None, whole):
            self.assertEqual(kind, "UsageError")
            self.assertRegex(said, r"^the plan divides the optimizer's state, and torch.optim.lbfgs.LBFGS may need all of a parameter")


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Moves(Switches):
    def test_to_other_levels_parts_and_stages(self):
        three = PAIR + ",b/0"
        plain = plan_of(TiedHead, three, 3, cluster=CLUSTER, all_reduce="ring")
        by = [plan3(TiedHead, three, *weights) for weights in ((5, 3, 1), (0, 1, 2))]
        self.check(TiedHead, [plain, *by, divided(plain, 1, 2, 1, level="gradients"), by[0], plain], adamw, max_norm=0.5)
        self.check(TiedHead, [plan3(TiedHead, TWO_BY_TWO, 3, 1, 1, 2, micro_batches=4), plan_of(TiedHead, FOUR, 5, cluster=CLUSTER),
                              plan3(TiedHead, TWO_BY_TWO, 0, 1, 1, 1, micro_batches=4)], sgd, max_norm=0.5)


if __name__ == "__main__":
    unittest.main()
