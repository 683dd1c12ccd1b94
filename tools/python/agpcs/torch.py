# SPDX-License-Identifier: Apache-2.0
"""Training by a plan in PyTorch: docs/pytorch.md.

    ddp = DistributedDataParallel(module)
    ddp.register_comm_hook(*agpcs.torch.plan_hook("model.plan"))
    loader = DataLoader(data, batch_sampler=agpcs.torch.PlanSampler(data, "model.plan", rank))

Works with PyTorch 1.13 and 2.x.
"""

import inspect

import torch

from agpcs._plan import Plan, load
from agpcs._torch_groups import PlanState, reduce_by_plan
from agpcs._torch_sampler import PlanSampler

__all__ = ["PlanSampler", "PlanState", "export", "plan_hook"]


def plan_hook(plan, module=None, *, process_group=None, wire_type=None, unplanned="error", missing="error",
              rename=None):
    """(state, hook) for DistributedDataParallel.register_comm_hook: gradients are reduced in the plan's groups and order.

    Whatever buckets DDP forms, a group is one all-reduce, as soon as all of its gradients and the groups before it
    are there. A rank's gradient counts as the mean over its planned share: it is weighted by share / batch, so the sum
    is the gradient of the mean over the whole batch. Nothing but gradients is sent, except that ranks compare their
    plans once, in the first step.

    `plan`: a Plan of one stage, or the path of one. `module`: the DDP module, or the one in it; without, the DDP module
    is found when the first gradients come. `process_group`: DDP's, where it is not the default one and `module` is not the
    DDP module. `wire_type`: "fp16" or "bf16" sends gradients as such; without, the plan's. `unplanned`: "last" reduces gradients that
    the plan does not know after its groups; "error" refuses. `rename`: from the plan's name of a parameter to the module's.

    Raises PlanMismatch (during the first backward pass where `module` is not given) where plan, module and ranks do
    not go together.
    """
    if not isinstance(plan, Plan):
        plan = load(plan)
    return PlanState(plan, module, process_group, wire_type, unplanned, missing, rename), reduce_by_plan


def export(module, inputs, path, *, input_names=None, output_names=("logits",), **options):
    """torch.onnx.export such that the plan knows parameters by the module's names, for any batch size.

    `inputs` is a tuple of example inputs, each with the batch as axis 0, and so are the outputs. `path` may be a file
    object, such as io.BytesIO. `options` go to torch.onnx.export.
    """
    if input_names is None:
        input_names = [f"input{i}" for i in range(len(inputs))]
    names = [*input_names, *output_names]
    settings = {
        "opset_version": 17, "training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False,
        "input_names": list(input_names), "output_names": list(output_names),
        "dynamic_axes": {name: {0: "batch"} for name in names}, **options}
    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        settings.setdefault("dynamo", False)  # the other exporter folds batch norm, and renames what it transposes
    torch.onnx.export(module, tuple(inputs), path, **settings)
