#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job: another plan between two steps, beside one process that knows of no plan."""

import unittest

from cases import build, on_ranks
from test_job import BATCH, CLUSTER, FOUR, NEWER, TWO, TWO_BY_TWO, Mlp, TiedHead, batches, plan_of

import torch
from torch import nn

import agpcs
import agpcs.torch

EACH = 3  # steps by each plan
SAME = 1e-5
SLOW = CLUSTER.replace("hosts:", "  slow: {peak: {fp32: 10 GFLOPS, bf16: 10 GFLOPS}, memory: 4 GiB, "
                       "memory_bandwidth: 2.5 GB/s, launch_overhead: 20 us}\nhosts:").replace("{kind: cpu,", "{kind: slow,", 1)
UNEVEN = "a/0:3,b/0:1"  # one stage of two replicas


class Normed(Mlp):
    """Its running statistics are buffers that steps change."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh())),
                                    nn.Linear(16, 4))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adamw(parameters):
    """Two groups of parameters, with and without decay."""
    parameters = list(parameters)
    groups = [[one for _, one in parameters if (one.dim() > 1) == decays] for decays in (True, False)]
    return torch.optim.AdamW([{"params": group, "weight_decay": decay} for group, decay in zip(groups, (0.1, 0.0))],
                             lr=0.01, eps=1e-3)


def rate_of(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)


def by_one_process(rank, kind, optimizer_of, steps, parts=((0, BATCH),)):
    model = build(kind)
    optimizer = optimizer_of(model.named_parameters())
    rate, losses = rate_of(optimizer), []
    for *inputs, labels in batches(kind, steps):
        optimizer.zero_grad()
        losses.append(0)
        for begin, end in parts:
            loss = nn.functional.cross_entropy(model(*(x[begin:end] for x in inputs)), labels[begin:end])
            (loss * ((end - begin) / BATCH)).backward()
            losses[-1] += loss.item() * (end - begin) / BATCH
        optimizer.step()
        rate.step()
    return losses, {name: tensor.numpy() for name, tensor in model.state_dict().items()}


class Training:
    """A job with what a test looks at."""

    def __init__(self, kind, plan, optimizer_of):
        self.kind, self.model = kind, build(kind)
        self.job = agpcs.torch.Job(self.model, plan, nn.functional.cross_entropy, optimizer_of, batches(kind, 1)[0])
        self.rate, self.losses, self.held = rate_of(self.job.optimizer), [], []

    def train(self, steps=EACH):
        for batch in batches(self.kind, len(self.losses) + steps)[len(self.losses):]:
            self.losses.append(self.job.step(batch).item())
            self.rate.step()
        self.held.append([name for name, parameter in self.model.named_parameters() if not parameter.is_meta])

    def state(self):
        return {name: tensor.numpy() for name, tensor in self.job.state_dict().items()}


def switching(rank, kind, plans, optimizer_of):
    """Losses, the parameters that this rank had by each plan, the final state, and whether objects stayed the same."""
    training = Training(kind, plans[0], optimizer_of)
    optimizer, stayed = training.job.optimizer, []
    training.train()
    for plan in plans[1:]:
        before = {name: p for name, p in training.model.named_parameters() if not p.is_meta}
        training.job.switch(plan if rank == 0 else "only rank 0's counts")
        stayed.append(training.job.optimizer is optimizer and training.job.plan == plan)
        training.train()
        stayed += [p is before[name] for name, p in training.model.named_parameters() if not p.is_meta and name in before]
    return training.losses, training.held, training.state(), all(stayed)


def refusing(rank, kind, plan, others, after):
    """Losses of a job that does not take any of the plans `others`, and could not take the plan `after` at first; what was
    said; the final state."""
    calls, said = [], []

    def fails(parameters):
        calls.append(1)
        if rank == 1 and len(calls) == 2:
            raise ValueError("no optimizer today")
        return sgd(parameters)

    training = Training(kind, plan, fails)
    for other in (*others, after):
        training.train(1)
        before = dict(training.model.named_parameters())
        try:
            training.job.switch(other)
        except (agpcs.Error, ValueError, OSError) as error:
            said.append(f"{type(error).__name__}: {error}")
        assert all(before[name] is p for name, p in training.model.named_parameters()) and training.job.plan == plan
    training.train(1)
    training.job.switch(after)
    training.train(2)
    return training.losses, said, training.state()


def begins_badly(rank, plan):
    def fails(parameters):
        if rank == 1:
            raise ValueError("no optimizer today")
        return sgd(parameters)

    agpcs.torch.Job(build(Normed), plan, nn.functional.cross_entropy, fails, batches(Normed, 1)[0])


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Switch(unittest.TestCase):
    def assert_same(self, found, wanted, state, final):
        self.assertEqual(len(found), len(wanted), found)
        for a, b in zip(found, wanted):
            self.assertLess(abs(a - b), SAME * abs(b), f"{found}\n{wanted}")
        self.assertEqual(list(state), list(final))
        for name, tensor in final.items():
            self.assertLess(abs(tensor - state[name]).max(), 1e-4 * max(abs(tensor).max(), 1e-3), name)

    def check(self, kind, plans, optimizer_of):
        (losses, final), = on_ranks(by_one_process, kind, optimizer_of, EACH * len(plans), ranks=1)
        self.assertGreater(max(losses) - min(losses), 0.05, "nothing was trained")
        results = on_ranks(switching, kind, plans, optimizer_of, ranks=plans[0].ranks)
        for result in results:
            self.assertNotIsInstance(result[0], str, result)
            found, _, state, stayed = result
            self.assert_same(found, losses, state, final)
            self.assertTrue(stayed, "an optimizer or a parameter that stays is another object")
        return [held for _, held, *_ in results]

    def test_to_another_cut_and_to_uneven_replicas_and_back(self):
        two, other = plan_of(TiedHead, TWO), plan_of(TiedHead, TWO, cluster=SLOW)
        first, second = self.check(TiedHead, [two, other, plan_of(TiedHead, UNEVEN), two], adamw)
        self.assertLess(set(first[1]), set(first[0]), "the cut is where it was")
        self.assertEqual(set(first[2]), set(second[2]))
        self.assertEqual((first[0], second[0]), (first[3], second[3]))
        for before, after in zip(zip(first, second), (False, False, True, False)):
            self.assertEqual("layers.0.weight" in before[0] and "layers.0.weight" in before[1], after)
            self.assertTrue(all("table.weight" in held for held in before), "both ends read the table")

    def test_of_two_stages_of_two_replicas(self):
        plans = [plan_of(TiedHead, TWO_BY_TWO), plan_of(TiedHead, FOUR, 5),
                 plan_of(TiedHead, "a/0:1,a/1:1|b/0:3,b/1:1", cluster=SLOW)]
        held = self.check(TiedHead, plans, sgd)
        self.assertEqual([names[0] == names[1] for names in zip(*held)], [True, False, True])

    def test_is_whole_or_not_at_all(self):
        plan, after = plan_of(Normed, TWO), plan_of(Normed, TWO, cluster=SLOW)
        others = ["nowhere.plan", plan_of(Normed, TWO, batch=20), plan_of(TiedHead, TWO), plan_of(Normed, FOUR, 10),
                  plan_of(Normed, "a/0|a/1"), plan]
        (losses, final), = on_ranks(by_one_process, Normed, sgd, len(others) + 4, ((0, 3), (3, 6), (6, 8), (8, 10)), ranks=1)
        first, second = on_ranks(refusing, Normed, plan, others, after)
        for result in (first, second):
            self.assertNotIsInstance(result[0], str, result)
            self.assert_same(result[0], losses, result[2], final)
        self.assertEqual(first[1][1:-1], second[1][1:-1])
        self.assertEqual((first[1][0], second[1][0]), (
            "FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.plan'",
            "Error: rank 0 cannot switch: FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.plan'"))
        self.assertEqual(first[1][1], "PlanMismatch: the new plan has batch 20, and the job's has 10\n"
                                      "  hint: a plan of the same training; a new Job trains otherwise")
        self.assertRegex(first[1][2], "^PlanMismatch: the plan is not for this module: .* this model is 'model' ")
        self.assertRegex(first[1][3], "^PlanMismatch: the plan of model has 4 ranks, and the job has 2\n")
        self.assertEqual(first[1][4], "PlanMismatch: rank 1 is a/1 in the new plan, and it runs on b/0\n"
                                      "  hint: a plan of the same cluster file, with all of the job's devices")
        self.assertEqual((first[1][5:], second[1][5:]), (["Error: rank 1 cannot switch: ValueError: no optimizer today"],
                                                         ["ValueError: no optimizer today"]))

    def test_a_rank_whose_optimizer_cannot_be_made_is_named_on_the_others(self):
        first, second = on_ranks(begins_badly, plan_of(Normed, TWO))
        self.assertEqual(second, ("ValueError", "no optimizer today"))
        self.assertEqual(first, ("Error", "rank 1 cannot begin: ValueError: no optimizer today"))


if __name__ == "__main__":
    unittest.main()
