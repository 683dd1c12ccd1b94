#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loops as people write them, by a plan with shares 3 to 1: losses are those of one process over the whole batch."""

import contextlib
import unittest

from cases import BATCH, Data, on_ranks, plan_of, wrapped

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from agpcs.torch import PlanSampler

STEPS = 5
IGNORED = -100


class Tagger(nn.Module):
    """Logits for each token. Adapters of low rank beside a frozen layer, as LoRA adds them."""

    def __init__(self, width=16, words=40, tags=6):
        super().__init__()
        self.words, self.inner = nn.Embedding(words, width), nn.Linear(width, width)
        self.down, self.up = nn.Linear(width, 2, bias=False), nn.Linear(2, width, bias=False)
        self.tags = nn.Linear(width, tags)

    def forward(self, tokens):
        x = self.words(tokens)
        return self.tags(torch.tanh(self.inner(x) + self.up(self.down(x))))

    @staticmethod
    def samples(count, generator):
        labels = torch.randint(0, 6, (count, 7), generator=generator)
        labels[torch.rand(count, 7, generator=generator) < torch.linspace(0, 0.8, count)[:, None]] = IGNORED
        labels[:, 0] = 1  # every sample has one that counts
        return {"tokens": torch.randint(0, 40, (count, 7), generator=generator), "labels": labels}


class Adapted(Tagger):
    """Trains the adapters and the last layer alone."""

    def __init__(self):
        super().__init__()
        self.words.requires_grad_(False)
        self.inner.requires_grad_(False)


def made(kind):
    torch.manual_seed(3)
    return kind().train()


def by_sample(module, tokens, labels):
    """The mean over samples: all tokens count."""
    return cross_entropy(module(tokens).flatten(0, 1), labels.clamp(min=0).flatten())


def by_token(module, tokens, labels):
    return cross_entropy(module(tokens).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def counted(labels):
    return (labels != IGNORED).sum()


def trained(rank, kind, plan, loss_fn, options, group=None):
    """Losses of steps over the job's whole batches, and what they leave of the parameters, on this rank."""
    data, ranks = Data(kind, BATCH * STEPS), plan.ranks
    parts = options.get("micro_batches", 1)
    sampler = PlanSampler(data, plan, rank, shuffle=False, micro_batches=parts, process_group=group)
    module = made(kind)
    if "compile" in options:
        module = torch.compile(module, backend="eager")
    if ranks > 1:
        module, _ = wrapped(module, plan)
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.01)
    loader, losses = list(DataLoader(data, batch_sampler=sampler)), []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = torch.zeros(())
        batches = list(enumerate(loader))[step * parts:(step + 1) * parts]
        for i, (tokens, labels) in batches:
            numbers = [counted(batch[1]) for _, batch in batches]
            of_tokens = {} if loss_fn is by_sample else {"counted": numbers if parts > 1 else numbers[0]}
            with sampler.sync(module, i) if ranks > 1 else contextlib.nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in options):
                    loss = loss_fn(module, tokens, labels)
                loss = sampler.weigh(loss, i, **of_tokens)
                loss.backward()
            total += loss.detach() * plan.shares[rank] / plan.batch
        if "clip" in options:
            nn.utils.clip_grad_norm_(module.parameters(), 0.05)
        optimizer.step()
        dist.all_reduce(total, group=group)
        losses.append(total.item())
    return losses, size_of(module)


def size_of(module):
    return sum(p.detach().double().abs().sum().item() for p in module.parameters())


def both(rank, kind, loss_fn, options):
    shared = trained(rank, kind, plan_of(kind, shares="3:1"), loss_fn, options)
    alone, group = plan_of(kind, layout="local/0"), dist.new_group([0])
    if rank == 1:
        return shared
    return shared, trained(0, kind, alone, loss_fn, {k: v for k, v in options.items() if k != "micro_batches"}, group)


class Loops(unittest.TestCase):
    def check(self, kind, loss_fn, tolerance=1e-5, **options):
        plan_of(kind, shares="3:1"), plan_of(kind, layout="local/0")  # made once, for both ranks
        ((losses, norm), (expected, norm_alone)), (losses_1, norm_1) = on_ranks(both, kind, loss_fn, options)
        self.assertEqual((losses, norm), (losses_1, norm_1))
        self.assertNotAlmostEqual(norm, size_of(made(kind)), places=1)
        for loss, alone in zip([*losses, norm], [*expected, norm_alone]):
            self.assertAlmostEqual(loss, alone, delta=tolerance * alone)

    def test_clipped_gradients(self):
        self.check(Tagger, by_sample, clip=True)

    def test_accumulated_gradients(self):
        self.check(Tagger, by_sample, micro_batches=2)

    def test_autocast(self):
        self.check(Tagger, by_sample, tolerance=1e-2, autocast=True)

    @unittest.skipUnless(hasattr(torch, "compile"), f"PyTorch {torch.__version__} has no torch.compile")
    def test_compiled(self):
        self.check(Tagger, by_sample, compile=True)

    def test_adapters_beside_frozen_layers(self):
        plan = plan_of(Adapted, shares="3:1")
        names = sorted(name for group in plan.groups for name in group.parameters)
        self.assertEqual(names, ["down.weight", "tags.bias", "tags.weight", "up.weight"])
        self.check(Adapted, by_sample)

    def test_means_over_tokens(self):
        self.check(Tagger, by_token)
        self.check(Adapted, by_token, clip=True)


if __name__ == "__main__":
    unittest.main()
