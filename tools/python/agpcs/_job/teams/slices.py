# SPDX-License-Identifier: Apache-2.0
"""Sums of gradients where the replicas of a stage are unlike teams (docs/design/teams.md, ir/plan/body/slices.h).

Each replica has all elements of a parameter, in parts along some axis or as copies. The common refinement of these divisions cuts the
parameter into boxes, each of which every replica has on one member, or on several that have the same copies. What the same ranks have
of a bucket is one sum.
"""

from __future__ import annotations

import itertools
import typing

import torch
import torch.distributed as dist

from agpcs._job.buckets import Bucket
from agpcs._job.teams.exchange import COPY


class Box(typing.NamedTuple):
    """What ranks sum of a parameter: the elements of these ranges, of other axes all."""

    parameter: str
    ranges: tuple[tuple[int, int, int], ...]  #: (axis, begin, end)

    def of(self, own, lying, member):
        """Its elements of what a member has of a tensor that lies so: a view."""
        for axis, begin, end in self.ranges:
            first = _begin_in(lying, member, axis, begin, end)
            own = own.narrow(axis, begin if first is None else first, end - begin)
        return own


def _begin_in(lying, member, axis, begin, end):
    """Where a range of an axis begins in what a member has of it; None: the member has all of the axis, or nothing of the range."""
    if lying.kind != "part" or lying.axis != axis:
        return None
    at = 0
    for first, last in lying.ranges[member]:
        if first <= begin and end <= last:
            return at + begin - first
        at += last - first
    return None


class SliceSum(typing.NamedTuple):
    """What the same ranks sum of a bucket."""

    ranks: tuple[int, ...]  #: ascending
    boxes: tuple[Box, ...]

    def counts(self, members, rank):
        """Whether what `rank` has counts, one of the `members` of a replica: of copies, that of the first member does."""
        return next(member for member in members if member in self.ranks) == rank


def slice_sums(parameters, replicas):
    """The SliceSums of a bucket with these parameters, in the order in which all ranks make them. `replicas` are (ranks in the order of
    members, Lying of each tensor that they hold in parts, by name)."""
    found = {}
    for name in parameters:
        lies = [(ranks, held.get(name, COPY)) for ranks, held in replicas]
        cuts = {}  # by axis: where parts of members begin and end
        for _, lying in lies:
            if lying.kind == "part":
                cuts.setdefault(lying.axis, set()).update(itertools.chain.from_iterable(itertools.chain(*lying.ranges)))
        along = [[(axis, *ends) for ends in zip(sorted(of_axis), sorted(of_axis)[1:])] for axis, of_axis in sorted(cuts.items())]
        for ranges in itertools.product(*along):
            for ranks in _who_sum([_holders(ranks, lying, ranges) for ranks, lying in lies]):
                found.setdefault(ranks, []).append(Box(name, ranges))
    return [SliceSum(ranks, tuple(boxes)) for ranks, boxes in sorted(found.items())]


def _holders(ranks, lying, ranges):
    """The members of a replica that have a box."""
    along = next(((begin, end) for axis, begin, end in ranges if lying.kind == "part" and axis == lying.axis), None)
    return [rank for member, rank in enumerate(ranks)
            if along is None or _begin_in(lying, member, lying.axis, *along) is not None]


def _who_sum(holders):
    """The sets of ranks that sum a box which each replica's `holders` have: those of one number where replicas have as many copies,
    else all together."""
    if len({len(ranks) for ranks in holders}) == 1:
        return [tuple(sorted(ranks)) for ranks in zip(*holders)]
    return [tuple(sorted(itertools.chain(*holders)))]


class SlicedBucket(Bucket):
    """Gradients whose slices ranks sum, each with the ranks that have it. `sums` are (SliceSum, its process group, whether this rank's
    elements count) of this rank, as `member` of a replica that holds tensors as `held` says."""

    def __init__(self, group, parameters, wire_type, sums, held, member):
        super().__init__(group, parameters, None, wire_type)
        self._sums, self._lying, self._member = sums, held, member
        self._by_name = dict(zip(group.parameters, parameters))

    @property
    def copied_bytes(self):
        """Of its gradients: slices travel in memory of their own."""
        return self.bytes

    def _boxes(self, one):
        """The (parameter, Box, how it lies here) of a sum whose parameters have gradients."""
        for box in one.boxes:
            parameter = self._by_name[box.parameter]
            if parameter.grad is not None:
                yield parameter, box, self._lying.get(box.parameter, COPY)

    def begin(self):
        self._flat = []
        for one, process_group, counts in self._sums:
            own = [box.of(parameter.grad, lying, self._member) for parameter, box, lying in self._boxes(one)]
            if not own:
                continue
            flat = self._travelling(own)
            if not counts:
                flat.zero_()
            self._flat.append((one, flat))
            self._works.append(dist.all_reduce(flat, group=process_group, async_op=True))
        return list(self._works)

    def wait(self):
        for work in self._works:
            work.wait()
        summed = {}  # by number of a parameter: (it, its gradient)
        for one, flat in self._flat if self._works else ():
            for parameter, box, lying in self._boxes(one):
                # A gradient of its own: autograd may give two parameters one.
                _, gradient = summed.setdefault(id(parameter), (parameter, torch.empty_like(parameter.grad)))
                into = box.of(gradient, lying, self._member)
                into.copy_(flat[:into.numel()].view(into.shape))
                flat = flat[into.numel():]
        for parameter, gradient in summed.values():
            parameter.grad = gradient
        self._flat, self._works = None, []
