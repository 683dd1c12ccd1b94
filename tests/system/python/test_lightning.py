#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.planned_callback in Lightning, with shares 3 to 1: losses are those of one process in plain PyTorch."""

import sys
import tempfile
import unittest
import warnings

from cases import Data, on_ranks, plan_of
from adapter_cases import EPOCHS, SAMPLES, SEED, alone, check_other_plan, check_sample, compare, launched, optimizer_of
from test_loops import Adapted, Tagger, by_sample, by_token, counted, made, size_of

try:
    import pytorch_lightning as lightning
    from pytorch_lightning.callbacks import Callback, GradientAccumulationScheduler, ModelCheckpoint
except ImportError:
    print(f"skipped: {sys.executable} has no Lightning (PyPI: pytorch-lightning)")
    sys.exit(77)
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from agpcs.torch import PlanSampler, planned_callback

warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")


class Module(lightning.LightningModule):
    """Knows nothing of plans. Notes what each batch's loss was, and over how many samples or tokens it is the mean."""

    def __init__(self, kind, loss_fn):
        super().__init__()
        self.net, self.loss_fn, self.noted = made(kind), loss_fn, []

    def training_step(self, batch, batch_idx):
        loss = self.loss_fn(self.net, *batch)
        number = counted(batch[1]) if self.loss_fn is by_token else torch.tensor(len(batch[1]))
        self.noted.append(torch.stack([loss.detach().double() * number, number.double()]))
        return loss

    def configure_optimizers(self):
        return optimizer_of(self.net)


class Manual(Module):
    def __init__(self, kind, loss_fn):
        super().__init__(kind, loss_fn)
        self.automatic_optimization = False


def planned(rank, plan, module, parts=1, workers=0, sampled=True, replan=False, **options):
    """A Trainer of two ranks, and the arguments of its `fit`."""
    launched(rank, 2)
    data = Data(Tagger, SAMPLES)
    sampler = PlanSampler(data, plan, seed=SEED, micro_batches=parts)
    of_tokens = {"counted": lambda batch: counted(batch[1])} if module.loss_fn is by_token else {}
    callback = planned_callback(sampler, Callback, replan=replan, rename="net.{}".format, **of_tokens)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"max_epochs": EPOCHS, "accumulate_grad_batches": parts, "use_distributed_sampler": False,
               "enable_checkpointing": False, **quiet, **options}
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp",
                                **{**options, "callbacks": [callback, *options.get("callbacks", [])]})
    loader = DataLoader(data, batch_sampler=sampler, num_workers=workers) if sampled else DataLoader(data, batch_size=4)
    return trainer, (module, loader)


def losses_of(module, parts):
    """The losses of the job's steps."""
    sums = torch.stack(module.noted)
    dist.all_reduce(sums)
    steps = sums.unflatten(0, (-1, parts)).sum(1)
    return (steps[:, 0] / steps[:, 1]).tolist()


def trained(rank, plan, kind, loss_fn, options):
    module = options.get("module", Module)(kind, loss_fn)
    options = {key: value for key, value in options.items() if key != "module"}
    trainer, arguments = planned(rank, plan, module, **options)
    trainer.fit(*arguments)
    return losses_of(module, options.get("parts", 1)), size_of(module)


def resumed(rank, plan, folder, kept, until, epochs):
    """Trains until a checkpoint, and goes on from there with other weights."""
    module, checkpoints = Module(Tagger, by_sample), ModelCheckpoint(folder, filename="{step}", **kept)
    options = {"parts": 2, "workers": 2}
    trainer, arguments = planned(rank, plan, module, callbacks=[checkpoints], enable_checkpointing=True, **options, **until)
    trainer.fit(*arguments)
    losses, step = losses_of(module, 2), trainer.global_step
    module = Module(Tagger, by_sample)
    with torch.no_grad():
        [parameter.zero_() for parameter in module.parameters()]
    trainer, arguments = planned(rank, plan, module, max_epochs=epochs, **options)
    trainer.fit(*arguments, ckpt_path=checkpoints.best_model_path)
    return losses + losses_of(module, 2), size_of(module), step


def fitted_by_one(rank, plan):
    """As if no launcher had started the process."""
    data = Data(Tagger, SAMPLES)
    callback = planned_callback(PlanSampler(data, plan, 0), Callback)
    lightning.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                      callbacks=[callback]).fit(Module(Tagger, by_sample), DataLoader(data, batch_size=4))


class Planned(unittest.TestCase):
    def check(self, kind, loss_fn, tolerance=1e-5, **options):
        first, second = on_ranks(trained, plan_of(kind, shares="3:1"), kind, loss_fn, options)
        self.assertEqual(first, second)
        (expected,) = on_ranks(alone, kind, loss_fn, options.get("gradient_clip_val"), ranks=1)
        compare(self, first, expected, tolerance)

    def test_means_over_samples(self):
        self.check(Tagger, by_sample)
        self.check(Adapted, by_sample)

    def test_accumulated_and_clipped_gradients(self):
        self.check(Tagger, by_sample, parts=2)
        self.check(Tagger, by_sample, parts=2, gradient_clip_val=0.05)

    def test_means_over_tokens(self):
        self.check(Tagger, by_token)
        self.check(Tagger, by_token, parts=2)
        self.check(Tagger, by_token, parts=2, gradient_clip_val=0.05)

    def test_mixed_precision(self):
        self.check(Tagger, by_sample, tolerance=1e-2, precision="bf16-mixed")

    def test_goes_on_within_and_between_epochs(self):
        for kept, until, steps, epochs, left_out in (
                ({"every_n_train_steps": 4}, {"max_steps": 4}, 4, 2, ()),  # within the second epoch
                ({"every_n_epochs": 1}, {"max_epochs": 1}, 3, 2, ()),
                ({"every_n_epochs": 1}, {"max_steps": 4}, 4, 3, (4, 5))):  # max_steps ends an epoch
            with tempfile.TemporaryDirectory() as folder:
                first, second = on_ranks(resumed, plan_of(Tagger, shares="3:1"), folder, kept, until, epochs)
            self.assertEqual(first, second)
            self.assertEqual(first[2], steps)
            (expected,) = on_ranks(alone, Tagger, by_sample, None, epochs, left_out, ranks=1)
            compare(self, first[:2], expected)

    def test_refuses_what_cannot_be_planned(self):
        for options, words in (
                ({"module": Manual},
                 "Manual optimizes by itself\n  hint: without planned_callback: sampler.weigh(loss, batch_idx) in "
                 "training_step, and trainer.strategy.model.register_comm_hook(*plan_hook(plan)) in on_fit_start"),
                ({"sampled": False},
                 "the DataLoader that is trained on does not take its batches from the callback's sampler\n"
                 "  hint: trainer.fit(module, DataLoader(data, batch_sampler=sampler))"),
                ({"use_distributed_sampler": True},
                 "PlanSampler yields the batches of one rank, and something asks for their size, as libraries do that "
                 "divide batches among ranks\n  hint: accelerate: agpcs.torch.planned_loader; "
                 "Lightning: Trainer(use_distributed_sampler=False)"),
                ({"parts": 2, "limit_train_batches": 3},
                 "an epoch of 3 batches ends within a step of 2 micro-batches\n  hint: limit_train_batches=2"),
                ({"callbacks": [GradientAccumulationScheduler({0: 1, 1: 2})]},
                 "Lightning accumulates 2 batches, and the sampler has micro_batches=1\n"
                 "  hint: the same number for both, in all epochs")):
            for result in on_ranks(trained, plan_of(Tagger, shares="3:1"), Tagger, by_sample, options):
                self.assertEqual(result, ("PlanMismatch", words))

    def test_new_shares_need_measurements(self):
        words = ("replan needs a plan that autoplan made, with its files\n"
                 "  hint: plan = agpcs.torch.autoplan(..., cache='.agpcs')")
        for result in on_ranks(trained, plan_of(Tagger, shares="3:1"), Tagger, by_sample, {"replan": True}):
            self.assertEqual(result, ("UsageError", words))

    def test_refuses_another_number_of_processes(self):
        (result,) = on_ranks(fitted_by_one, plan_of(Tagger, shares="3:1"), ranks=1)
        self.assertEqual(result, ("PlanMismatch", "the plan is for 2 ranks and Lightning has 1\n  hint: start as many "
                                  "processes by torchrun, with Trainer(devices=..., num_nodes=...)"))

    def test_the_hook_refuses_the_plan_of_another_model(self):
        check_other_plan(self, on_ranks(trained, plan_of(Adapted, shares="3:1"), Tagger, by_sample, {}), "net.")

    def test_the_sample_trains(self):
        check_sample(self, "with_lightning.py")


if __name__ == "__main__":
    unittest.main()
