#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.planned_loader in loops of accelerate, with shares 3 to 1: losses are those of one process in plain PyTorch."""

import sys
import tempfile
import unittest

from cases import BATCH, Data, on_ranks, plan_of
from adapter_cases import EPOCHS, SAMPLES, SEED, alone, check_other_plan, check_sample, compare, launched, optimizer_of
from test_loops import Adapted, Tagger, by_sample, by_token, counted, made, size_of

try:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration
except ImportError:
    print(f"skipped: {sys.executable} has no accelerate (PyPI: accelerate)")
    sys.exit(77)
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, WeightedRandomSampler

from agpcs.torch import PlanSampler, planned_loader


def prepared(rank, plan, kind, options, loader=None, accelerator=None):
    """Accelerator, model, optimizer and the planned loader, in a process like torchrun's."""
    launched(rank, 2)
    parts = options.get("accumulated", 1)
    accelerator = accelerator or Accelerator(cpu=True, gradient_accumulation_steps=parts,
                                             mixed_precision=options.get("precision", "no"))
    module = made(kind)
    model, optimizer = accelerator.prepare(module, optimizer_of(module))
    loader = loader or DataLoader(Data(kind, SAMPLES), batch_size=BATCH // 2 // parts, shuffle=True)
    return accelerator, model, optimizer, planned_loader(accelerator, model, loader, plan, seed=SEED)


def epoch_of(accelerator, model, optimizer, loader, sampler, loss_fn, first=0, clip=None):
    """The losses of an epoch's steps from batch number `first` on."""
    losses, step = [], []
    for i, batch in enumerate(loader, first):
        step.append((i, batch))
        if len(step) < sampler.micro_batches:
            continue
        total = 0
        for i, (tokens, labels) in step:
            with accelerator.accumulate(model):
                loss = loss_fn(model, tokens, labels)
                numbers = [counted(batch[1]) for _, batch in step]
                of_tokens = [numbers if len(numbers) > 1 else numbers[0]] if loss_fn is by_token else []
                loss = sampler.weigh(loss, i, *of_tokens)
                accelerator.backward(loss)
                if accelerator.sync_gradients and clip:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
            total += accelerator.gather(loss.detach().reshape(1)).mean().item() / len(step)
        losses.append(total)
        step = []
    return losses


def trained(rank, plan, kind, loss_fn, options):
    loader = None
    if "sampled" in options:  # by a sampler of batches that the user made
        data = Data(kind, SAMPLES)
        loader = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), BATCH // 2, drop_last=False))
    accelerator, model, optimizer, loader = prepared(rank, plan, kind, options, loader)
    losses = []
    for _ in range(EPOCHS):  # the loader counts epochs
        losses += epoch_of(accelerator, model, optimizer, loader, loader.batch_sampler, loss_fn, clip=options.get("clip"))
    return losses, size_of(model)


def resumed(rank, plan, folder):
    """Trains, keeps a state within the second epoch, and goes on from there with other weights."""
    options, first = {"accumulated": 2}, 2
    accelerator, model, optimizer, loader = prepared(rank, plan, Tagger, options)
    sampler, losses = loader.batch_sampler, []
    losses += epoch_of(accelerator, model, optimizer, loader, sampler, by_sample)
    few = (batch for _, batch in zip(range(first), loader))
    losses += epoch_of(accelerator, model, optimizer, few, sampler, by_sample)
    accelerator.save_state(folder)
    accelerator.wait_for_everyone()
    accelerator, model, optimizer, loader = prepared(rank, plan, Tagger, options)
    with torch.no_grad():
        [parameter.zero_() for parameter in model.parameters()]
    accelerator.load_state(folder)
    loader.set_epoch(1)
    rest = accelerator.skip_first_batches(loader, first)
    losses += epoch_of(accelerator, model, optimizer, rest, loader.batch_sampler, by_sample, first)
    return losses, size_of(model)


def refused(rank, plan, how):
    """Tries what cannot be planned."""
    launched(rank, 2)
    data, options = Data(Tagger, SAMPLES), {}
    loader = DataLoader(data, batch_size=BATCH // 2, shuffle=True)
    if how == "dispatched":
        options = {"accelerator": Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))}
    elif how == "batch":
        loader = DataLoader(data, batch_size=BATCH)
    elif how == "order":
        loader = DataLoader(data, batch_size=BATCH // 2, sampler=WeightedRandomSampler([1] * SAMPLES, SAMPLES))
    elif how == "model":
        planned_loader(Accelerator(cpu=True), made(Tagger), loader, plan)
    elif how == "replan":
        accelerator = Accelerator(cpu=True)
        planned_loader(accelerator, accelerator.prepare(made(Tagger)), loader, plan, replan=True)
    elif how == "unweighed":
        accelerator, model, optimizer, loader = prepared(rank, plan, Tagger, {})
        accelerator.backward(by_sample(model, *next(iter(loader))))
    elif how == "prepared":
        loader = DataLoader(data, batch_sampler=PlanSampler(data, plan, rank))
        Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False)).prepare(loader)
    prepared(rank, plan, Tagger, {}, loader, **options)


def unlaunched(rank, plan):
    planned_loader(Accelerator(cpu=True), None, None, plan)


class Accelerated(unittest.TestCase):
    def check(self, kind, loss_fn, tolerance=1e-5, **options):
        first, second = on_ranks(trained, plan_of(kind, shares="3:1"), kind, loss_fn, options)
        self.assertEqual(first, second)
        (expected,) = on_ranks(alone, kind, loss_fn, options.get("clip"), ranks=1)
        compare(self, first, expected, tolerance)

    def test_means_over_samples(self):
        self.check(Tagger, by_sample)
        self.check(Adapted, by_sample)
        self.check(Tagger, by_sample, sampled=True)

    def test_accumulated_and_clipped_gradients(self):
        self.check(Tagger, by_sample, accumulated=2)
        self.check(Tagger, by_sample, accumulated=2, clip=0.05)

    def test_means_over_tokens(self):
        self.check(Tagger, by_token)
        self.check(Tagger, by_token, accumulated=2)

    def test_mixed_precision(self):
        self.check(Tagger, by_sample, tolerance=1e-2, precision="bf16")

    def test_goes_on_within_an_epoch(self):
        plan = plan_of(Tagger, shares="3:1")
        with tempfile.TemporaryDirectory() as folder:
            first, second = on_ranks(resumed, plan, folder)
        self.assertEqual(first, second)
        (expected,) = on_ranks(alone, Tagger, by_sample, ranks=1)
        compare(self, first, expected)

    def test_refuses_what_cannot_be_planned(self):
        for how, words in (
                ("dispatched", "dispatch_batches=True lets rank 0 cut batches into equal shares\n"
                               "  hint: dispatch_batches=False"),
                ("batch", "batch_size=8, 2 ranks and 1 accumulated batches make a batch of 16, and the plan is for 8\n"
                          "  hint: change one of them, or plan with batch=16"),
                ("order", "samples come in the order of a WeightedRandomSampler, which a plan does not know\n"
                          "  hint: all samples, shuffled or in order: DataLoader(data, batch_size, shuffle=True)"),
                ("model", "the model is a Tagger, and not in DistributedDataParallel\n"
                          "  hint: accelerator.prepare(model) comes first; DeepSpeed and FSDP are not planned, but "
                          "fully_shard in a loop of your own is"),
                ("unweighed", "no loss was weighed in this step\n"
                              "  hint: sampler.weigh(loss, i) before each backward pass, by the sampler that the hook knows; "
                              "sampler.sync reduces micro-batches once"),
                ("prepared", "PlanSampler yields the batches of one rank, and something asks for their size, as libraries do "
                             "that divide batches among ranks\n  hint: accelerate: agpcs.torch.planned_loader; "
                             "Lightning: Trainer(use_distributed_sampler=False)")):
            for result in on_ranks(refused, plan_of(Tagger, shares="3:1"), how):
                self.assertEqual(result, ("PlanMismatch", words))

    def test_new_shares_need_measurements(self):
        words = ("replan needs a plan that autoplan made, with its files\n"
                 "  hint: plan = agpcs.torch.autoplan(..., cache='.agpcs')")
        for result in on_ranks(refused, plan_of(Tagger, shares="3:1"), "replan"):
            self.assertEqual(result, ("UsageError", words))

    def test_refuses_another_number_of_processes(self):
        (result,) = on_ranks(unlaunched, plan_of(Tagger, shares="3:1"), ranks=1)
        self.assertEqual(result, ("PlanMismatch", "the plan is for 2 ranks and accelerate has 1\n"
                                  "  hint: start as many processes by torchrun or accelerate launch; on processors, "
                                  "Accelerator(cpu=True) or TrainingArguments(use_cpu=True)"))

    def test_the_hook_refuses_the_plan_of_another_model(self):
        check_other_plan(self, on_ranks(trained, plan_of(Adapted, shares="3:1"), Tagger, by_sample, {}))

    def test_the_sample_trains(self):
        check_sample(self, "with_accelerate.py")


if __name__ == "__main__":
    unittest.main()
