# SPDX-License-Identifier: Apache-2.0
"""Buckets of agpcs.torch.Job of which ranks divide the parameters, too: a rank has whole ones only while its passes use them.

A parameter stays the user's own object. Between steps it has its shape, its type and its device, and every value of it is no
number; to write to it is an error. Within a step it lies in the memory of its bucket, which comes and goes. What autograd keeps
of it lies in the same memory, so a backward pass finds there what is gathered for it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from agpcs._errors import UsageError
from agpcs._job.buckets import ScatteredBucket


def absent(tensor, device=None):
    """What a parameter like `tensor` has in the place of values that other ranks have, too: no memory but that of a number."""
    return torch.full((), torch.nan, dtype=tensor.dtype, device=device or tensor.device).expand(tensor.shape)


def absent_parameter(parameter, device):
    """A parameter like another one, with what a script notes of that for its optimizer_fn, and without values."""
    made = torch.nn.Parameter(absent(parameter, device), parameter.requires_grad)
    made.__dict__.update(parameter.__dict__)
    return made


def take_away(parameter):
    """Leaves a parameter without values."""
    parameter.data, parameter.grad = absent(parameter), None


class GatheredBucket(ScatteredBucket):
    """A ScatteredBucket whose parameters are there from `gather` to `release`, which may be nested. The values that count are
    those of the slices in `owned`."""

    divides_parameters = True

    def __init__(self, group, parameters, process_group, wire_type, owned, slices):
        super().__init__(group, parameters, process_group, wire_type, owned, slices)
        types = {parameter.dtype for parameter in parameters}
        if len(types) > 1:
            raise UsageError(f"ranks divide the parameters of bucket {group.name}, which have several types: "
                             f"{', '.join(sorted(map(str, types)))}\n  hint: agpcs.plan(..., without=['parameters'])")
        self._uses = 0
        self._values = self._views = None  # all of the parameters, whose memory comes and goes, and each of them

    def enter(self):
        """Begins a step."""
        if self._values is None:
            first = self.parameters[0]
            self._values = torch.empty(sum(p.numel() for p in self.parameters), dtype=first.dtype, device=first.device)
            views = self._values.split([parameter.numel() for parameter in self.parameters])
            self._views = [view.view(parameter.shape) for parameter, view in zip(self.parameters, views)]
            self._resize(0)
        for parameter, view in zip(self.parameters, self._views):
            parameter.data = view

    def leave(self):
        """Ends a step: the parameters have no values any more."""
        for parameter in self.parameters:
            take_away(parameter)
        if self._uses > 0:  # the step failed: what is on its way still goes to that memory
            self._uses, self._values, self._views = 0, None, None

    def holds(self, tensor):
        """Whether a tensor lies in the memory that comes and goes."""
        return tensor.untyped_storage()._cdata == self._values.untyped_storage()._cdata

    def gather(self):
        """Begins to bring the parameters. Returns the works of it: none where they are there still, or on their way."""
        self._uses += 1
        if self._uses > 1:
            return []
        self._resize(self.gathered_bytes)
        with torch.no_grad():
            for _, own, begin, end in self._owned:
                self._values[begin:end].copy_(own)
        return [dist.broadcast(self._values[begin:end], rank, group=self._group, async_op=True) for rank, begin, end in self._parts]

    def release(self):
        """Says that a pass which has gathered them uses them no more."""
        self._uses -= 1
        if self._uses == 0:
            self._resize(0)

    def _resize(self, size):
        self._values.untyped_storage().resize_(size)
