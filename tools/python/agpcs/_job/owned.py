# SPDX-License-Identifier: Apache-2.0
"""Divided state in agpcs.torch.Job: of the parameters of sharded buckets, the slices whose state each rank owns.

A rank's optimizer has slices in the place of such parameters. A slice is flat, and lies in the memory of its parameter; where ranks
divide parameters, too, in memory of its own.
"""

from __future__ import annotations

import itertools
import typing

import torch
import torch.distributed as dist

from agpcs._errors import UsageError
from agpcs._job.gathered import take_away

# Those that treat each element by itself, and what they keep of a parameter beside values of its elements.
_ELEMENTWISE = tuple(getattr(torch.optim, name) for name in (
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "Adamax", "ASGD", "Rprop"))
_OF_ALL_ELEMENTS = ("step", "mu_product", "eta", "mu")


def tensor_of(model, name):
    """The parameter or buffer of a name."""
    path, _, last = name.rpartition(".")
    return getattr(model.get_submodule(path), last)


class Slice(typing.NamedTuple):
    """Flat elements of a tensor that a rank has."""

    rank: int
    begin: int
    end: int

    def of(self, whole):
        """Its elements of a whole tensor, flat: a view where the tensor's strides allow it."""
        return whole.reshape(-1)[self.begin:self.end]

    def kept(self, value):
        """A copy of its elements of a whole tensor; a value that is the slice already: itself, flat."""
        return value.reshape(-1) if value.numel() == self.end - self.begin else self.of(value).clone()


def slices_of(groups):
    """By name of each parameter in sharded buckets, its slices by the ranks that own them. None is empty."""
    found = {}
    for group in groups:
        if not group.parts or len(group.ranks) == 1:
            continue
        ends, first = list(itertools.accumulate(group.parts)), 0
        for name, elements in zip(group.parameters, group.elements):
            every = [Slice(rank, max(end - part - first, 0), min(end - first, elements))
                     for rank, part, end in zip(group.ranks, group.parts, ends)]
            if elements > 0:
                found[name] = [one for one in every if one.begin < one.end]
            first += elements
    return found


def divided_in(groups):
    """The names of parameters whose values ranks divide."""
    return {name for group in groups if group.state == "parameters" for name in group.parameters}


def slice_of(slices, rank):
    """The Slice of a rank, or None."""
    return next((one for one in slices if one.rank == rank), None)


def cut_values(model, role):
    """Takes away the values of parameters that ranks divide, and returns, by name, what this rank has of them."""
    found = {}
    for name in role.divided & set(role.parameters):
        parameter, part = model.get_parameter(name), slice_of(role.slices[name], role.rank)
        if part is not None:
            found[name] = part.of(parameter.detach()).clone()
        take_away(parameter)
    return found


def owned_of(trained, slices, rank, values):
    """What the optimizer of a rank has, by name, of its (name, parameter): parameters, or the slices that it owns. `values` are those
    of slices, by name, that have memory of their own."""
    found = {}
    for name, parameter in trained:
        own = slice_of(slices.get(name, ()), rank)
        if name not in slices:
            found[name] = parameter
        elif name in values:
            found[name] = torch.nn.Parameter(values[name])
        elif own is not None:
            if not parameter.is_contiguous():
                raise UsageError(f"the plan divides the optimizer's state, and the parameter '{name}' is not contiguous: its "
                                 f"strides are {parameter.stride()}\n  hint: a module in torch.contiguous_format, or a plan of "
                                 "agpcs.plan(..., without=['state'])")
            found[name] = torch.nn.Parameter(parameter.detach().view(-1)[own.begin:own.end])
    return found


def parameters_of(optimizer):
    """All parameters of an optimizer, as its state numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def treats_elements(optimizer):
    """Whether an optimizer treats each element by itself, so that ranks may divide its state; None has no state."""
    return optimizer is None or type(optimizer) in _ELEMENTWISE


def check_elementwise(optimizer, why, hint):
    """Refuses an optimizer that may not treat each element by itself, because `why` it has to."""
    if not treats_elements(optimizer):
        kind = type(optimizer)
        raise UsageError(
            f"{why}, and {kind.__module__}.{kind.__qualname__} may need all of a parameter at once: it is "
            f"none of {', '.join(kind.__name__ for kind in _ELEMENTWISE)} of torch.optim\n  hint: {hint}")


def examples_of(optimizer, trained):
    """By group of an optimizer, which was made for the (name, parameter) in `trained`, the name of one of its parameters, or None."""
    names = {id(parameter): name for name, parameter in trained}
    return [next((names[id(parameter)] for parameter in group["params"] if id(parameter) in names), None)
            for group in optimizer.param_groups]


def divide(optimizer, trained, owned, slices, rank):
    """Gives an optimizer, which was made for the (name, parameter) in `trained`, what its rank owns of them instead."""
    if slices:
        check_elementwise(optimizer, "the plan divides the optimizer's state", "agpcs.plan(..., without=['state'])")
    names = {id(parameter): name for name, parameter in trained}
    for group in optimizer.param_groups:
        kept = [i for i, parameter in enumerate(group["params"]) if names[id(parameter)] in owned]
        if "param_names" in group:
            group["param_names"] = [group["param_names"][i] for i in kept]
        group["params"] = [owned[names[id(group["params"][i])]] for i in kept]
    for parameter, state in list(optimizer.state.items()):  # Adagrad has some from the beginning
        name = names[id(parameter)]
        del optimizer.state[parameter]
        if name in owned:
            optimizer.state[owned[name]] = {key: cut(value, key, slices.get(name, ()), rank)
                                            for key, value in state.items()}


def of_elements(key, value):
    """Whether a state of an optimizer has a value for each element."""
    return isinstance(value, torch.Tensor) and key not in _OF_ALL_ELEMENTS


def cut(value, key, slices, rank):
    """What an optimizer keeps of a rank's slice, from what is kept of the whole parameter, or of that slice itself."""
    part = slice_of(slices, rank)
    return value if part is None or not of_elements(key, value) else part.kept(value)


def whole_values(role, model):
    """The values of parameters that ranks divide, by name: on the CPU of the first rank that has a slice. All ranks that have slices
    call it."""
    own = {name: ({"value": role.owned[name].detach()},) for name in role.divided & set(role.owned)}
    return {name: value for (name, _), value in whole_states(own, role, model).items()}


def whole_states(by_parameter, role, model):
    """The states of whole parameters, from those of slices, by (name, key): on the CPU of the first rank that has a slice
    of the parameter. All ranks that have slices call it."""
    operations, kept, found = [], [], {}
    for name in sorted(set(by_parameter) & set(role.slices)):
        first, *others = role.slices[name]
        for key, value in sorted(by_parameter[name][0].items()):
            if not of_elements(key, value):
                continue
            if role.rank == first.rank:
                parts = [value, *(torch.empty(one.end - one.begin, dtype=value.dtype, device=role.links.device) for one in others)]
                operations += [dist.P2POp(dist.irecv, part, one.rank) for part, one in zip(parts[1:], others)]
                found[name, key] = parts
            else:
                kept.append(value.to(role.links.device).contiguous())
                operations.append(dist.P2POp(dist.isend, kept[-1], first.rank))
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    return {(name, key): torch.cat([part.cpu() for part in parts]).view(model.get_parameter(name).shape)
            for (name, key), parts in found.items()}
