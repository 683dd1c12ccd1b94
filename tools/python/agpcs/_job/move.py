# SPDX-License-Identifier: Apache-2.0
"""Moves a job of agpcs.torch.Job from one plan to another, between two steps.

A tensor goes from a rank that has it to each rank that is to have it and does not, so no rank needs room for more than its
old and its new stage. Until all ranks have all that they need, each keeps what it had: the job moves whole, or not at all.
"""

from __future__ import annotations

import math
import typing

import torch
import torch.distributed as dist

from agpcs._errors import PlanMismatch
from agpcs._job.gathered import absent
from agpcs._job.owned import Slice, of_elements, slice_of, tensor_of
from agpcs._job.teams.exchange import COPY, Part
from agpcs._job.together import gathered, together

# Of a plan's training: what makes a step another one.
_SAME = ("batch", "precision", "wire_type", "loss")


class Item(typing.NamedTuple):
    """A tensor that ranks have of a name: a parameter, a buffer that changes, or a state of the optimizer."""

    name: str
    key: str | None  #: of the optimizer's state; None: the parameter or buffer itself
    shape: tuple[int, ...]
    dtype: torch.dtype
    of_elements: bool = True  #: it has a value for each element of the parameter


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


def _tensors_of(model, state, role, checkpoints):
    """What this rank has, by (name, key), and what it owns of the optimizer's states and settings, to tell the others."""
    found = {(name, None): tensor_of(model, name).detach() for name, ranks in role.holders.items()
             if role.rank in ranks and name not in role.divided}
    found.update(((name, None), role.owned[name].detach()) for name in role.divided & set(role.owned))
    told = {}
    for name, (states, settings) in checkpoints.by_parameter().items():
        small = {}
        for key, value in states.items():
            of_each = of_elements(key, value)
            divided = of_each and (name in role.slices or name in role.in_teams)
            if divided or isinstance(value, torch.Tensor) and value.numel() > 1:
                found[name, key] = value
                small[key] = Item(name, key, tuple(state.shape(name) if divided else value.shape), value.dtype, of_each)
            else:
                small[key] = _Small(value.cpu() if isinstance(value, torch.Tensor) else value)
        if role.tells(name):
            told[name] = checkpoints.kind, small, settings
    return found, told


def _items(model, state, after, told):
    """(item, whether it is of a parameter) of all that ranks have by the role `after`, in the same order on every rank."""
    for name in sorted(after.holders):
        own = tensor_of(model, name)
        yield Item(name, None, tuple(state.shape(name)), own.dtype), isinstance(own, torch.nn.Parameter)
        for one in told[name][1].values() if name in told else ():
            if isinstance(one, Item):
                yield one, True


def _in_parts(item, *roles):
    """Whether members of teams have an item in parts."""
    return item.of_elements and any(item.name in role.in_teams for role in roles)


def _messages(items, before, after):
    """(item, the Slice that a rank needs of it, the Slices that make it up) of all that moves between ranks that have it whole or
    in slices."""
    for item, of_parameter in items:
        if not _in_parts(item, before, after):
            # The replicas of a stage have the same parameters. Of buffers that change, the owner's counts.
            senders = before.holders[item.name] if of_parameter else [before.owners[item.name]]
            elements, name = math.prod(item.shape), item.name
            needs = _slices(after, item) or [Slice(rank, 0, elements) for rank in after.holders[name]]
            if _slices(before, item):
                for need in needs:
                    yield item, need, _overlaps(need, before.slices[name])
                continue
            for number, need in enumerate(need for need in needs if need.rank not in senders):
                yield item, need, [Slice(senders[number % len(senders)], need.begin, need.end)]


def _slices(role, item):
    """The Slices of an item by the ranks that have them; None: all holders have it whole."""
    return role.values(item.name) if item.key is None else role.slices.get(item.name)


def _overlaps(need, slices):
    every = [Slice(one.rank, max(one.begin, need.begin), min(one.end, need.end)) for one in slices]
    return [one for one in every if one.begin < one.end]


def _part_messages(items, before, after):
    """(item, rank, what it needs of the item, the (rank, what it has) that make that up) of all that moves from or to members of
    teams. What a rank has, or needs, is a Part, a Slice, or None: all of it."""
    for item, of_parameter in items:
        for rank in after.holders[item.name] if _in_parts(item, before, after) else ():
            slices = _slices(after, item)
            needs = after.part(item.name, rank) if slices is None else slice_of(slices, rank)
            if slices is not None and needs is None:
                continue
            givers = _givers(item, of_parameter, rank, before)
            if (rank, needs) not in givers:  # else it has that already
                yield item, rank, needs, givers


def _givers(item, of_parameter, rank, before):
    """The (rank, what it has of an item) from which a rank takes what it needs."""
    slices, name = _slices(before, item), item.name
    if slices:
        return [(one.rank, one) for one in slices]
    if name in before.in_teams:
        replicas = before.in_teams[name]
        ranks, lying = next((one for one in replicas if rank in one[0] and of_parameter), replicas[0])
        if lying != COPY:
            return [(member, Part(lying, number)) for number, member in enumerate(ranks)]
        return [(rank if rank in ranks else ranks[rank % len(ranks)], None)]
    senders = before.holders[name] if of_parameter else [before.owners[name]]
    return [(rank if rank in senders else senders[rank % len(senders)], None)]


def common(shape, given, taken):
    """What `given` and `taken` (Part, Slice or None: all) of a tensor have both: the places of these elements in the one, flat, and
    in the other. It takes 16 bytes for each element of the tensor."""
    count = math.prod(shape)
    numbers = torch.arange(count).view(shape)
    gives, takes = ((numbers if of is None else of.of(numbers)).reshape(-1) for of in (given, taken))
    places = torch.full((count,), -1)
    places[takes] = torch.arange(len(takes))
    into = places[gives]
    places = (into >= 0).nonzero().view(-1)
    return places, into[places]


def _room(item, needs, device):
    dims = item.shape
    if needs is not None:
        dims = needs.lying.dims(needs.member, item.shape) if isinstance(needs, Part) else (needs.end - needs.begin,)
    return torch.empty(dims, dtype=item.dtype, device=device)


def moved(model, state, before, after, checkpoints):
    """Sends what ranks need by the role `after`. Returns (tensors by (name, key), the optimizers' (kind, small states and
    items, settings) by name). Of what ranks divide, a tensor has what the rank will own, or the whole parameter's.
    Changes nothing."""
    device, rank = state.device, before.rank
    found, told = _tensors_of(model, state, before, checkpoints)
    told = {name: what for of_rank in gathered(told) for name, what in of_rank.items()}
    items = list(_items(model, state, after, told))
    messages, of_parts = list(_messages(items, before, after)), list(_part_messages(items, before, after))
    rooms = together("switch", lambda: {item: _room(item, needs, device) for item, taker, needs, _ in of_parts if taker == rank})
    room = together("switch", lambda: {
        item: torch.empty(need.end - need.begin, dtype=item.dtype, device=device)
        for item, need, _ in messages if need.rank == rank})
    operations, kept = [], []
    for item, need, parts in messages:
        for part in parts:
            if need.rank == rank:
                into = room[item][part.begin - need.begin:part.end - need.begin]
            if part.rank == rank:
                own = slice_of(_slices(before, item) or (), rank)  # what this rank has of the item
                first = 0 if own is None else own.begin
                values = found[item.name, item.key].reshape(-1)[part.begin - first:part.end - first]
                if need.rank == rank:
                    into.copy_(values)
                    continue
                kept.append(values.to(device).contiguous())
                operations.append(dist.P2POp(dist.isend, kept[-1], need.rank))
            elif need.rank == rank:
                operations.append(dist.P2POp(dist.irecv, into, part.rank))
    received = []  # (the room, the places of the elements in it, the elements)
    for item, taker, needs, givers in of_parts:
        for giver, has in givers:
            if rank not in (giver, taker):
                continue
            gives, takes = (places.to(device) for places in common(item.shape, has, needs))
            if len(gives) == 0:
                continue
            if giver == rank:
                values = found[item.name, item.key].to(device).reshape(-1)[gives]
                if taker == rank:
                    received.append((rooms[item], takes, values))
                else:
                    kept.append(values)
                    operations.append(dist.P2POp(dist.isend, values, taker))
            else:
                received.append((rooms[item], takes, torch.empty(len(takes), dtype=item.dtype, device=device)))
                operations.append(dist.P2POp(dist.irecv, received[-1][2], giver))
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    for tensor, places, values in received:
        tensor.view(-1)[places] = values
    found.update(((item.name, item.key), tensor) for item, tensor in rooms.items())
    for item, tensor in room.items():
        whole = tensor.numel() == math.prod(item.shape)
        found[item.name, item.key] = tensor.view(item.shape) if whole else tensor
    return found, told


def install(state, model, before, after, found):
    """Gives the module what is new to this rank. Returns (the values, by name, of its slices of parameters that ranks divide,
    a function that takes back what is new)."""
    own = [name for name, ranks in after.holders.items() if before.rank in ranks]
    slices = {name: slice_of(after.slices[name], before.rank) for name in after.divided & set(own)}
    values = {name: part.kept(found[name, None]) for name, part in slices.items() if part is not None}
    new = [name for name in own if _is_new(model, before, name)]
    take_back = state.replace({name: absent(tensor_of(model, name), state.device) if name in slices else found[name, None]
                               for name in new})
    rank = before.rank
    changed = {name for name in set(own) - set(new)
               if (name in slices) != (name in before.divided) or before.part(name, rank) != after.part(name, rank)}
    # Buffers that the rank had a part of, and has no more: every rank has some tensor of each buffer.
    left = {name for name in before.in_teams if before.part(name, rank) is not None and name not in own
            and not isinstance(tensor_of(model, name), torch.nn.Parameter)}
    known = {name: (tensor_of(model, name).data, tensor_of(model, name).grad) for name in changed | left}
    for name in changed | left:
        tensor = tensor_of(model, name)
        tensor.grad = None
        tensor.data = (state.absent(name, tensor, state.device) if name in left
                       else absent(state.absent(name, tensor), state.device) if name in slices else found[name, None])

    def back():
        take_back()
        for name, (data, gradient) in known.items():
            tensor_of(model, name).data, tensor_of(model, name).grad = data, gradient

    return values, back


def _is_new(model, before, name):
    if isinstance(tensor_of(model, name), torch.nn.Parameter):
        return before.rank not in before.holders[name]
    return tensor_of(model, name).is_meta


def fill(checkpoints, owned, found, told):
    """Gives a new optimizer, which has the names in `owned`, the states and settings that its parameters had."""
    named = {name: told[name] for name in checkpoints.names if name in told}
    checkpoints.check_kinds({name: kind for name, (kind, _, _) in named.items()}, "job")

    def states(name, small):
        return {key: found[name, key] if isinstance(what, Item) else what.value for key, what in small.items()} if name in owned else {}

    checkpoints.take({name: (states(name, small), settings) for name, (_, small, settings) in named.items()}, "job")


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
