# SPDX-License-Identifier: Apache-2.0
"""Buckets of agpcs.torch.Job: gradients that ranks reduce together, and what they divide of it."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist


class Bucket:
    """Gradients that the stage's ranks reduce together, and those of other stages if it is `shared`."""

    divides_gradients = divides_parameters = False  #: whether the ranks do

    def __init__(self, group, parameters, process_group, wire_type):
        self.name, self.parameters, self._group, self._wire_type = group.name, parameters, process_group, wire_type
        self.shared, self.stages = bool(group.shared_with), (group.stage, *group.shared_with)
        self._copied, self._flat, self._works = [], None, []  # of what travels: (parameter, gradient), all, works
        self.missing = 0  #: gradients that the last backward pass has not made yet

    @property
    def bytes(self):
        """Of its gradients, as they travel."""
        return sum(p.numel() * (self._wire_type or p.dtype).itemsize for p in self.parameters)

    @property
    def copied_bytes(self):
        """Of its gradients, while they travel in another type than their own."""
        return self.bytes if self._group is not None and any(self._wire_type not in (None, p.dtype) for p in self.parameters) else 0

    def _travelling(self, gradients):
        """One after the other, as they travel."""
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        return flat if self._wire_type is None else flat.to(self._wire_type)

    def begin(self):
        """Begins to reduce. Returns the works of it."""
        held = [parameter for parameter in self.parameters if parameter.grad is not None]
        if not held:
            return []
        self._flat = self._travelling(parameter.grad for parameter in held)
        self._copied = []
        for parameter, part in zip(held, self._flat.split([parameter.numel() for parameter in held])):
            gradient = part.view_as(parameter)
            if gradient.dtype == parameter.grad.dtype and parameter.grad.is_contiguous():
                parameter.grad = gradient  # so that gradients are not there twice while they travel
            else:  # it has a layout or type of its own
                self._copied.append((parameter, gradient))
        self._works = [dist.all_reduce(self._flat, group=self._group, async_op=True)]
        return list(self._works)

    def wait(self):
        if not self._works:
            return
        for work in self._works:
            work.wait()
        for parameter, gradient in self._copied:
            parameter.grad.copy_(gradient)
        self._copied, self._flat, self._works = [], None, []


class ShardedBucket(Bucket):
    """Gradients of which each of the ranks gets the sums of its own part, and parameters of which it updates that part.

    `owned` has this rank's slices of its parameters, by name; `slices` those of all ranks.
    """

    def __init__(self, group, parameters, process_group, wire_type, owned, slices):
        super().__init__(group, parameters, process_group, wire_type)
        ends = list(itertools.accumulate(group.parts))
        self._parts = [(rank, end - part, end) for rank, part, end in zip(group.ranks, group.parts, ends) if part > 0]
        first, self._owned = 0, []  # (parameter, its slice, begin and end of that in the bucket)
        for name, parameter in zip(group.parameters, parameters):
            for one in slices.get(name, ()):
                if one.rank == dist.get_rank():
                    self._owned.append((parameter, owned[name], first + one.begin, first + one.end))
            first += parameter.numel()

    @property
    def owned_bytes(self):
        """Of this rank's slices."""
        return sum(own.nbytes for _, own, _, _ in self._owned)

    @property
    def gathered_bytes(self):
        return sum(p.numel() * p.dtype.itemsize for p in self.parameters)

    def clear(self):
        """Forgets the sums of the step before."""
        for _, own, _, _ in self._owned:
            own.grad = None

    def begin(self):
        """Begins to reduce what passes have made, and gives it up, for it is of this rank's rows alone. Returns the works of it."""
        self._unmade = {id(parameter) for parameter in self.parameters if parameter.grad is None}
        if len(self._unmade) == len(self.parameters):
            return []
        self._flat = self._travelling(torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters)
        # Gloo has no reduce-scatter of unlike parts.
        self._works = [dist.reduce(self._flat[begin:end], rank, group=self._group, async_op=True)
                       for rank, begin, end in self._parts]
        for parameter in self.parameters:
            parameter.grad = None
        return list(self._works)

    def wait(self):
        for work in self._works:
            work.wait()
        if self._works:
            for parameter, own, begin, end in self._owned:
                own.grad = None if id(parameter) in self._unmade else self._flat[begin:end].to(own.dtype)
        self._flat, self._works = None, []

    def gather(self):
        """Begins to give all ranks what each has updated."""
        return _Gathering(self.parameters, self._parts, self._group)


class ScatteredBucket(ShardedBucket):
    """A ShardedBucket whose gradients are summed after each micro-batch: each rank keeps the sums of its own part alone."""

    divides_gradients = True

    def wait(self):
        for work in self._works:
            work.wait()
        if self._works:
            for _, own, begin, end in self._owned:
                part = self._flat[begin:end].to(own.dtype, copy=True)  # the whole does not live on
                own.grad = part if own.grad is None else own.grad.add_(part)
        self._flat, self._works = None, []


class _Gathering:
    def __init__(self, parameters, parts, group):
        self._parameters, self._flat = parameters, torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.works = [dist.broadcast(self._flat[begin:end], rank, group=group, async_op=True) for rank, begin, end in parts]

    def wait(self):
        for work in self.works:
            work.wait()
        with torch.no_grad():
            for parameter, values in zip(self._parameters, self._flat.split([p.numel() for p in self._parameters])):
                parameter.copy_(values.view_as(parameter))
