# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of agpcs.torch.Job, by torch.distributed.checkpoint: each rank writes what it owns, and reads its stage.

The keys are those of PyTorch's pipelines (get_state_dict with flatten_optimizer_state_dict): `model`, and `optim` with the
optimizers' states and settings by parameter. So another plan reads them, and a script without AGPCS.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import re
import shutil

import torch
import torch.distributed as dist

from agpcs._errors import Error, InvalidInput, PlanMismatch, UsageError
from agpcs._job.owned import cut, of_elements, parameters_of, whole_states
from agpcs._job.teams.exchange import Part
from agpcs._job.teams.team import whole_of_parts
from agpcs._job.together import together

_OWN_FILES = re.compile(r"\.metadata(\.tmp)?|__\d+_\d+\.distcp")
_NOT_SETTINGS = ("params", "param_names")


class Checkpoints:
    """`state` is the ModuleState of `model`, `optimizer` that of this rank or None, with what the Role `role` owns, and `host` its
    HostState or None; `scaler` and the Masks `masks` are None where there are none."""

    def __init__(self, model, state, optimizer, host, role, scaler, masks):
        self._model, self._state, self._optimizer, self._host, self._role = model, state, optimizer, host, role
        self._of_all = {"scaler": scaler, "dropout": masks}  # what every rank has alike, by its place in the state
        self._names = {id(tensor): name for name, tensor in role.owned.items()}
        self._trained = set(role.owned)
        # By number of a group that has no parameter here: the name of one for which other ranks have its settings.
        self._examples = {i: name for i, (group, name) in enumerate(zip(optimizer.param_groups if optimizer else (), role.examples))
                          if not group["params"] and name is not None}
        self._half_read = None  # the folder whose reading failed half way; None: the job's state is whole
        self._prefixes = (*(f"state.{name}." for name in self._trained), *(f"param_groups.{name}." for name in self.names))

    @property
    def names(self):
        """Of the parameters of whose states and settings, or of whose settings alone, the optimizer has some."""
        return self._trained.union(self._examples.values())

    def save(self, path, extra):
        """Writes a checkpoint: the folder has the name `path` once it is whole."""
        self.check_whole()
        partial = f"{path}.partial"
        written = together("save", lambda: _written(extra))
        together("save", lambda: _cleared(path, partial) if dist.get_rank() == 0 else None)
        content = {"model": {**self._state.owned(), **self._state.collected()}, **self._of_optimizer()}
        if dist.get_rank() == 0:
            content["extra"] = written
            content.update((place, what.state_dict()) for place, what in self._of_all.items() if what is not None)
        from torch.distributed import checkpoint
        with _named("write", partial):
            checkpoint.save(content, storage_writer=checkpoint.FileSystemWriter(partial))
        together("save", lambda: _put(partial, path) if dist.get_rank() == 0 else None)

    def load(self, path):
        """Takes a checkpoint. Returns what `save` was given as `extra`."""
        folder, places, wanted = together("load", lambda: self._wanted(path))
        first = {key: value for key, value in wanted.items() if places[key][0] in ("optimizers", "dropout")}
        found = _loaded(folder, first, places)
        together("load", lambda: self._check(found))
        self._half_read = folder  # tensors are read in place, for two of each may be too many
        found.update(_loaded(folder, {key: value for key, value in wanted.items() if key not in first}, places))
        together("load", lambda: self._read_slices(folder))
        extra = together("load", lambda: self._take(found))
        self._half_read = None
        return extra

    def _read_slices(self, folder):
        """Reads parameters whose values ranks divide: bucket by bucket, so that no more of them is whole at a time."""
        from agpcs._job.weights import Distributed
        slices = self._state.slices()
        stored = Distributed(folder) if slices else None
        for chunk in self._role.in_buckets(slices):
            wanted = {name: torch.empty(slices[name][0], dtype=slices[name][2].dtype) for name in chunk}
            stored.read(wanted)
            for name, whole in wanted.items():
                _, part, own = slices[name]
                own.copy_(part.of(whole))

    def check_whole(self):
        """Refuses to go on with a state of which a part comes from a checkpoint that could not be read."""
        if self._half_read is not None:
            raise Error(f"the job has a part of the checkpoint '{self._half_read}', the rest of which could not be read\n"
                        "  hint: job.load of a whole checkpoint, or a new job")

    def _of_optimizer(self):
        if self._optimizer is None:
            return {"optim": {}, "optimizers": {}}
        flat, kinds, by_parameter = {}, {}, self.by_parameter()
        whole = {**whole_states(by_parameter, self._role, self._model), **whole_of_parts(self._role, self._in_parts(by_parameter))}
        for name, (state, settings) in by_parameter.items():
            if self._role.tells(name):
                kinds[name] = self.kind
                flat.update((f"state.{name}.{key}", whole.get((name, key), value)) for key, value in state.items())
                flat.update((f"param_groups.{name}.{key}", value) for key, value in settings.items())
        return {"optim": flat, "optimizers": kinds}

    def _in_parts(self, by_parameter):
        """By (name, key): how it lies, and the member's part of it, of what the optimizer keeps of elements that lie in parts."""
        held = {} if self._role.team is None else self._role.team.held
        return {(name, key): (held[name], value) for name, (state, _) in by_parameter.items() if name in held
                for key, value in state.items() if of_elements(key, value)}

    @property
    def kind(self):
        """The class of the optimizer."""
        return type(self._optimizer).__name__

    def by_parameter(self):
        """What the optimizer has of each of its parameters, by name: (state, settings)."""
        if self._optimizer is None:
            return {}
        packed, names = self._optimizer.state_dict(), self._in_order()
        return {names[i]: (packed["state"].get(i, {}),
                           {key: value for key, value in group.items() if key not in _NOT_SETTINGS})
                for group in packed["param_groups"] for i in group["params"]}

    def _in_order(self):
        """The names of the optimizer's parameters, as its state numbers them."""
        return [self._names[id(parameter)] for parameter in parameters_of(self._optimizer)]

    def _wanted(self, path):
        """(folder, the place of each key in the state, what is read by key: tensors to read into, None for other values)."""
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata
        folder = folder_of(path)
        metadata = metadata_of(folder)
        stored, places = metadata.state_dict_metadata, metadata.planner_data or {}
        self._state.check({place[1]: stored[key].size for key, place in places.items() if place[0] == "model"}, "checkpoint")
        wanted = {f"model.{name}": tensor for name, tensor in self._state.held().items()}
        for key, place in places.items():
            if self._takes(place):
                of = stored[key]
                tensor = isinstance(of, TensorStorageMetadata)
                wanted[key] = torch.empty(of.size, dtype=of.properties.dtype) if tensor else None
        return folder, places, wanted

    def _takes(self, place):
        """Whether this rank reads what lies at `place` in the state, beside the module's tensors."""
        what, *below = place
        return (what == "extra" or self._of_all.get(what) is not None
                or what == "optim" and below[0].startswith(self._prefixes)
                or what == "optimizers" and below[0] in self.names)

    def _check(self, found):
        """Refuses what a job of this optimizer and seed does not go on from."""
        self.check_kinds(found.get("optimizers", {}), "checkpoint")
        if self._of_all["dropout"] is not None:
            self._of_all["dropout"].check(found.get("dropout"))

    def check_kinds(self, kinds, where):
        """Refuses states of other classes of optimizers, by parameter, that the `where` has."""
        for name, kind in kinds.items():
            if kind != self.kind:
                raise PlanMismatch(f"the {where} has the state of {kind} for '{name}', and the job's optimizer is {self.kind}")

    def _take(self, found):
        """Gives the scaler and the optimizer what was read. Returns the `extra` of `save`."""
        extra = _read(found["extra"]) if "extra" in found else None
        scaler, masks = self._of_all["scaler"], self._of_all["dropout"]
        if scaler is not None and "scaler" in found:
            scaler.load_state_dict(found["scaler"])
        if masks is not None:
            masks.load_state_dict(found.get("dropout"))
        values = found.get("optim", {})
        self.take({name: (_below(values, f"state.{name}."), _below(values, f"param_groups.{name}.")) for name in self.names},
                  "checkpoint")
        return extra

    def take(self, by_parameter, where):
        """Gives the optimizer what `by_parameter` of the `where` has: of whole parameters, or of what it owns."""
        if self._optimizer is None:
            return
        packed, names = self._optimizer.state_dict(), self._in_order()
        packed["state"] = {}
        for number, group in enumerate(packed["param_groups"]):
            of_each = [by_parameter[names[i]][1] for i in group["params"]]
            if number in self._examples:
                of_each = [by_parameter.get(self._examples[number], ({}, {}))[1]]
            for i, settings in zip(group["params"], of_each):
                if not settings:
                    raise PlanMismatch(f"the {where} has nothing of the optimizer for '{names[i]}'")
                if repr(settings) != repr(of_each[0]):
                    raise PlanMismatch(f"'{names[group['params'][0]]}' and '{names[i]}' are in one group of the optimizer, and "
                                       f"the {where} has {of_each[0]} and {settings} for them")
                packed["state"][i] = {key: self._own(names[i], key, value) for key, value in by_parameter[names[i]][0].items()}
            group.update(of_each[0] if of_each else {})
        packed["state"] = {i: state for i, state in packed["state"].items() if state}
        if self._host is None:
            self._optimizer.load_state_dict(packed)
        else:
            self._host.load(packed)

    def _own(self, name, key, value):
        team = self._role.team
        if team is not None and name in team.held:
            whole = of_elements(key, value) and value.shape != self._role.owned[name].shape  # else it is the member's part already
            return Part(team.held[name], team.member).of(value).clone() if whole else value
        return cut(value, key, self._role.slices.get(name, ()), self._role.rank)


def _loaded(folder, wanted, places):
    """The values of `wanted`, nested as they were saved. Tensors are read in place."""
    from torch.distributed import checkpoint

    from agpcs._job.stored import Planner, Reader
    with _named("read", folder):
        checkpoint.load(wanted, storage_reader=Reader(folder), planner=Planner())
    return _nested((places[key], value) for key, value in wanted.items())


def _below(values, prefix):
    return {key[len(prefix):]: value for key, value in values.items() if key.startswith(prefix)}


def _nested(items):
    """The state of (path, value): DCP takes lists and tuples apart."""
    tree = {}
    for path, value in items:
        place = tree
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value

    def joined(part):
        if not isinstance(part, dict):
            return part
        part = {key: joined(value) for key, value in part.items()}
        return tuple(part[i] for i in range(len(part))) if part and all(isinstance(key, int) for key in part) else part

    return joined(tree)


def _written(extra):
    file = io.BytesIO()
    torch.save(extra, file)
    written = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    try:
        _read(written)
    except Exception as error:
        raise UsageError(f"extra has what no checkpoint takes: {error}\n"
                         "  hint: numbers, texts, tensors, and lists and dicts of them") from error
    return written


def _read(written):
    return torch.load(io.BytesIO(written.numpy().tobytes()), weights_only=True)


def leads_out(name):
    """Whether a name that a file gives for another one may lead out of its own folder."""
    return not isinstance(name, str) or os.path.isabs(name) or ".." in pathlib.PurePath(name).parts or "\0" in name


def folder_of(path):
    """The folder of the checkpoint at `path`; the one before, if the job ended while it was replaced."""
    for folder in (path, f"{path}.replaced"):
        if os.path.exists(os.path.join(folder, ".metadata")):
            return folder
    raise FileNotFoundError(f"'{path}' is no checkpoint: it has no '.metadata', which is written last")


def metadata_of(folder):
    """What DCP knows of the tensors in a folder, of which nothing is run."""
    from agpcs._job.stored import Reader
    try:
        return Reader(folder).read_metadata()
    except Exception as error:  # of pickle, or of what it finds
        raise InvalidInput(f"{folder}/.metadata: is damaged: {type(error).__name__}: {error}") from error


def _cleared(path, partial):
    """Makes room for the files of a checkpoint, and refuses to replace what is none."""
    for folder in (path, partial, f"{path}.replaced"):
        others = [name for name in os.listdir(folder) if not _OWN_FILES.fullmatch(name)] if os.path.isdir(folder) else []
        if others or os.path.exists(folder) and not os.path.isdir(folder):
            raise UsageError(f"'{folder}' is in the way: it is no checkpoint" + (f", it has '{others[0]}'" if others else ""))
    if os.path.exists(partial):
        shutil.rmtree(partial)
    os.makedirs(partial)


def _put(partial, path):
    """Gives the whole checkpoint its name. At every moment there is a whole one, at `path` or as `path`.replaced."""
    replaced = f"{path}.replaced"
    _sync(partial)
    if os.path.exists(path):
        shutil.rmtree(replaced, ignore_errors=True)
        os.rename(path, replaced)
    os.rename(partial, path)
    _sync(os.path.dirname(os.path.abspath(path)))
    shutil.rmtree(replaced, ignore_errors=True)


def _sync(folder):
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextlib.contextmanager
def _named(what, folder):
    """Tells of a failure in DCP by rank and cause."""
    from torch.distributed.checkpoint import CheckpointException
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items(), key=lambda failure: failure[0])
        raise Error(f"rank {rank} cannot {what} the checkpoint '{folder}': {type(cause).__name__}: {cause}") from error
