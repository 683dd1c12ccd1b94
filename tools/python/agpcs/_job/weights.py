# SPDX-License-Identifier: Apache-2.0
"""Files of weights for agpcs.torch.Job, of which a rank reads its own tensors: safetensors, one file or several with an
index as Hugging Face writes them, and folders of torch.distributed.checkpoint."""

from __future__ import annotations

import json
import os
import stat
import typing
import warnings

import torch

from agpcs._errors import Error, InvalidInput, UsageError
from agpcs._job.checkpoint import folder_of, leads_out, metadata_of

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


class Entry(typing.NamedTuple):
    """A tensor of a file."""

    file: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class Safetensors:
    """The tensors of a file; with `index`, those of several: the file of each name."""

    def __init__(self, path, index=None):
        files = {path: None} if index is None else dict.fromkeys(index.values())
        self.entries = {}
        for file in files:
            _require_file(file)
            with _mapped(file) as tensors:
                names = tensors.keys() if index is None else [name for name, of in index.items() if of == file]
                self.entries.update((name, Entry(file, *_form(tensors, file, name))) for name in names)

    def read(self, wanted):
        """Fills tensors by name."""
        for name, tensor in wanted.items():
            with _mapped(self.entries[name].file) as tensors:  # anew, for pages of a file count while it is mapped
                tensor.copy_(tensors.get_tensor(name))


def _require_file(path):
    if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe would wait for ever
        raise InvalidInput(f"{path}: is not a file")


def _mapped(file):
    try:
        from safetensors import safe_open
    except ImportError:
        raise Error(f"'{file}' needs the package 'safetensors'\n  hint: pip install safetensors") from None
    try:
        return safe_open(file, framework="pt")
    except Exception as error:  # safetensors has its own
        raise InvalidInput(f"{file}: is damaged: {error}") from error


def _form(tensors, file, name):
    try:
        of = tensors.get_slice(name)
    except Exception as error:  # safetensors has its own
        raise InvalidInput(f"{file}: has no '{name}', which the index has there: {error}") from None
    shape = tuple(of.get_shape())
    return shape, (of[0:0] if shape else tensors.get_tensor(name)).dtype


class Distributed:
    """The module's tensors in a folder of torch.distributed.checkpoint: what is below `model`, or all of it."""

    def __init__(self, folder):
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata
        self._folder = folder
        metadata = metadata_of(folder)
        stored = metadata.state_dict_metadata
        below = {".".join(map(str, place[1:])): key for key, place in (metadata.planner_data or {}).items()
                 if len(place) > 1 and place[0] == "model"}
        self._keys = below or {key: key for key in stored}
        self.entries = {name: Entry(folder, tuple(stored[key].size), stored[key].properties.dtype)
                        for name, key in self._keys.items() if isinstance(stored[key], TensorStorageMetadata)}

    def read(self, wanted):
        """Fills tensors by name."""
        from torch.distributed import checkpoint

        from agpcs._job.stored import Planner, Reader
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*in a single process.*")  # each rank reads what is its own
                checkpoint.load({self._keys[name]: tensor for name, tensor in wanted.items()}, no_dist=True,
                                storage_reader=Reader(self._folder), planner=Planner())
        except checkpoint.CheckpointException as error:
            cause, _ = error.failures[0]
            raise InvalidInput(f"{self._folder}: cannot be read: {type(cause).__name__}: {cause}") from error


def opened(path):
    """The tensors at `path`, whose `entries` are known and none of which is read."""
    path = os.fspath(path)
    if not os.path.isdir(path):
        return Safetensors(path)
    index, single = os.path.join(path, _INDEX), os.path.join(path, _SINGLE)
    if os.path.exists(index):
        return Safetensors(index, {name: os.path.join(path, file) for name, file in _weight_map(index).items()})
    if os.path.exists(single):
        return Safetensors(single)
    try:
        return Distributed(folder_of(path))
    except FileNotFoundError:
        raise UsageError(f"'{path}' has no weights\n  hint: a .safetensors file, a folder with {_INDEX} or {_SINGLE}, or "
                         "one of torch.distributed.checkpoint, whose .metadata is written last") from None


def _weight_map(index):
    _require_file(index)
    try:
        with open(index, encoding="utf-8") as file:
            found = dict(json.load(file)["weight_map"].items())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{index}: is no index of safetensors: {type(error).__name__}: {error}") from error
    for shard in found.values():
        if leads_out(shard):
            raise InvalidInput(f"{index}: names the file {shard!r}, which is not in its folder")
    return found
