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

try:
    from torch.distributed.fsdp import fully_shard
except (ImportError, ValueError):  # PyTorch 1.13 does not import it under Python 3.11
    fully_shard = None
SCALER = hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler")  # for processors, too

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


def steep(module, tokens, labels):
    return 1000 * by_sample(module, tokens, labels)


def counted(labels):
    return (labels != IGNORED).sum()


def trained(rank, kind, plan, loss_fn, options, group=None):
    """Losses of steps over the job's whole batches, and what they leave of the parameters, on this rank."""
    data, ranks = Data(kind, BATCH * STEPS), plan.ranks
    parts = options.get("micro_batches", 1)
    sharded, known = ("sharded" in options and ranks > 1), "known" in options  # known: to the hook
    averaged = sharded or ("averaged" in options and ranks > 1)
    sampler = PlanSampler(data, plan, rank, shuffle=False, micro_batches=parts, process_group=group, averaged=averaged)
    module = made(kind)
    if "compile" in options:
        module = torch.compile(module, backend="eager")
    if sharded:
        shard(module)
    elif ranks > 1:
        module, _ = wrapped(module, plan, {**({"sampler": sampler} if known else {}), **options.get("hook", {})})
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.5, momentum=0.9)
    scaler = None
    if "scale" in options:
        scaler = torch.amp.GradScaler("cpu", init_scale=options["scale"], backoff_factor=2.0**-40)
    loader, losses = list(DataLoader(data, batch_sampler=sampler)), []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = torch.zeros(())
        batches = list(enumerate(loader))[step * parts:(step + 1) * parts]
        for i, (tokens, labels) in batches:
            numbers = [counted(batch[1]) for _, batch in batches]
            of_tokens = {"counted": numbers if parts > 1 else numbers[0]} if loss_fn is by_token else {}
            with sampler.sync(module, i) if ranks > 1 else contextlib.nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in options):
                    loss = loss_fn(module, tokens, labels)
                loss = sampler.weigh(loss, i, **of_tokens)
                (scaler.scale(loss) if scaler else loss).backward()
            total += loss.detach() * (1 / ranks if averaged else 1.0 if known else plan.shares[rank] / plan.batch)
        if scaler:
            scaler.unscale_(optimizer)
        if "clip" in options:
            nn.utils.clip_grad_norm_(module.parameters(), 0.05)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        dist.all_reduce(total, group=group)
        losses.append(total.item())
    return losses, size_of(module)


def shard(module):
    """Shards the layers, then the rest, as users of FSDP2 do."""
    for part in [*module.children(), module]:
        fully_shard(part, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (2,)))


def size_of(module):
    whole = (p.full_tensor() if hasattr(p, "full_tensor") else p for p in module.parameters())
    return sum(p.detach().double().abs().sum().item() for p in whole)


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
        return losses

    def test_clipped_gradients(self):
        self.check(Tagger, by_sample, clip=True)

    def test_accumulated_gradients(self):
        self.check(Tagger, by_sample, micro_batches=2)

    def test_autocast(self):
        self.check(Tagger, by_sample, tolerance=1e-2, autocast=True)

    def test_a_sampler_that_the_hook_knows_weights_losses_alone(self):
        self.check(Tagger, by_sample, known=True)
        self.check(Tagger, by_token, known=True, micro_batches=2, clip=True)

    def test_averaged_gradients(self):
        self.check(Tagger, by_sample, averaged=True, hook={"averaged": True})
        self.check(Tagger, by_sample, averaged=True, known=True, micro_batches=2)

    def test_of_a_sampler_that_the_hook_knows_the_sampler_says_whether_gradients_are_averaged(self):
        self.check(Tagger, by_sample, known=True, hook={"averaged": True})

    @unittest.skipUnless(hasattr(torch, "compile"), f"PyTorch {torch.__version__} has no torch.compile")
    def test_compiled(self):
        self.check(Tagger, by_sample, compile=True)

    @unittest.skipUnless(SCALER, f"PyTorch {torch.__version__} has no GradScaler for processors")
    def test_scaled_losses(self):
        self.check(Tagger, by_sample, scale=2.0**16, clip=True)

    @unittest.skipUnless(SCALER, f"PyTorch {torch.__version__} has no GradScaler for processors")
    def test_a_scale_that_overflows_skips_the_step_on_all_ranks(self):
        # Gradients of 1000 x loss x 2^126 are beyond fp32. The first step changes the scale alone.
        skipped, whole = (self.check(Tagger, steep, scale=scale, clip=True) for scale in (2.0**126, 2.0**10))
        self.assertNotEqual(skipped, whole)

    @unittest.skipUnless(fully_shard, f"PyTorch {torch.__version__} has no fully_shard")
    def test_sharded_parameters(self):
        self.check(Tagger, by_sample, sharded=True)
        self.check(Tagger, by_token, sharded=True, clip=True)
        self.check(Tagger, by_sample, sharded=True, micro_batches=2)

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
