# SPDX-License-Identifier: Apache-2.0
"""planned_callback: a Trainer of Lightning trains by a plan."""

from __future__ import annotations

import typing
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from agpcs._errors import PlanMismatch
from agpcs._torch_sampler import Count, PlanSampler


def planned_callback(sampler: PlanSampler, base: type, *, counted: Callable[[typing.Any], Count] | None = None,
                     replan: bool = False, **hook: typing.Any) -> typing.Any:
    """Returns a callback for Lightning's Trainer. It weighs the gradient of each loss by `sampler`, and reduces gradients
    in the plan's groups; the module stays as it is:

        sampler = agpcs.torch.PlanSampler(data, plan, micro_batches=2)
        trainer = L.Trainer(strategy="ddp", use_distributed_sampler=False, accumulate_grad_batches=2,
                            callbacks=[agpcs.torch.planned_callback(sampler, L.Callback)])
        trainer.fit(module, DataLoader(data, batch_sampler=sampler))

    The gradient is that of the mean loss over the job's batch. What `training_step` returns and logs stays the mean over
    this rank's samples. Checkpoints within an epoch note how far it was, and the job goes on from there.

    `sampler`: the PlanSampler of the DataLoader that is trained on. Its `micro_batches` are `accumulate_grad_batches`.
    `base`: `lightning.pytorch.Callback` or `pytorch_lightning.Callback`, whichever the Trainer is of.
    `counted`: for losses that are means over tokens: a function from a batch to how many tokens count in it.
    `replan`: takes new shares when a rank is no longer as fast as it was, as in `plan_hook`.
    `hook`: further options of `plan_hook`.

    `trainer.fit` raises PlanMismatch if plan, Trainer and module do not fit together.
    """
    made = type("PlannedCallback", (_Planned, base), {})()
    made.sampler, made.counted, made.hook = sampler, counted, {**hook, "sampler": sampler, "replan": replan}
    return made


class _Planned:
    """What planned_callback puts before a Callback."""

    at = (0, 0)  # the epoch, and how many of its batches were trained on
    batch = None  # the batch that is trained on, and its number in the epoch
    counts = ()  # of the batches accumulated so far: tokens that count
    usual = None  # about how many tokens count in a step; weights are relative to it until the step's are known

    def on_fit_start(self, trainer, pl_module):
        from agpcs.torch import plan_hook  # which imports this file
        plan, model = self.sampler.plan, trainer.strategy.model
        if trainer.world_size != plan.ranks:
            raise PlanMismatch(f"the plan is for {plan.ranks} ranks and Lightning has {trainer.world_size}\n"
                               "  hint: start as many processes by torchrun, with Trainer(devices=..., num_nodes=...)")
        if not pl_module.automatic_optimization:
            raise PlanMismatch(f"{type(pl_module).__name__} optimizes by itself\n"
                               "  hint: without planned_callback: sampler.weigh(loss, batch_idx) in training_step, and "
                               "trainer.strategy.model.register_comm_hook(*plan_hook(plan)) in on_fit_start")
        if plan.ranks > 1:
            if not isinstance(model, DistributedDataParallel):
                raise PlanMismatch(f"{type(trainer.strategy).__name__} does not train by DistributedDataParallel\n"
                                   "  hint: Trainer(strategy='ddp')")
            model.register_comm_hook(*plan_hook(plan, **self.hook))

    def on_train_start(self, trainer, pl_module):
        if getattr(trainer.train_dataloader, "batch_sampler", None) is not self.sampler:
            raise PlanMismatch("the DataLoader that is trained on does not take its batches from the callback's sampler\n"
                               "  hint: trainer.fit(module, DataLoader(data, batch_sampler=sampler))")
        parts, batches = self.sampler.micro_batches, trainer.num_training_batches
        if batches % parts:
            raise PlanMismatch(f"an epoch of {batches} batches ends within a step of {parts} micro-batches\n"
                               f"  hint: limit_train_batches={batches // parts * parts}")

    def on_train_epoch_start(self, trainer, pl_module):
        self.sampler.set_epoch(trainer.current_epoch)
        self.at = (trainer.current_epoch, 0)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        parts = self.sampler.micro_batches
        if trainer.accumulate_grad_batches != parts:
            raise PlanMismatch(f"Lightning accumulates {trainer.accumulate_grad_batches} batches, and the sampler has "
                               f"micro_batches={parts}\n  hint: the same number for both, in all epochs")
        self.batch = batch, batch_idx

    def on_before_backward(self, trainer, pl_module, loss):
        weight = self._weight(*self.batch) * (1 if self.sampler.divided else self.sampler.micro_batches)
        loss.register_hook(lambda gradient: (gradient * weight).to(gradient.dtype))

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        if not self.counts:
            return
        total = self._over_ranks(sum(self.counts))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_((self.usual / total).to(parameter.grad.dtype))
        self.counts, self.usual = (), total

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        left = batch_idx + 1 < trainer.num_training_batches
        self.at = (trainer.current_epoch, batch_idx + 1) if left else (trainer.current_epoch + 1, 0)

    def on_train_epoch_end(self, trainer, pl_module):
        self.at = (trainer.current_epoch + 1, 0)

    def state_dict(self):
        return {"epoch": self.at[0], "batches": self.at[1]}

    def load_state_dict(self, state):
        """Goes on after the last batch of a checkpoint. Comes before the first batch is drawn."""
        self.at = state["epoch"], state["batches"]
        self.sampler.set_epoch(*self.at)

    def _weight(self, batch, number):
        """Returns the factor of a batch's loss."""
        if self.counted is None or self.sampler.micro_batches == 1:
            return self.sampler.loss_weight(number, *([] if self.counted is None else [self.counted(batch)]))
        # The tokens of the step's later batches are not known yet. The optimizer's step makes up for `usual`.
        self.sampler.loss_weight(number)  # notes that this step is weighed
        count = torch.as_tensor(self.counted(batch)).double()
        if self.usual is None:
            self.usual = self._over_ranks(count) * self.sampler.micro_batches
        self.counts += (count,)
        return count / self.usual / self.sampler.part_of_gradient

    def _over_ranks(self, count):
        total = count.clone()
        if self.sampler.plan.ranks > 1:
            dist.all_reduce(total)
        return total.clamp(min=1)
