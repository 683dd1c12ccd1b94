# SPDX-License-Identifier: Apache-2.0
"""What tests of jobs that get another plan share: optimizers with a schedule, jobs that train by one plan after the other, and
one process that knows of no plan."""

import tempfile
import unittest

from cases import build, on_ranks
from job_cases import BATCH, batches, job_of

import torch
from torch import nn

EACH = 3  # steps by each plan
SAME = 1e-5


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adamw(parameters):
    """Two groups of parameters, with and without decay."""
    parameters = list(parameters)
    groups = [[one for _, one in parameters if (one.dim() > 1) == decays] for decays in (True, False)]
    return torch.optim.AdamW([{"params": group, "weight_decay": decay} for group, decay in zip(groups, (0.1, 0.0))],
                             lr=0.01, eps=1e-3)


def rate_of(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)


def by_one_process(rank, kind, optimizer_of, steps, parts=((0, BATCH),), max_norm=None):
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
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        rate.step()
    return losses, {name: tensor.numpy() for name, tensor in model.state_dict().items()}


class Training:
    """A job with what a test looks at."""

    def __init__(self, kind, plan, optimizer_of, **options):
        self.kind, self.model = kind, build(kind)
        self.job = job_of(kind, plan, self.model, optimizer_of, **options)
        self.rate, self.losses, self.held = rate_of(self.job.optimizer), [], []

    def train(self, steps=EACH):
        for batch in batches(self.kind, steps, len(self.losses)):
            self.losses.append(self.job.step(batch).item())
            self.rate.step()
        self.held.append([name for name, parameter in self.model.named_parameters() if not parameter.is_meta])

    def state(self):
        return {name: tensor.numpy() for name, tensor in self.job.state_dict().items()}


def switching(rank, kind, plans, optimizer_of, max_norm):
    """Losses, the parameters that this rank had by each plan, the final state, and whether objects stayed the same."""
    training = Training(kind, plans[0], optimizer_of, max_norm=max_norm)
    optimizer, stayed = training.job.optimizer, []
    training.train()
    for plan in plans[1:]:
        before = {name: p for name, p in training.model.named_parameters() if not p.is_meta}
        training.job.switch(plan if rank == 0 else "only rank 0's counts")
        stayed.append(training.job.optimizer is optimizer and training.job.plan == plan)
        training.train()
        stayed += [p is before[name] for name, p in training.model.named_parameters() if not p.is_meta and name in before]
    return training.losses, training.held, training.state(), all(stayed)


def by_checkpoints(rank, kind, plans, optimizer_of, folder):
    """Losses of some steps by each plan, each from the checkpoint of the one before, and the final state."""
    losses, training = [], None
    for number, plan in enumerate(plans):
        before, training = training, Training(kind, plan, optimizer_of)
        if before is not None:
            before.job.save(f"{folder}/{number}", extra=before.rate.state_dict())
            training.rate.load_state_dict(training.job.load(f"{folder}/{number}"))
        for batch in batches(kind, EACH * (number + 1))[EACH * number:]:
            losses.append(training.job.step(batch).item())
            training.rate.step()
    return losses, training.state()


class Switches(unittest.TestCase):
    def assert_same(self, found, wanted, state, final):
        self.assertEqual(len(found), len(wanted), found)
        for a, b in zip(found, wanted):
            self.assertLess(abs(a - b), SAME * abs(b), f"{found}\n{wanted}")
        self.assertEqual(list(state), list(final))
        for name, tensor in final.items():
            self.assertLess(abs(tensor - state[name]).max(), 1e-4 * max(abs(tensor).max(), 1e-3), name)

    def check(self, kind, plans, optimizer_of, max_norm=None):
        (losses, final), = on_ranks(by_one_process, kind, optimizer_of, EACH * len(plans), ((0, BATCH),), max_norm, ranks=1)
        self.assertGreater(max(losses) - min(losses), 0.05, "nothing was trained")
        results = on_ranks(switching, kind, plans, optimizer_of, max_norm, ranks=plans[0].ranks)
        for result in results:
            self.assertNotIsInstance(result[0], str, result)
            found, _, state, stayed = result
            self.assert_same(found, losses, state, final)
            self.assertTrue(stayed, "an optimizer or a parameter that stays is another object")
        return [held for _, held, *_ in results]

    def check_checkpoints(self, kind, plans, optimizer_of, by=by_checkpoints):
        """A job by each plan goes on from the checkpoint of the one before, as one process does."""
        (wanted, final), = on_ranks(by_one_process, kind, optimizer_of, EACH * len(plans), ranks=1)
        with tempfile.TemporaryDirectory() as folder:
            for losses, state in on_ranks(by, kind, plans, optimizer_of, folder):
                self.assertNotIsInstance(losses, str, state)
                self.assert_same(losses, wanted, state, final)
