# SPDX-License-Identifier: Apache-2.0
"""The state of the whole module of agpcs.torch.Job, whose tensors lie on the ranks of their stages.

A tied tensor has several names in the module. The first of them, as named_parameters() has it, stands for all.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from agpcs._errors import PlanMismatch
from agpcs._job.owned import slice_of, whole_values
from agpcs._job.teams.exchange import Part, put_part
from agpcs._job.teams.team import whole_of_parts
from agpcs._job.together import together


class ModuleState:
    """It is made while the module has all its tensors, with values or without."""

    def __init__(self, module, device):
        self._module, self.device = module, device
        first = {}
        named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
        self._shapes = {name: tensor.shape for name, tensor in (*named, *self._tensors())}  # of whole tensors
        self._first = {name: first.setdefault(id(tensor), name) for name, tensor in self._tensors()}

    def own_by(self, owners, role):
        """`owners` has the rank whose tensor counts, by name; a tensor without one is the same on every rank. The Role `role` says of
        which parameters ranks divide the values, and what members of teams hold in parts: of each, the first replica's counts."""
        self._own_parts = {}  # by name of what this rank holds a part of: the Part
        for name in role.in_teams:
            part = role.part(name, role.rank)
            if part is not None:
                self._own_parts[self._first.get(name, name)] = part
        self._laid = {self._first.get(name, name): of_team for name, of_team in role.laid.items()}
        self._owners = {self._first.get(name, name): rank for name, rank in owners.items()}
        self._role, self._divided = role, {self._first.get(name, name): name for name in role.divided}

    def _tensors(self):
        return self._module.state_dict(keep_vars=True).items()

    def release(self, names):
        """Drops the values of parameters that other ranks have: they become tensors on the device "meta", tied as before."""
        self.replace({name: self.absent(name, self._module.get_parameter(name)) for name in names})

    def absent(self, name, own, device="meta"):
        """A tensor without values like `own`, which may be a part of the whole one of that name."""
        whole = own.shape == self._shapes[name]
        return torch.empty_like(own, device=device) if whole else torch.empty(self._shapes[name], dtype=own.dtype, device=device)

    def shape(self, name):
        """The shape of the whole tensor of a name."""
        return self._shapes[name]

    def replace(self, tensors):
        """Puts parameters and buffers with these tensors, by name, in the place of the module's, tied as before. Returns a
        function that puts the module's own back."""
        named = {**dict(self._module.named_parameters(remove_duplicate=False)),
                 **dict(self._module.named_buffers(remove_duplicate=False))}
        olds, news = [named[name] for name in tensors], list(tensors.values())
        for i, old in enumerate(olds):
            if isinstance(old, torch.nn.Parameter):
                news[i] = torch.nn.Parameter(news[i], requires_grad=old.requires_grad)
                news[i].__dict__.update(old.__dict__)  # what a script notes of a parameter, for its optimizer_fn
        self._put(olds, news)
        return lambda: self._put(news, olds)

    def _put(self, olds, news):
        by_old = {id(old): new for old, new in zip(olds, news)}
        for part in self._module.modules():
            for table in (part._parameters, part._buffers):
                table.update((name, by_old[id(tensor)]) for name, tensor in table.items() if id(tensor) in by_old)

    def whole(self):
        """The state by name, on every rank; names of one tied tensor have the same one. All ranks call it."""
        state = {}
        for name, tensor in self._tensors():
            first = self._first[name]
            if first in state:
                state[name] = state[first]
            elif first in self._laid:
                state[name] = self._put_together(first, tensor.detach(), *self._laid[first])
            elif name in self._divided:
                state[name] = self._joined(tensor, self._divided[name])
            else:
                state[name] = self._shared(name, tensor.detach(), self._owners.get(name))
        return state

    def _put_together(self, name, tensor, ranks, lying):
        """A whole tensor of which the members `ranks` of a team hold parts."""
        dims = self._shapes[name]
        whole = torch.empty(dims, dtype=tensor.dtype, device=self.device)
        for member, rank in enumerate(ranks):
            own = (tensor.clone(memory_format=torch.contiguous_format) if rank == dist.get_rank()
                   else torch.empty(lying.dims(member, dims), dtype=tensor.dtype, device=self.device))
            dist.broadcast(own, rank)
            put_part(whole, own, lying, member)
        return whole

    def _joined(self, tensor, name):
        """A whole parameter whose values ranks divide."""
        whole = torch.empty(tensor.numel(), dtype=tensor.dtype, device=self.device)
        for one in self._role.slices[name]:
            if one.rank == dist.get_rank():
                whole[one.begin:one.end].copy_(self._role.owned[name].detach())
            dist.broadcast(whole[one.begin:one.end], one.rank)
        return whole.view(tensor.shape)

    def _shared(self, name, tensor, owner):
        if owner is None:
            return tensor
        lacks = tensor.is_meta or self._first[name] in self._own_parts
        tensor = self.absent(name, tensor, self.device) if lacks else tensor.clone()
        dist.broadcast(tensor, owner)
        return tensor

    def is_owned(self, name):
        """Whether this rank is the one whose tensor of this name counts."""
        return self._owners.get(self._first.get(name, name), 0) == dist.get_rank()

    def owned(self):
        """What of the state this rank owns, by all names. Over all ranks, each name is there once."""
        return {name: tensor.detach() for name, tensor in self._tensors()
                if self.is_owned(name) and self._first[name] not in self._laid}

    def held(self):
        """The tensors that have whole values on this rank, by their first names."""
        return {name: tensor.detach() for name, tensor in self._tensors()
                if not tensor.is_meta and self._first[name] == name and name not in self._divided and name not in self._own_parts}

    def slices(self):
        """Of tensors of which ranks have parts, what this rank has, by their first names: (shape, Slice or Part, its values)."""
        found = {}
        for name, tensor in self._tensors():
            if self._first[name] == name and name in self._own_parts:
                found[name] = self._shapes[name], self._own_parts[name], tensor.detach()
        for name, known in self._divided.items():
            if known in self._role.owned:
                tensor = self._module.get_parameter(name)
                found[name] = (tensor.shape, slice_of(self._role.slices[known], dist.get_rank()), self._role.owned[known].detach())
        return found

    def collected(self):
        """Of tensors of which ranks have parts, by all names: whole ones, each on the CPU of its owner."""
        values = {}
        if self._divided:
            of_divided = whole_values(self._role, self._module)
            values = {first: of_divided[name] for first, name in self._divided.items() if name in of_divided}
        own = {(name,): (part.lying, tensor) for name, (_, part, tensor) in self.slices().items() if isinstance(part, Part)}
        values.update((name, value) for (name,), value in whole_of_parts(self._role, own).items())
        return {name: values[first] for name, first in self._first.items() if first in values}

    def check(self, shapes, what="state"):
        """Refuses the names and shapes of another module."""
        own = {name: self._shapes[name] for name, _ in self._tensors()}
        wrong = sorted(set(own) ^ set(shapes)) or [name for name in own if own[name] != shapes[name]]
        if wrong:
            raise PlanMismatch(f"the {what} is of another module: '{wrong[0]}' differs"
                               + (f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""))

    def load(self, state):
        """Takes what this rank has of a state by name. Changes nothing, on any rank, if the state of one is of another
        module. All ranks call it."""
        together("load the state", lambda: self._check_all(state))
        with torch.no_grad():
            for name, tensor in self.held().items():
                tensor.copy_(state[name])
            for name, (_, part, own) in self.slices().items():
                own.copy_(part.of(state[name]))

    def _check_all(self, state):
        self.check({name: tensor.shape for name, tensor in state.items()})
        for name, first in self._first.items():
            if state[name] is not state[first] and not torch.allclose(state[name], state[first], 0, 0, equal_nan=True):
                raise PlanMismatch(f"'{first}' and '{name}' are one tensor of the module, and two different ones of the "
                                   "state\n  hint: a state of a module in which they are tied")
