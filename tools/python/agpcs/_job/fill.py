# SPDX-License-Identifier: Apache-2.0
"""Values for a module of agpcs.torch.Job that has none: each rank gets those of its stage, from files or by a function."""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist

from agpcs._errors import PlanMismatch, UsageError
from agpcs._job import weights as files
from agpcs._job.gathered import absent
from agpcs._job.owned import slice_of, slices_of


class Filling:
    """Checks at once that what the module lacks is in `weights`, a path, or left to `init`. `device` is that of the values,
    as `device_of` takes it. A module that has all its values needs nothing, and gets nothing."""

    def __init__(self, model, weights, init, seed, device):
        self._model, self._init, self._seed = model, init, seed
        self._named = _named(model)
        self.values = {}
        self._persistent = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
        self._first = {}  # by id of a tensor
        for name, tensor in self._named.items():
            self._first.setdefault(id(tensor), name)
        empty = [name for name, tensor in self._named.items() if without_values(tensor)]
        self.needed = bool(empty)
        self._device = device_of(model, device)
        if not empty:
            for option, value in (("weights", weights), ("init", init), ("device", device)):
                if value is not None:
                    raise UsageError(f"{option} is for a module without values, and this one has all of its own\n"
                                     "  hint: make it under torch.device('meta')")
            return
        if weights is None and init is None:
            raise UsageError(f"'{empty[0]}' has no values: it is on the device 'meta'\n"
                             "  hint: weights=FILE_OR_FOLDER reads them, init=FUNCTION makes them, on each rank those of its "
                             "stage")
        self._source = None if weights is None else files.opened(weights)
        self._had_no_files = weights is None
        if self._source is not None:
            self._check_entries()
        self._check_the_rest(empty)

    def _names(self, tensor):
        return [name for name, other in self._named.items() if other is tensor]

    def _check_entries(self):
        """Each tensor of the state is in the files, by one of its names, and nothing else is."""
        entries = self._source.entries
        state = {name: tensor for name, tensor in self._named.items() if id(tensor) in self._persistent}
        extra = [name for name in entries if name not in state]
        if extra:
            raise PlanMismatch(f"{entries[extra[0]].file}: has '{extra[0]}', {_form(entries[extra[0]])}, and the module has no "
                               f"such name{_more(extra)}")
        lacking = [name for name, tensor in state.items() if not any(other in entries for other in self._names(tensor))]
        if lacking:
            file = next(iter(entries.values())).file if entries else "the file"
            raise PlanMismatch(f"{file}: has no '{lacking[0]}', which is {_form(state[lacking[0]])} of the module"
                               f"{_more(lacking)}")
        for name, entry in entries.items():
            if entry.shape != tuple(state[name].shape) or entry.dtype != state[name].dtype:
                hint = f"\n  hint: model.to({entry.dtype}) before the plan" if entry.shape == tuple(state[name].shape) else ""
                raise PlanMismatch(f"{entry.file}: '{name}' is {_form(entry)}, and the module's is {_form(state[name])}{hint}")

    def _check_the_rest(self, empty):
        for name in empty if self._init is None else ():
            if id(self._named[name]) not in self._persistent:
                raise UsageError(
                    f"the buffer '{name}' has no values, and is not persistent, so it is in no file\n"
                    "  hint: init=FUNCTION, which sets such buffers of the module that it gets; or make the module with "
                    "them: include_buffers=False of accelerate.init_empty_weights")

    def fill(self, graph, parts, own, plan):
        """Puts values into the module and into those of the stages `own`; `parts` are the Stages of `graph`. What other stages
        have is on the device "meta" afterwards, tied as before. Of parameters whose values ranks divide by `plan`, this rank's slices
        are in `values`, by name: one bucket of them, or what one module has, is whole at a time."""
        if not self.needed:
            return
        slices = slices_of(plan.groups)
        divided = [[name for name in group.parameters if name in slices] for group in plan.groups if group.state == "parameters"]
        self._parts = {name: slice_of(slices[name], dist.get_rank()) for of_bucket in divided for name in of_bucket}
        self._stages = self._stages_of(parts)
        modules = [parts[number].module for number in own]
        names = {name: graph.parameters.get(name) or graph.buffers.get(name) for module in modules for name in _named(module)}
        held = {id(self._named[name]) for name in names.values() if name is not None}
        held |= {id(self._named[name]) for name, stage in self._stages.items() if stage in own}
        made = {}
        for tensor in self._named.values():
            if id(tensor) in made:
                continue
            if id(tensor) in held and self._first[id(tensor)] in self._parts:
                made[id(tensor)] = _same_kind(tensor, absent(tensor, self._device))
            else:
                made[id(tensor)] = _like(tensor, self._device if id(tensor) in held else None)
        new = {self._first[key]: tensor.detach() for key, tensor in made.items() if key in held}
        for name in self._parts:
            new.pop(name, None)
        with torch.no_grad():
            self._read([new, *({name: None for name in names if self._parts[name] is not None} for names in divided)])
            self._make(new)
        for part in self._model.modules():
            for table in (part._parameters, part._buffers):
                table.update((name, made[id(tensor)]) for name, tensor in table.items() if tensor is not None)
        for place, name in names.items():
            for table in (table for module in modules for table in (module._parameters, module._buffers)):
                if name is not None and place in table:
                    table[place] = made[id(self._named[name])]

    def keep_given(self, role):
        """Takes this rank's slices of what had values of its own before: those of the first of the ranks that have its stages, which all
        call it."""
        for name, part in self._parts.items() if self.needed else ():
            if name in role.parameters and not without_values(self._named[name]):
                whole = self._named[name].detach().to(self._device, copy=True)
                dist.broadcast(whole, role.ranks[0], group=role.everyone)
                if part is not None:
                    self._keep(name, whole)

    def owners_of_unused(self, role):
        """The rank whose tensor counts, by name, of tensors that no stage uses; of a module that had values, none."""
        if not self.needed:
            return {}
        return {name: role.shares.ranks[stage][0] for name, stage in self._stages.items() if name not in role.owners}

    def _stages_of(self, parts):
        """The first stage that uses a tensor, by its first name; what none uses is with the first stage."""
        stages = dict.fromkeys(self._first.values(), 0)
        for s in reversed(range(len(parts))):
            for name in (*parts[s].parameters, *parts[s].buffers):
                stages[self._first[id(self._named[name])]] = s
        return stages

    def _keep(self, name, whole):
        """Takes this rank's slice of a parameter whose values ranks divide."""
        part = self._parts[name]
        self.values[name] = part.of(whole.detach()).to(self._device, copy=True)

    def _read(self, every):
        """Reads the tensors of each of `every`, by their first names; None: of which this rank keeps its slice."""
        for new in every if self._source is not None else ():
            wanted, sliced = {}, {}
            for first, tensor in new.items():
                if id(self._named[first]) not in self._persistent:
                    continue
                name = next(name for name in self._names(self._named[first]) if name in self._source.entries)
                if tensor is None:
                    sliced[first] = tensor = torch.empty(self._named[first].shape, dtype=self._named[first].dtype)
                wanted[name] = tensor
            self._source.read(wanted)
            self._check_tied(wanted)
            for first, tensor in sliced.items():
                self._keep(first, tensor)
        self._source = None  # files are closed

    def _check_tied(self, wanted):
        """A tied tensor that the files have several times is the same each time."""
        for name, tensor in wanted.items():
            for other in self._names(self._named[name]):
                if other == name or other not in self._source.entries:
                    continue
                again = torch.empty_like(tensor)
                self._source.read({other: again})
                if not torch.allclose(tensor, again, 0, 0, equal_nan=True):
                    raise PlanMismatch(f"{self._source.entries[other].file}: '{name}' and '{other}' are one tensor of the module, "
                                       "and two different ones here")

    def _make(self, new):
        """Calls `init` with each module that has something to make, all of whose own tensors have memory meanwhile."""
        def left(tensor):
            return without_values(tensor) and (self._had_no_files or id(tensor) not in self._persistent)

        if self._init is None:
            return
        for name, part in self._model.named_modules():
            prefix = f"{name}." if name else ""
            tables = {"parameter": part._parameters, "buffer": part._buffers}
            todo = {kind: {own: tensor for own, tensor in table.items() if tensor is not None and left(tensor)}
                    for kind, table in tables.items()}
            wanted = {own: kind for kind, of_kind in todo.items() for own, tensor in of_kind.items()
                      if self._first[id(tensor)] == prefix + own
                      and (prefix + own in new or self._parts.get(prefix + own) is not None)}
            if not wanted:
                continue
            for kind, of_kind in todo.items():
                tables[kind].update((own, _unset(tensor, new.get(prefix + own))) for own, tensor in of_kind.items())
            try:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed_of(self._seed, name))
                    self._init(part)
                found = {own: tables[kind][own] for own, kind in wanted.items()}
            finally:
                for kind, of_kind in todo.items():
                    tables[kind].update(of_kind)
            for own, tensor in found.items():
                self._take(prefix + own, wanted[own], tensor, new.get(prefix + own), type(part).__name__)

    def _take(self, name, kind, made, tensor, module):
        """Takes what `init` made into `tensor`; None: this rank keeps its slice."""
        own = self._named[name]
        if not isinstance(made, torch.Tensor) or made.shape != own.shape or made.dtype != own.dtype:
            raise UsageError(f"init made the {kind} '{name}' {_form(made)}, and it is {_form(own)} of the module")
        if made.is_floating_point() and made.isnan().any():
            raise UsageError(f"init left the {kind} '{name}' of {module} without values\n"
                             "  hint: init(module) sets each parameter and buffer of the module itself, not those of its children")
        if tensor is None:
            self._keep(name, made)
        elif made.data_ptr() != tensor.data_ptr():
            tensor.copy_(made)


def without_values(tensor):
    """Whether a tensor is on the device "meta", or was made within FakeTensorMode."""
    return tensor.is_meta or hasattr(tensor.data, "fake_mode")


def seed_of(seed, name):
    """The seed of a module's values: the first 63 bits of the SHA-256 of "SEED:NAME"."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big") >> 1


def _named(module):
    return {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers(remove_duplicate=False))}


def _like(tensor, device):
    """A tensor like `tensor` on `device`; `device` None: itself, or one on "meta" if it has no values. What has values
    keeps them."""
    if without_values(tensor):
        return _same_kind(tensor, torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device or "meta"))
    if device is None or tensor.device == torch.device(device):
        return tensor
    return _same_kind(tensor, tensor.detach().to(device))


def _unset(tensor, own):
    """A tensor like `tensor` on the CPU, `own` if that is there, whose values show that nobody has set them: no numbers; of
    other types than floating ones, 0."""
    made = own if own is not None and own.device.type == "cpu" else _like(tensor, "cpu").detach()
    return _same_kind(tensor, made.fill_(torch.nan if made.is_floating_point() else 0))


def _same_kind(tensor, made):
    return torch.nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else made


def device_of(model, device=None):
    """Where a rank's tensors are to be: with the module's, or, where it has no values, on `device`, and without that on the
    default process group's."""
    first = next(iter(_named(model).values()), None)
    if first is not None and not without_values(first):
        return first.device
    if device is not None:
        return torch.device(device)
    return torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend() else torch.device("cpu")


def _form(value):
    if not hasattr(value, "shape"):
        return f"a {type(value).__name__}"
    return f"a tensor of {str(value.dtype).removeprefix('torch.')} and shape {'x'.join(map(str, value.shape)) or 'scalar'}"


def _more(names):
    return f", and {len(names) - 1} more" if len(names) > 1 else ""
