# SPDX-License-Identifier: Apache-2.0
"""Moves a job of agpcs.torch.Job from one plan to another, between two steps.

A tensor goes from a rank that has it to each rank that is to have it and does not, so no rank needs room for more than its
old and its new stage. Until all ranks have all that they need, each keeps what it had: the job moves whole, or not at all.
"""

from __future__ import annotations

import typing

import torch
import torch.distributed as dist

from agpcs._errors import PlanMismatch
from agpcs._job.together import gathered, together

# Of a plan's training: what makes a step another one.
_SAME = ("batch", "precision", "wire_type", "loss")


class Item(typing.NamedTuple):
    """A tensor that ranks have of a name: a parameter, a buffer that changes, or a state of the optimizer."""

    name: str
    key: str | None  #: of the optimizer's state; None: the parameter or buffer itself
    shape: tuple[int, ...]
    dtype: torch.dtype


class _Small(typing.NamedTuple):
    """A state of the optimizer that is no tensor, or a tensor of one number, such as Adam's count of steps."""

    value: typing.Any


def check_move(running, data, plan, other):
    """Refuses a plan that is not for the training or the ranks of the running one. `data` and `other` are their JSON."""
    for key in _SAME:
        own, new = data["training"].get(key), other["training"].get(key)
        if own != new:
            raise PlanMismatch(f"the new plan has {key} {new}, and the job's has {own}\n"
                               "  hint: a plan of the same training; a new Job trains otherwise")
    for rank, (own, new) in enumerate(zip(running.devices, plan.devices)):
        if own != new:
            raise PlanMismatch(f"rank {rank} is {new} in the new plan, and it runs on {own}\n"
                               "  hint: a plan of the same cluster file, with all of the job's devices")


def _tensors_of(model, role, checkpoints):
    """What this rank has, by (name, key), and what it owns of the optimizer's states and settings, to tell the others."""
    found = {(name, None): _get(model, name).detach() for name, ranks in role.holders.items() if role.rank in ranks}
    told = {}
    for name, (state, settings) in checkpoints.by_parameter().items():
        small = {}
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.numel() > 1:
                found[name, key] = value
                small[key] = Item(name, key, tuple(value.shape), value.dtype)
            else:
                small[key] = _Small(value.cpu() if isinstance(value, torch.Tensor) else value)
        if role.owners[name] == role.rank:
            told[name] = checkpoints.kind, small, settings
    return found, told


def _get(model, name):
    path, _, last = name.rpartition(".")
    return getattr(model.get_submodule(path), last)


def _messages(model, before, after, told):
    """(item, sender, receiver) of all that moves, in the same order on every rank."""
    for name in sorted(after.holders):
        own = _get(model, name)
        parameter = isinstance(own, torch.nn.Parameter)
        # The replicas of a stage have the same parameters. Of buffers that change, the owner's counts.
        senders = before.holders[name] if parameter else [before.owners[name]]
        receivers = [rank for rank in after.holders[name] if rank not in senders]
        states = told[name][1].values() if name in told else ()
        for item in (Item(name, None, tuple(own.shape), own.dtype), *(one for one in states if isinstance(one, Item))):
            for number, receiver in enumerate(receivers):
                yield item, senders[number % len(senders)], receiver


def moved(model, before, after, checkpoints, device):
    """Sends what ranks need by the role `after`. Returns (tensors by (name, key), the optimizers' (kind, small states and
    items, settings) by name). Changes nothing."""
    found, told = _tensors_of(model, before, checkpoints)
    told = {name: what for of_rank in gathered(told) for name, what in of_rank.items()}
    messages = list(_messages(model, before, after, told))
    room = together("switch", lambda: {
        item: torch.empty(item.shape, dtype=item.dtype, device=device)
        for item, _, receiver in messages if receiver == before.rank})
    operations, kept = [], []
    for item, sender, receiver in messages:
        if before.rank == sender:
            kept.append(found[item.name, item.key].to(device).contiguous())
            operations.append(dist.P2POp(dist.isend, kept[-1], receiver))
        elif before.rank == receiver:
            operations.append(dist.P2POp(dist.irecv, room[item], sender))
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    found.update({(item.name, item.key): tensor for item, tensor in room.items()})
    return found, told


def install(state, before, after, found):
    """Gives the module the parameters that are new to this rank. Returns a function that takes them back."""
    new = [name for name in after.parameters if before.rank not in before.holders[name]]
    return state.replace({name: found[name, None] for name in new})


def fill(checkpoints, trained, optimizer, found, told):
    """Gives a new optimizer the states and settings that its parameters had."""
    named = {name: told[name] for name, _ in trained if name in told}
    checkpoints.check_kinds({name: kind for name, (kind, _, _) in named.items()}, "job")
    checkpoints.take({name: ({key: found[name, key] if isinstance(what, Item) else what.value for key, what in small.items()},
                             settings)
                      for name, (_, small, settings) in named.items()}, "job")


def check_schedule(running, new):
    """Refuses groups that a schedule of the running optimizer's rate does not know."""
    if running is None or new is None or not any("initial_lr" in group for group in running.param_groups):
        return
    if len(running.param_groups) != len(new.param_groups) or type(running) is not type(new):
        raise PlanMismatch(
            f"a schedule sets the rates of {len(running.param_groups)} groups of {type(running).__name__}, and optimizer_fn "
            f"makes {len(new.param_groups)} of {type(new).__name__} for the new stage\n"
            "  hint: optimizer_fn that makes as many groups for any stage")


def adopted(running, new):
    """The optimizer of the new stage: where it can be, the running one, which schedules hold, with all that is new."""
    if running is None or new is None or type(running) is not type(new):
        return new
    hooks = {key: value for key, value in vars(running).items() if key.startswith("_optimizer_")}
    vars(running).update({**vars(new), **hooks})
    return running
