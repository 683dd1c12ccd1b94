# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints of torch.distributed.checkpoint without running what a file names: pickled values may name any function."""

import os
import pathlib
import pickle
import re

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, filesystem, metadata

from agpcs._job.checkpoint import leads_out

_NAMED = (filesystem._StorageInfo, metadata.Metadata, metadata.MetadataIndex, metadata.StorageMeta, metadata.TensorProperties,
          metadata.TensorStorageMetadata, metadata.BytesStorageMetadata, metadata.ChunkStorageMetadata,
          metadata._MEM_FORMAT_ENCODING)
_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)


def _member(of, name):
    """What enumerations are pickled by."""
    if of is not metadata._MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError(f"it takes '{name}' of {of}, which no checkpoint needs")
    return of[name]


class _Unpickler(pickle.Unpickler):
    _by_name = {(kind.__module__, kind.__qualname__): kind for kind in _NAMED}
    _by_name |= {("builtins", "getattr"): _member, ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
                 ("torch", "Size"): torch.Size, ("pathlib", "PosixPath"): pathlib.PosixPath,
                 ("pathlib._local", "PosixPath"): pathlib.PosixPath}  # Python 3.13's name

    def find_class(self, module, name):
        found = self._by_name.get((module, name))
        if found is None and module == "torch":
            value = getattr(torch, name, None)
            found = value if isinstance(value, _OF_TORCH) else None
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint needs")
        return found


def _refuse_names(folder, names):
    """Raises where a name leads out of the folder, or to what is no file: reading a pipe would wait for ever."""
    for name in names:
        if leads_out(name):
            raise pickle.UnpicklingError(f"it names the file {name!r}, which is not in its folder")
        path = os.path.join(folder, name)
        if os.path.exists(path) and not os.path.isfile(path):
            raise pickle.UnpicklingError(f"'{name}' is not a file")


class Reader(FileSystemReader):
    """A FileSystemReader whose metadata is made of the classes that such a file needs, and names files of its folder alone."""

    def __init__(self, folder):
        super().__init__(folder)
        self._folder = folder

    def read_metadata(self, *args, **kwargs):
        _refuse_names(self._folder, [".metadata"])
        with open(os.path.join(self._folder, ".metadata"), "rb") as file:
            found = _Unpickler(file).load()
        if not isinstance(found, metadata.Metadata):
            raise pickle.UnpicklingError(f"it has {type(found).__name__} in the place of metadata")
        _refuse_names(self._folder, {place.relative_path for place in (found.storage_data or {}).values()})
        found.storage_meta = found.storage_meta or metadata.StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class Planner(DefaultLoadPlanner):
    """Reads into the tensors that are wanted, and other values where they are of PyTorch's safe kinds."""

    def __init__(self):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item, value):
        name = read_item.dest_index.fqn
        try:
            self.state_dict[name] = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            named = re.search(r"GLOBAL (\S+)", str(error))
            what = f"names {named[1]}, which no checkpoint needs" if named else f"is damaged: {error}"
            raise pickle.UnpicklingError(f"'{name}' {what}") from None
