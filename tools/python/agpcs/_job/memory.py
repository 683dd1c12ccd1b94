# SPDX-License-Identifier: Apache-2.0
"""Reads a plan with its model and cluster, and tells whether agpcs.torch.Job fits into the memory for which the plan was made,
though its optimizer is another one."""

from __future__ import annotations

import collections
import json
import os
import warnings

import torch

from agpcs._errors import InvalidInput, PlanMismatch
from agpcs._job.host_state import stand_in, window_bytes


def plan_data(plan, file, cluster=None, known=None):
    """The plan as JSON, with the operators of the model in `file` and, if its cluster is known, with what each rank has in
    memory at the peak (`memory`). `cluster` is the plan's cluster file; `known`, in its place, one that may have changed or
    gone since."""
    given = cluster or (known if known is not None and os.path.exists(known) else None)
    try:
        return json.loads(plan._command("json", [plan, "--model", file, *(["--cluster", given] if given else [])]))
    except InvalidInput as error:
        refused = error
    warned, of_plan, said = str(refused).partition("plan: error: ")  # warnings come before the error
    said = said if of_plan else warned
    if given is None:
        raise PlanMismatch(f"the plan is not for this module: {said.splitlines()[0]}\n"
                           "  hint: plan what agpcs.torch.export writes of this module, and give Job the same input_names, "
                           "output_names and options")
    data = plan_data(plan, file)  # refuses another module
    if cluster is not None and not of_plan:
        raise refused  # the cluster file is wrong
    if cluster is not None:
        raise PlanMismatch(f"the plan is not for this cluster: {said}")
    return data


def check_fits(memory, planned, optimizer, in_host, modules, trained, buckets):
    """Refuses an optimizer whose state does not fit beside what else a rank needs. `memory` is what the plan has of the
    rank, `planned` its optimizer; of state that is `in_host`, the device has a window. Within torch.autocast, a plan's
    parameters and gradients have half the bytes of the module's, so those of the module count: of the GraphModules `modules`,
    of their (name, parameter) in `trained`, and what of `buckets` travels in another type. Of what ranks divide, the rank's
    slices count, and the largest bucket of gradients, which is summed while another fills; what fills, and what passes
    gather, is in the plan's workspace."""
    if memory is None or optimizer is None:
        return
    state = state_bytes(optimizer)
    if state is None:
        return
    if in_host:
        state = window_bytes(state, optimizer)
    held = {id(tensor): tensor.nbytes for stage in modules for tensor in (*stage.parameters(), *stage.buffers())}
    made = {id(parameter): parameter.nbytes for _, parameter in trained}
    copied, summed = 0, 0
    for bucket in buckets:
        for of_each in ((held,) if bucket.divides_parameters else ()) + ((made,) if bucket.divides_gradients else ()):
            of_each.update({id(parameter): 0 for parameter in bucket.parameters})
            of_each[bucket] = bucket.owned_bytes
        if bucket.divides_gradients:
            summed = max(summed, bucket.gathered_bytes + bucket.copied_bytes)
        else:
            copied += bucket.copied_bytes
    kept = sum(held.values()) + sum(made.values()) + copied + summed + state
    needs = kept + sum(memory[part] for part in ("activations", "transfers", "workspace"))
    if needs <= memory["capacity"]:
        return
    counted = sum(memory[part] for part in ("parameters", "gradients", "optimizer"))
    raise PlanMismatch(
        f"rank {memory['rank']} needs {needs} bytes of memory, and {memory['device']} has {memory['capacity']}: the plan counts "
        f"{counted} bytes of parameters, gradients and state for {planned}, and the job has {kept} with {type(optimizer).__name__}\n"
        "  hint: plan with the optimizer of the job, `training: {optimizer: ...}` of the cluster file")


def state_bytes(optimizer):
    """The bytes that an optimizer keeps beside its parameters, on their device, from its first step on: those that it has
    after a step on copies of them on the device "meta". None, with a warning, if it takes no such step."""
    copies = {parameter: torch.nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
              for group in optimizer.param_groups for parameter in group["params"]}
    plain = ("fused", "foreach", "capturable")  # they change how a step computes, not what is kept
    groups = [{**group, **{key: False for key in plain if key in group}, "params": [copies[parameter] for parameter in group["params"]]}
              for group in optimizer.param_groups]
    other = stand_in(optimizer, groups, collections.defaultdict(dict))
    for parameter, state in optimizer.state.items():
        other.state[copies[parameter]] = {key: _on_meta(value) for key, value in state.items()}
    for copy in copies.values():
        copy.grad = torch.empty_like(copy)
    try:
        other.step()
    except Exception as error:  # whatever an optimizer may do with values
        warnings.warn(f"{type(optimizer).__name__} takes no step on parameters without values ({type(error).__name__}: {error}), "
                      "so memory for its state is not compared with the plan's", stacklevel=2)
        return None
    from torch.utils import _pytree
    kept = {id(leaf): leaf for state in other.state.values() for leaf in _pytree.tree_leaves(state)
            if isinstance(leaf, torch.Tensor) and leaf.is_meta}
    return sum(leaf.nbytes for leaf in kept.values())


def _on_meta(value):
    return value.to("meta") if isinstance(value, torch.Tensor) and value.dim() > 0 else value
