#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.plan_hook on DistributedDataParallel: two ranks over Gloo."""

import copy
import itertools
import unittest

from cases import BATCH, Bert, Data, GroupResNet18, ResNet18, build, loss_of, on_ranks, plan_of, train, wrapped

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import agpcs
import agpcs.torch
from agpcs.torch import PlanSampler

STEPS = 5
TOLERANCE = 1e-5
MB = 1 << 20


def losses_with_and_without(rank, kind, plan, options, hook=None):
    """(losses of plain DDP, losses by the plan, the last step's all-reduces in order)."""
    losses = []
    for of_plan in (None, plan):
        ddp, state = wrapped(build(kind), of_plan, hook, **options)
        data = Data(kind, BATCH * STEPS)
        losses.append(train(ddp, DataLoader(data, batch_sampler=PlanSampler(data, plan, rank))))
    return (*losses, state.step)


def losses_by_shares(rank, kind, plan, micro_batches, hook=None):
    ddp, _ = wrapped(build(kind), plan, hook)
    data = Data(kind, BATCH * STEPS)
    sampler = PlanSampler(data, plan, rank, micro_batches=micro_batches)
    loader = list(DataLoader(data, batch_sampler=sampler))
    weight = plan.shares[rank] / plan.batch

    def step(number, _):
        total = 0
        for i in range(number * micro_batches, (number + 1) * micro_batches):
            with sampler.sync(ddp, i):
                loss = sampler.weigh(loss_of(ddp, loader[i]), i)
                loss.backward()
            total += loss.detach()
        dist.all_reduce(total.mul_(weight))
        return total

    return train(ddp, range(STEPS), step)


def losses_of_one_process(rank, kind, plan):
    data = Data(kind, BATCH * STEPS)
    alone = PlanSampler(data, plan, rank)
    return train(build(kind), DataLoader(data, batch_sampler=alone))


def counted(rank, kind, plan):
    """Names of the torch.distributed calls of the fourth step."""
    ddp, _ = wrapped(build(kind), plan, broadcast_buffers=False)
    data = Data(kind, BATCH * STEPS)
    loader = DataLoader(data, batch_sampler=PlanSampler(data, plan, rank))
    calls = []

    def counting(name):
        real = getattr(dist, name)

        def call(*args, **kwargs):
            calls.append(name)
            return real(*args, **kwargs)

        setattr(dist, name, call)

    for name in ("all_reduce", "all_gather", "broadcast", "barrier", "all_gather_object", "send", "recv"):
        counting(name)

    def step(i, batch):
        if i == 3:
            calls.clear()
        loss = loss_of(ddp, batch)
        loss.backward()
        if i == 3:
            counted_calls.extend(calls)
        return loss

    counted_calls = []
    train(ddp, loader, step)
    return counted_calls


class WideResNet18(ResNet18):
    """Three of its gradients have more than 1 MiB."""

    def __init__(self):
        super().__init__(width=32)


class TwoWays(nn.Module):
    """Takes one of two branches: the other has no gradients in that step."""

    def __init__(self):
        super().__init__()
        self.first, self.a, self.b, self.last = (nn.Linear(6, 6) for _ in range(4))
        self.never = nn.Linear(2, 2)

    def forward(self, x, way=0):
        return self.last(torch.relu((self.a, self.b)[way](torch.relu(self.first(x)))))

    @staticmethod
    def samples(count, generator):
        return {"x": torch.randn(count, 6, generator=generator),
                "labels": torch.randint(0, 6, (count,), generator=generator)}


def losses_on_two_ways(rank, plan):
    losses = []
    for of_plan in (None, plan):
        ddp, state = wrapped(build(TwoWays), of_plan, {"unplanned": "last"}, find_unused_parameters=True)
        data = Data(TwoWays, BATCH * STEPS)

        def step(i, batch):
            loss = nn.functional.cross_entropy(ddp(batch[0], (i + rank) // 2 % 2), batch[1])
            loss.backward()
            return loss

        losses.append(train(ddp, DataLoader(data, batch_sampler=PlanSampler(data, plan, rank)), step))
    return (*losses, [reduction.group for reduction in state.step], ddp.module.never.weight.grad is None)


def first_step(rank, kind, plans, hook, frozen=()):
    """Makes a step; the test looks at the error."""
    module = build(kind)
    for name in frozen:
        module.get_parameter(name).requires_grad_(False)
    hook = hook[rank] if isinstance(hook, list) else hook
    ddp, state = wrapped(module, plans[rank], hook)
    loss_of(ddp, next(iter(DataLoader(Data(kind, BATCH), batch_size=4)))).backward()
    return [reduction.group for reduction in state.step]


def first_step_with_one_hook_for_two(rank, plan):
    ddp, state = wrapped(build(Bert), plan)
    other = DistributedDataParallel(build(Bert))
    other.register_comm_hook(state, agpcs.torch.plan_hook(plan)[1])
    batch = next(iter(DataLoader(Data(Bert, BATCH), batch_size=4)))
    loss_of(ddp, batch).backward()
    loss_of(other, batch).backward()


def first_step_of_sparse(rank, plan):
    module = build(Bert)
    module.word.sparse = True
    ddp, _ = wrapped(module, plan)
    loss_of(ddp, next(iter(DataLoader(Data(Bert, BATCH), batch_size=4)))).backward()


def listed(names):
    return ", ".join(f"'{name}'" for name in names[:3]) + f" and {len(names) - 3} more"


def reordered(plan, groups):
    plan = copy.copy(plan)
    plan.groups = tuple(groups)
    return plan


def steps_that_add_up(rank, plan, known, set_to_none):
    """Makes three steps with gradients zeroed before each, and one more whose gradients are added to the last ones. Returns
    the largest difference from the gradients of two steps in one process."""
    data, module, alone = Data(Bert, BATCH), build(Bert), build(Bert)
    for _ in range(2):
        loss_of(alone, data.columns).backward()
    sampler = PlanSampler(4 * BATCH, plan, rank)
    ddp, _ = wrapped(module, plan, {"sampler": sampler} if known else None)
    begin = sum(plan.shares[:rank])
    share = [column[begin:begin + plan.shares[rank]] for column in data.columns]
    for step in range(4):
        loss = sampler.weigh(loss_of(ddp, share), step)
        if step < 3:
            ddp.zero_grad(set_to_none=set_to_none)
        loss.backward()
    return max((p.grad - own.grad).abs().max().item() for p, own in zip(module.parameters(), alone.parameters()))


class PlanHook(unittest.TestCase):
    def assert_same(self, expected, losses, tolerance=TOLERANCE):
        self.assertEqual(len(expected), STEPS)
        self.assertGreater(max(expected) - min(expected), 1e-3, "nothing was trained")
        for a, b in zip(expected, losses):
            self.assertLess(abs(a - b), tolerance, f"{expected} {losses}")

    def compare(self, kind, plan, *, hook=None, tolerance=TOLERANCE, **options):
        """Same losses as plain DDP, in the plan's order on both ranks; returns a step's all-reduces."""
        for plain, planned, step in on_ranks(losses_with_and_without, kind, plan, options, hook):
            self.assert_same(plain, planned, tolerance)
            order = [group for group, _ in itertools.groupby(reduction.group for reduction in step)]
            self.assertEqual(order, [group.name for group in plan.groups])
            self.assertEqual(sum(r.elements for r in step), sum(sum(group.elements) for group in plan.groups))
        return step

    def assert_refused(self, results, *words, ranks=(0, 1)):
        for rank in ranks:
            kind, text = results[rank]
            self.assertIn("PlanMismatch", kind + text)
            for word in words:
                self.assertIn(word, text)

    def assert_says(self, result, text):
        """The rank raised PlanMismatch with this text."""
        kind, said = result
        if torch.__version__.startswith("1."):  # makes a RuntimeError of what a hook raises
            self.assertIn(f"PlanMismatch: {text}", said)
        else:
            self.assertEqual((kind, said), ("PlanMismatch", text))

    def test_trains_resnet18_to_the_losses_of_plain_ddp(self):
        self.compare(ResNet18, plan_of(ResNet18))

    def test_trains_bert_to_the_losses_of_plain_ddp(self):
        self.compare(Bert, plan_of(Bert))

    def compare_shares(self, kind, *arguments):
        """Same losses as one process over the whole batch."""
        plan = plan_of(kind, shares="3:1")
        self.assertEqual(plan.shares, (6, 2))
        expected, = on_ranks(losses_of_one_process, kind, plan_of(kind, layout="local/0"), ranks=1)
        for losses in on_ranks(losses_by_shares, kind, plan, *arguments):
            self.assert_same(expected, losses)

    def test_shares_of_3_to_1_train_resnet18_to_the_losses_of_one_process(self):
        # Batch norm takes its statistics from a rank's own samples, so here it is group norm. It is exported as an
        # instance norm with constants for weights, which agpcs.torch.export does not list as parameters.
        self.compare_shares(GroupResNet18, 1)

    def test_shares_of_3_to_1_train_bert_to_the_losses_of_one_process(self):
        self.compare_shares(Bert, 1)

    def test_micro_batches_add_up_to_the_losses_of_one_process(self):
        self.compare_shares(Bert, 2)

    def test_a_group_that_spans_buckets_of_ddp_copies_its_small_gradients_into_one_all_reduce(self):
        plan = plan_of(WideResNet18, bucket_bytes=64 * MB)
        self.assertEqual(len(plan.groups), 1)
        *large, small = self.compare(WideResNet18, plan, bucket_cap_mb=0.1)
        self.assertTrue(small.copied)
        self.assertGreater(len(large), 1)
        for reduction in large:
            self.assertFalse(reduction.copied)
            self.assertGreaterEqual(4 * reduction.elements, MB)

    def test_a_wire_type_copies_all_gradients_of_a_group_into_one_all_reduce(self):
        plan = plan_of(Bert, bucket_bytes=64 * MB)
        step = self.compare(Bert, plan, hook={"wire_type": "fp16"}, tolerance=2e-3, bucket_cap_mb=0.1)
        self.assertEqual([reduction.copied for reduction in step], [True])

    def test_groups_within_one_bucket_of_ddp_are_reduced_in_place(self):
        plan = plan_of(Bert, bucket_bytes=4096)
        self.assertGreater(len(plan.groups), 5)
        copied = [reduction.copied for reduction in self.compare(Bert, plan)]
        self.assertLess(sum(copied), len(copied), "DDP has gradients in about the plan's order")

    def test_groups_across_buckets_in_an_order_that_ddp_has_not(self):
        plan = plan_of(ResNet18, bucket_bytes=100_000)
        self.compare(ResNet18, reordered(plan, reversed(plan.groups)), bucket_cap_mb=0.3)

    def test_static_graph_and_gradients_as_views(self):
        self.compare(Bert, plan_of(Bert, bucket_bytes=8192), static_graph=True)
        self.compare(Bert, plan_of(Bert, bucket_bytes=8192), gradient_as_bucket_view=True, bucket_cap_mb=0.02)

    def test_unused_parameters_and_those_that_the_plan_does_not_know(self):
        plan = plan_of(TwoWays)
        self.assertFalse({"b.weight", "never.weight"} & set(plan.groups[0].parameters))
        for plain, planned, order, never in on_ranks(losses_on_two_ways, plan):
            self.assert_same(plain, planned)
            self.assertEqual(order, [*(group.name for group in plan.groups), "unplanned"])
            self.assertTrue(never)

    def test_fp16_on_the_wire_changes_losses_by_its_rounding(self):
        self.compare(Bert, plan_of(Bert), hook={"wire_type": "fp16"}, tolerance=2e-3)

    def test_without_a_wire_type_the_plans_is_taken(self):
        options = {"layout": "local/0:1,local/1:1", "bucket_bytes": 64 * MB}  # the same groups with and without
        plain, rounded = plan_of(Bert, **options), plan_of(Bert, wire_type="fp16", **options)
        of_plain, of_hook, of_plan = (on_ranks(losses_with_and_without, Bert, plan, {}, hook)[0][1] for plan, hook in (
            (plain, None), (plain, {"wire_type": "fp16"}), (rounded, None)))
        self.assertEqual(of_hook, of_plan)
        self.assertNotEqual(of_plain, of_plan)

    def test_bf16_on_the_wire_trains_or_says_that_the_backend_cannot(self):
        plan = plan_of(Bert)
        if torch.__version__.startswith("1."):
            results = on_ranks(first_step, Bert, [plan, plan], {"wire_type": "bf16"})
            self.assert_refused(results, "gloo of PyTorch 1.", "does not sum torch.bfloat16")
        else:
            self.compare(Bert, plan, hook={"wire_type": "bf16"}, tolerance=5e-3)

    def test_a_step_sends_nothing_but_the_groups(self):
        plan = plan_of(Bert, bucket_bytes=8192)
        for calls in on_ranks(counted, Bert, plan):
            self.assertEqual(calls, ["all_reduce"] * len(plan.groups))

    def test_a_frozen_parameter_is_left_out(self):
        plan = plan_of(Bert)
        self.assertGreater(len(plan.groups[0].parameters), 2)
        frozen = ("classifier.bias", "pooler.weight")
        for order in on_ranks(first_step, Bert, [plan, plan], None, frozen):
            self.assertEqual(order, [group.name for group in plan.groups])

    def test_refuses_the_plan_of_another_module(self):
        plan = plan_of(Bert)
        names = [name for group in plan.groups for name in group.parameters]
        ours = [name for name, _ in ResNet18().named_parameters()]
        for result in on_ranks(first_step, ResNet18, [plan, plan], None):
            self.assert_says(result, f"the module lacks {listed(names)} of the plan\n"
                             "  hint: agpcs.torch.export keeps the module's names; rename= maps other ones, missing='skip' "
                             f"leaves them out\nthe plan lacks {listed(ours)} of the module\n"
                             "  hint: plan the module that is trained; unplanned='last' reduces them after the plan's groups")

    def test_refuses_another_size_when_the_module_is_given(self):
        with self.assertRaisesRegex(agpcs.PlanMismatch, "'classifier.weight' has 96 elements in the plan and 192 in"):
            agpcs.torch.plan_hook(plan_of(Bert), Bert(hidden=64))

    def test_renames_parameters(self):
        with self.assertRaisesRegex(agpcs.PlanMismatch, "lacks 'classifier.weight'"):
            agpcs.torch.plan_hook(plan_of(Bert), nn.ModuleDict({"bert": build(Bert)}))
        state, _ = agpcs.torch.plan_hook(plan_of(Bert), nn.ModuleDict({"bert": build(Bert)}),
                                         rename=lambda name: f"bert.{name}")
        self.assertIn("bert.classifier.weight", state.groups[0].parameters)

    def test_refuses_other_plans_on_other_ranks(self):
        plans = [plan_of(Bert), plan_of(Bert, bucket_bytes=8192)]
        hooks = [{"wire_type": None}, {"wire_type": "fp16"}]
        for results in (on_ranks(first_step, Bert, plans, None), on_ranks(first_step, Bert, plans[:1] * 2, hooks)):
            for result in results:
                self.assert_says(result, "rank 1 has another plan, or other options of plan_hook, than rank 0\n"
                                 "  hint: give all ranks one file")

    def test_refuses_ranks_of_which_one_reduces_ddps_own_buckets(self):
        own = copy.copy(plan_of(Bert))
        own.in_ddp_buckets = True
        for result in on_ranks(first_step, Bert, [plan_of(Bert), own], None):
            self.assert_says(result, "rank 1 has another plan, or other options of plan_hook, than rank 0\n"
                             "  hint: give all ranks one file")

    def test_gradients_of_several_steps_add_up_or_are_refused(self):
        plan = plan_of(Bert, shares="3:1")
        for set_to_none in (True, False):
            for difference in on_ranks(steps_that_add_up, plan, False, set_to_none):
                self.assertLess(difference, TOLERANCE)
            for result in on_ranks(steps_that_add_up, plan, True, set_to_none):
                self.assertEqual(result, (
                    "PlanMismatch", "gradients are added to those of another step, which all ranks have reduced already\n"
                    "  hint: optimizer.zero_grad() after each step; accumulate within sampler.sync(ddp, i) or ddp.no_sync(), "
                    "or by plan_hook without sampler"))

    def test_every_rank_hears_that_one_refuses(self):
        plans = [plan_of(Bert), plan_of(TwoWays)]
        results = on_ranks(first_step, Bert, plans, None)
        self.assert_says(results[0], "rank 1 refuses the plan\n  hint: its own error says why")
        self.assert_refused(results, "the module lacks", ranks=[1])

    def test_refuses_another_number_of_ranks(self):
        plan = plan_of(Bert, layout="local/0")
        self.assert_refused(on_ranks(first_step, Bert, [plan, plan], None), "for 1 ranks and the process group has 2")

    def test_refuses_a_plan_with_pipeline_stages(self):
        with self.assertRaisesRegex(agpcs.PlanMismatch, "2 pipeline stages.*\n.*data_parallel=True"):
            agpcs.torch.plan_hook(plan_of(Bert, layout="local/0|local/1"))

    def test_refuses_a_plan_with_idle_ranks(self):
        with self.assertRaisesRegex(agpcs.PlanMismatch, "idle ranks.*\n.*without idle_ranks"):
            agpcs.torch.plan_hook(plan_of(Bert, layout="local/0", idle_ranks=True))

    def test_refuses_gradients_of_a_second_module(self):
        self.assert_refused(on_ranks(first_step_with_one_hook_for_two, plan_of(Bert)), "plan_hook of its own")

    def test_refuses_sparse_gradients(self):
        self.assert_refused(on_ranks(first_step_of_sparse, plan_of(Bert)), "the gradient of 'word.weight' is sparse")

    def test_refuses_unknown_options(self):
        plan = plan_of(TwoWays)
        for wrong in ({"wire_type": "fp8"}, {"unplanned": "first"}, {"missing": "last"}, {"rename": "net"},
                      {"on_drift": "shout"}):
            with self.assertRaisesRegex(agpcs.UsageError, f"{list(wrong)[0]} is '{list(wrong.values())[0]}'"):
                agpcs.torch.plan_hook(plan, **wrong)


if __name__ == "__main__":
    unittest.main()
