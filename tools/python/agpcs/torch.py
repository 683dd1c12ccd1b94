# SPDX-License-Identifier: Apache-2.0
"""Plans a job in PyTorch by what its ranks measure, and trains by a plan (docs/start/pytorch.md):

    plan = agpcs.torch.autoplan(module, loss_fn, sample_batch, batch=512)       # or a file of agpcs-compile
    sampler = agpcs.torch.PlanSampler(data, plan)
    ddp = DistributedDataParallel(module)
    ddp.register_comm_hook(*agpcs.torch.plan_hook(plan, sampler=sampler))
    for i, batch in enumerate(DataLoader(data, batch_sampler=sampler)):
        sampler.weigh(loss_fn(ddp, batch), i).backward()

Works with PyTorch 1.13 and 2.x.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
import torch.distributed as dist

from agpcs import _torch_export
from agpcs._errors import UsageError
from agpcs._plan import Path, Plan, load
from agpcs._torch_accelerate import planned_loader
from agpcs._torch_autoplan import AutoPlan, autoplan
from agpcs._torch_groups import PlanState, reduce_by_plan
from agpcs._torch_job import Job, OnDrift
from agpcs._torch_lightning import planned_callback
from agpcs._torch_plan import ModulePlan, plan
from agpcs._torch_profile import profile
from agpcs._torch_replan import Replanning
from agpcs._torch_sampler import PlanSampler
from agpcs._torch_trainer import planned_trainer
from agpcs._torch_watch import Change, teller_of

__all__ = ["AutoPlan", "Change", "Job", "ModulePlan", "PlanSampler", "PlanState", "autoplan", "export", "plan",
           "plan_hook", "planned_callback", "planned_loader", "planned_trainer", "profile"]


Hook = Callable[[PlanState, "dist.GradBucket"], "torch.futures.Future[torch.Tensor]"]


def plan_hook(plan: Plan | Path, module: torch.nn.Module | None = None, *,
              process_group: dist.ProcessGroup | None = None, wire_type: str | torch.dtype | None = None,
              unplanned: str = "error", missing: str = "error", rename: Callable[[str], str] | None = None,
              on_drift: OnDrift = "say", sampler: PlanSampler | None = None, replan: bool = False,
              averaged: bool = False) -> tuple[PlanState, Hook]:
    """Returns (state, hook) for DistributedDataParallel.register_comm_hook. The hook reduces gradients in the plan's
    groups and order.

    The groups may be other ones than the buckets that DDP forms. A group's all-reduces begin once all of its gradients
    are there and the groups before it have begun: large gradients are reduced in place, the others together. A rank's
    gradient must be the mean over its planned share. The hook weights it by share / batch, so that the sum is the
    gradient of the mean over the whole batch; with `sampler`, the loss is weighted instead. The ranks send only
    gradients, except that in the first step they compare their plans and try the wire type, and that `on_drift` shares
    24 bytes a rank every few steps, and times messages of each rank to the next at first and when all-reduces changed.

    `plan`: a Plan of one stage, or its path.
    `module`: the DDP module, or the one in it. By default the hook finds the DDP module at the first gradients.
    `process_group`: DDP's process group. Needed if it is not the default one and `module` is not the DDP module.
    `wire_type`: "fp16" or "bf16", the type in which gradients are sent. By default the plan's.
    `unplanned`: "last" reduces gradients that the plan does not have after the plan's groups; "error" refuses them.
    `missing`: "skip" leaves out parameters of the plan that the module does not have; "error" refuses them.
    `rename`: a function from the plan's name of a parameter to the module's name.
    `on_drift`: what is done when a rank, or communication, is no longer as fast as it was: "say" prints it on rank 0, a
        function gets a list of Change on every rank, in the same step; None: steps are not watched.
    `sampler`: the job's PlanSampler. From now on its `weigh` has the whole weight of a loss, and the hook weights no
        gradient, which saves a pass over all of them; unless the sampler is `averaged`. Every loss must be weighed, and
        gradients are accumulated within `sampler.sync` or `no_sync` only.
    `replan`: True: when a rank is no longer as fast as it was, the ranks take new shares, if those save 3% of a step,
        from the first step on whose batches no rank has drawn. Needs `sampler`, and a plan of autoplan.
    `averaged`: True: sums with 1 / ranks instead of the shares, as plain DDP does, for losses whose mean over ranks is
        the loss of the job's batch. With `sampler`, it is as the sampler is.

    Raises PlanMismatch if plan, module and ranks do not fit together; without `module`, this happens during the first
    backward pass.
    """
    if not isinstance(plan, Plan):
        plan = load(plan)
    tell = teller_of(on_drift)
    if replan and sampler is None:
        raise UsageError("replan needs the job's sampler\n  hint: plan_hook(plan, sampler=sampler, replan=True)")
    replanning = Replanning(plan, sampler, tell) if replan else None
    state = PlanState(plan, module, process_group, wire_type, unplanned, missing, rename, tell, sampler, replanning,
                      averaged)
    return state, reduce_by_plan


def export(module: torch.nn.Module, inputs: Iterable[typing.Any], path: Path | typing.IO[bytes], *,
           kwargs: Mapping[str, typing.Any] | None = None, input_names: Sequence[str] | None = None,
           output_names: Sequence[str] = ("logits",), weights: bool = True, **options: typing.Any) -> None:
    """Exports a module so that the plan has the module's names of parameters, for any batch size.

    `inputs` is a tuple of example inputs, `kwargs` a dict of those that are passed by name. Axis 0 of each is the batch,
    unless its extent differs from the first input's. `path` may be a file object, such as io.BytesIO.

    The file says which of its tensors are parameters, which are frozen (`requires_grad` is False) and which are buffers,
    so that the planner trains exactly the parameters. With `weights=False`, or if the module has none (it was made under
    FakeTensorMode or on the device "meta"), the file has their shapes without values: enough to plan.

    This is torch.onnx.export in training mode, with dynamo=True and optimize=False where PyTorch has them (2.6 and
    newer), and by TorchScript in older versions. `options` are passed to it.
    """
    if isinstance(inputs, torch.Tensor):
        raise UsageError("inputs is a tensor; it is a tuple of the example inputs\n"
                         "  hint: agpcs.torch.export(module, (tensor,), path)")
    parameters = inspect.signature(torch.onnx.export).parameters
    newer = "dynamic_shapes" in parameters and options.get("dynamo", True)
    write = _torch_export.by_dynamo if newer else _torch_export.by_torchscript
    with _torch_export.training(module):
        write(module, tuple(inputs), dict(kwargs or {}), path, input_names, output_names, weights, options)
