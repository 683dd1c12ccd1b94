# SPDX-License-Identifier: Apache-2.0
"""planned_trainer: the Trainer of transformers trains by a plan."""

from __future__ import annotations

import typing

import torch
import torch.distributed as dist

from agpcs._errors import PlanMismatch
from agpcs._plan import Path, Plan, load
from agpcs._torch_accelerate import check_accelerator, check_batch, check_model, loader_of_rank, shuffles
from agpcs._torch_sampler import PlanSampler

IGNORED = -100  # the label of what no loss of transformers counts


def planned_trainer(plan: Plan | Path, base: type | None = None, **hook: typing.Any) -> type[typing.Any]:
    """Returns a subclass of transformers.Trainer, or of its subclass `base`, whose ranks take the plan's shares of every
    batch, and reduce gradients in the plan's groups:

        trainer = agpcs.torch.planned_trainer(plan)(model, args, train_dataset=data)

    `per_device_train_batch_size`, ranks and `gradient_accumulation_steps` make the plan's batch; that is, the first is the
    mean share. Steps, logged losses, checkpoints and evaluation are those of a Trainer in one process with that batch.
    The order of samples is that of `data_seed`, or of `seed`.

    A batch's loss has to be the mean over its labels that count (those that are not -100), as models of transformers and
    label smoothing return it; or over its samples, if it has no `labels`. With `compute_loss_func`, it is their sum
    divided by `num_items_in_batch`, where that is given. The loss of the job's batch is the mean over all of its labels
    that count, over ranks and accumulated batches.

    `plan`: a Plan of one stage, or its path.
    `hook`: options of `plan_hook`, except `replan`.

    The Trainer raises PlanMismatch, when it is made or begins to train, if plan and arguments do not fit together.
    """
    if base is None:
        from transformers import Trainer as base
    plan = plan if isinstance(plan, Plan) else load(plan)
    return type(f"Planned{base.__name__}", (_Planned, base), {"agpcs_plan": plan, "agpcs_hook": hook})


class _Planned:
    """What planned_trainer puts before a Trainer."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._agpcs_weights = iter(())  # of the step's batches: (factor of the loss, labels that count)
        self._agpcs_weight = None  # of the batch whose loss is computed
        self._agpcs_hooked = None  # the module that has the hook
        check_accelerator(self.accelerator, self.agpcs_plan)
        for setting, wrong, hint in (
                ("auto_find_batch_size=True", self.args.auto_find_batch_size,
                 "the plan has the shares that fit into memory"),
                ("split_batches=True", self.accelerator.split_batches, "accelerator_config={'split_batches': False}"),
                ("average_tokens_across_devices=False with compute_loss_func",
                 self.compute_loss_func is not None and not self.args.average_tokens_across_devices,
                 "average_tokens_across_devices=True"),
                ("loss_is_scaled_for_ga=True", getattr(self, "loss_is_scaled_for_ga", None),
                 "compute_loss_func, which gets num_items_in_batch")):
            if wrong:
                raise PlanMismatch(f"{setting} is not planned\n  hint: {hint}")
        check_batch(self.agpcs_plan, self.get_total_train_batch_size(self.args),
                    f"per_device_train_batch_size={self.args.per_device_train_batch_size}, {self.args.world_size} ranks "
                    f"and gradient_accumulation_steps={self.args.gradient_accumulation_steps}")

    def get_train_dataloader(self):
        loader, args = super().get_train_dataloader(), self.args
        seed = args.seed if args.data_seed is None else args.data_seed
        sampler = PlanSampler(loader.dataset, self.agpcs_plan, args.process_index, seed=seed, shuffle=shuffles(loader),
                              drop_last=args.dataloader_drop_last, micro_batches=args.gradient_accumulation_steps)
        # Batches stay on the host until training_step, so that counting their labels does not wait for the device.
        return loader_of_rank(self.accelerator, loader, sampler, on_device=False)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.compute_loss_func is not None and items is not None:
            # It divides by `items`, which is the job's number, and compute_loss multiplies by the number of ranks.
            self._agpcs_weights = iter([(1.0, None)] * len(batches))
            return batches, items
        counts = [self._agpcs_counted(batch) for batch in batches]
        total = torch.tensor(sum(counts), dtype=torch.float64, device=device)
        if self.agpcs_plan.ranks > 1:
            dist.all_reduce(total)
        factor = self.agpcs_plan.ranks / total.clamp(min=1)  # DDP takes the mean over ranks
        self._agpcs_weights = iter([(count * factor, count) for count in counts])
        return batches, None

    def training_step(self, model, inputs, *args, **kwargs):
        if self.agpcs_plan.ranks > 1 and self._agpcs_hooked is not model:
            from agpcs.torch import plan_hook  # which imports this file
            check_model(model)
            model.register_comm_hook(*plan_hook(self.agpcs_plan, averaged=True, **self.agpcs_hook))
            self._agpcs_hooked = model
        self.current_gradient_accumulation_steps = 1  # the weights make accumulated batches add up
        self._agpcs_weight = next(self._agpcs_weights)
        loss = super().training_step(model, inputs, *args, **kwargs)
        if self._agpcs_weight is not None:
            raise PlanMismatch(f"{type(self).__mro__[2].__name__} trains without compute_loss, so its losses are not "
                               "weighed\n"
                               "  hint: a training_step that calls self.compute_loss")
        return loss

    def compute_loss(self, model, inputs, return_outputs=False, *args, **kwargs):
        if self._agpcs_weight is None:  # in an evaluation
            return super().compute_loss(model, inputs, return_outputs, *args, **kwargs)
        (weight, counted), self._agpcs_weight = self._agpcs_weight, None
        if counted == 0:  # a mean over nothing is no number; a sum over nothing, divided by 1, is 0
            kwargs["num_items_in_batch"] = 1
        result = super().compute_loss(model, inputs, return_outputs, *args, **kwargs)
        loss, *outputs = result if return_outputs else (result,)
        if counted == 0 and not torch.isfinite(loss):
            raise PlanMismatch(f"no label counts in a batch of rank {self.args.process_index}, and its loss is "
                               f"{loss.item()}\n"
                               "  hint: a model that takes num_items_in_batch, or samples with labels")
        loss = (loss * weight).to(loss.dtype)
        return (loss, *outputs) if return_outputs else loss

    def _agpcs_counted(self, batch):
        """Returns how many labels of a batch count, by the Trainer's rule; without labels, how many samples it has."""
        from accelerate.utils import find_batch_size
        labels = batch.get("shift_labels", batch.get("labels"))
        if not torch.is_tensor(labels):
            return find_batch_size(batch)
        if "shift_labels" not in batch and getattr(self, "_loss_shifts_labels", False):
            labels = labels[..., 1:]  # a causal model's loss has no use for the first
        return int(labels.ne(IGNORED).sum())
