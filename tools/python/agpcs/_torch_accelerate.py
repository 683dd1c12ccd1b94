# SPDX-License-Identifier: Apache-2.0
"""planned_loader: a job of Hugging Face accelerate trains by a plan."""

from __future__ import annotations

import typing

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from agpcs._errors import PlanMismatch
from agpcs._plan import Path, Plan, load
from agpcs._torch_sampler import PlanSampler

KEPT = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
        "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order")  # a DataLoader's, whatever its samples


def planned_loader(accelerator: typing.Any, model: torch.nn.Module, loader: DataLoader[typing.Any], plan: Plan | Path, *,
                   seed: int = 0, replan: bool = False, **hook: typing.Any) -> DataLoader[typing.Any]:
    """Does what `accelerator.prepare(loader)` does, by a plan: each rank takes the plan's share of every batch, and the
    gradients of `model` are reduced in the plan's groups. Returns the prepared DataLoader; its `batch_sampler` is a
    PlanSampler, by which the loop weighs each loss:

        loader = agpcs.torch.planned_loader(accelerator, model, loader, plan)
        sampler = loader.batch_sampler
        for i, batch in enumerate(loader):
            with accelerator.accumulate(model):
                accelerator.backward(sampler.weigh(loss_fn(model, batch), i))

    The mean of a weighed loss over ranks and accumulated batches is the loss of the job's batch.

    `model`: as `accelerator.prepare` returned it.
    `loader`: the DataLoader that would be prepared. Its dataset, batch size, order (shuffled or not), `drop_last` and
        workers count. Its batch size makes the plan's batch, with ranks (unless `split_batches`) and accumulated batches.
    `plan`: a Plan of one stage, or its path.
    `seed`: of the order, if the loader shuffles.
    `replan`: takes new shares when a rank is no longer as fast as it was, as in `plan_hook`.
    `hook`: further options of `plan_hook`.

    Raises PlanMismatch if plan, accelerator and loader do not fit together.
    """
    from agpcs.torch import plan_hook  # which imports this file
    plan = plan if isinstance(plan, Plan) else load(plan)
    check_accelerator(accelerator, plan)
    shuffle = shuffles(loader)
    parts, dealt = accelerator.gradient_accumulation_steps, 1 if accelerator.split_batches else plan.ranks
    size, drop_last = loader.batch_sampler.batch_size, loader.batch_sampler.drop_last  # the loader's own may be None
    check_batch(plan, size * parts * dealt, f"batch_size={size}, {dealt} ranks and {parts} accumulated batches")
    sampler = PlanSampler(loader.dataset, plan, accelerator.process_index, seed=seed, shuffle=shuffle,
                          drop_last=drop_last, micro_batches=parts, averaged=True, divided=True)
    if plan.ranks > 1:
        check_model(model)
        model.register_comm_hook(*plan_hook(plan, sampler=sampler, replan=replan, **hook))
    # An epoch is whole steps, so `accumulate` need not end one with it. A loop that looks ahead is there too early.
    accelerator.gradient_state.plugin_kwargs["sync_with_dataloader"] = False
    return accelerator.prepare(loader_of_rank(accelerator, loader, sampler, accelerator.device_placement))


def check_accelerator(accelerator, plan):
    if accelerator.num_processes != plan.ranks:
        raise PlanMismatch(f"the plan is for {plan.ranks} ranks and accelerate has {accelerator.num_processes}\n"
                           "  hint: start as many processes by torchrun or accelerate launch; on processors, "
                           "Accelerator(cpu=True) or TrainingArguments(use_cpu=True)")
    if accelerator.dispatch_batches:
        raise PlanMismatch("dispatch_batches=True lets rank 0 cut batches into equal shares\n  hint: dispatch_batches=False")
    if accelerator.use_stateful_dataloader:
        raise PlanMismatch("use_stateful_dataloader=True is not planned\n"
                           "  hint: accelerator.skip_first_batches goes on within an epoch")


def check_model(model):
    """Refuses what is not in DistributedDataParallel."""
    if not isinstance(getattr(model, "_orig_mod", model), DistributedDataParallel):
        raise PlanMismatch(f"the model is a {type(model).__name__}, and not in DistributedDataParallel\n"
                           "  hint: accelerator.prepare(model) comes first; DeepSpeed and FSDP are not planned, but "
                           "fully_shard in a loop of your own is")


def shuffles(loader):
    """Says whether a DataLoader shuffles, and refuses one whose samples a PlanSampler cannot yield. `loader` may be
    prepared by accelerate, which wraps its batch_sampler."""
    if loader.__class__ is not DataLoader:
        raise PlanMismatch(f"the loader is a {loader.__class__.__name__}, which a plan cannot make anew\n"
                           "  hint: torch.utils.data.DataLoader")
    if isinstance(loader.dataset, IterableDataset):
        raise PlanMismatch("an IterableDataset has no numbered samples that ranks could share\n"
                           "  hint: a dataset with __getitem__ and __len__")
    batches = getattr(loader.batch_sampler, "batch_sampler", loader.batch_sampler)
    order = batches.sampler if type(batches) is BatchSampler else batches
    shuffled = isinstance(order, RandomSampler) and not order.replacement
    if not (shuffled or isinstance(order, SequentialSampler)) or len(order) != len(loader.dataset):
        raise PlanMismatch(f"samples come in the order of a {type(order).__name__}, which a plan does not know\n"
                           "  hint: all samples, shuffled or in order: DataLoader(data, batch_size, shuffle=True)")
    return shuffled


def check_batch(plan, batch, made_of):
    """`batch`: samples of the job's step, as the settings `made_of` make them."""
    if batch != plan.batch:
        raise PlanMismatch(f"{made_of} make a batch of {batch}, and the plan is for {plan.batch}\n"
                           f"  hint: change one of them, or plan with batch={batch}")


def loader_of_rank(accelerator, loader, sampler, on_device):
    """Returns a prepared DataLoader like `loader` that takes its batches from `sampler`."""
    from accelerate.data_loader import prepare_data_loader
    kept = {name: getattr(loader, name) for name in KEPT if hasattr(loader, name)}
    made = prepare_data_loader(DataLoader(loader.dataset, batch_sampler=sampler, **kept), accelerator.device,
                               num_processes=1, process_index=0, put_on_device=on_device,
                               non_blocking=accelerator.non_blocking)
    made._is_accelerate_prepared = True  # as accelerator.prepare marks it
    return made
