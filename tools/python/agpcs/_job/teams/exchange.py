# SPDX-License-Identifier: Apache-2.0
"""Exchanges among the members of a team of agpcs.torch.Job: what brings a tensor from one way to lie to another, and its gradient
back.

Members may have unlike parts. What two of them have in common follows from how the tensor lies before and after, so one
all-to-all with parts of its own for each pair does what all-gathers, reduce-scatters and all-to-alls do; sums are added up in the
order of members. Gloo has no other collective with unlike parts.
"""

from __future__ import annotations

import math
import typing

import torch
import torch.distributed as dist


class Lying(typing.NamedTuple):
    """How a tensor, or its gradient, lies on the members of a team."""

    kind: str  #: "copy": each member has all of it; "sum": a summand of it; "part": a part along one axis
    axis: int = 0
    ranges: tuple[tuple[tuple[int, int], ...], ...] = ()  #: of a part, by member: the elements of the axis that it has, (begin, end)

    def extent(self, member):
        """How many elements of the axis a member has."""
        return sum(end - begin for begin, end in self.ranges[member])

    def dims(self, member, whole):
        """The dims of what a member has of a tensor with the dims `whole`."""
        dims = list(whole)
        if self.kind == "part":
            dims[self.axis] = self.extent(member)
        return dims

    def whole(self, dims):
        """The dims of the tensor of which a member has something with `dims`."""
        dims = list(dims)
        if self.kind == "part":
            dims[self.axis] = sum(self.extent(member) for member in range(len(self.ranges)))
        return dims


COPY, SUM = Lying("copy"), Lying("sum")


def exchange_between(source, target):
    """The name of what makes `target` of `source`."""
    if source == target:
        return "nothing"
    return {("copy", "part"): "take-part", ("copy", "sum"): "keep-one", ("part", "sum"): "fill-with-zeros",
            ("sum", "copy"): "all-reduce", ("part", "copy"): "all-gather", ("sum", "part"): "reduce-scatter",
            ("part", "part"): "all-to-all"}[source.kind, target.kind]


class TeamLink:
    """The exchanges of one member of the team of `ranks`, which are in the order of members."""

    def __init__(self, ranks, rank):
        self.ranks, self.member = ranks, ranks.index(rank)
        self._order = sorted(range(len(ranks)), key=ranks.__getitem__)  # the members by their place in the group
        self._group = None
        self.only_shapes = False  #: nothing is exchanged: what comes of an exchange has its shape, and no values

    def join(self, group):
        """Exchanges over a process group of the team's ranks from now on."""
        self._group = group

    def exchange(self, x, source, target):
        """Brings what this member has of a tensor from `source` to `target`. It may be `x` itself, or a view of it."""
        how = exchange_between(source, target)
        if how == "nothing":
            return x
        if how == "take-part":
            return part_of(x, target, self.member)
        if self.only_shapes:
            return x.new_empty(target.dims(self.member, source.whole(x.shape)))
        if how == "keep-one":
            return x if self.member == 0 else torch.zeros_like(x)
        if how == "fill-with-zeros":
            whole = x.new_zeros(source.whole(x.shape))
            put_part(whole, x, source, self.member)
            return whole
        if how == "all-reduce":
            x = x.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(x, group=self._group)
            return x
        return self._swapped(x, source, target)

    def _swapped(self, x, source, target):
        """Each member gives each other one what that takes."""
        whole = source.whole(x.shape)
        sends, takes = [], {}
        for m in self._order:
            if m == self.member:
                sends.append(x.new_empty(0))
                takes[m] = []
                continue
            pieces = [narrowed(x, block, 1).reshape(-1) for block in _blocks(source, self.member, target, m)]
            sends.append(torch.cat(pieces) if pieces else x.new_empty(0))
            takes[m] = _blocks(source, m, target, self.member)
        sizes = [sum(_elements(block, whole) for block in takes[m]) for m in self._order]
        received = x.new_empty(sum(sizes))
        dist.all_to_all_single(received, torch.cat(sends), sizes, [len(flat) for flat in sends], group=self._group)
        by_member = dict(zip(self._order, received.split(sizes)))
        mine = x.new_zeros(target.dims(self.member, whole))
        for m, flat in sorted(by_member.items()):
            if m == self.member:
                for block in _blocks(source, m, target, m):
                    narrowed(mine, block, 2).add_(narrowed(x, block, 1))
            else:
                _unpack(mine, flat, takes[m])
        return mine


def part_of(whole, part, member):
    """What a member has of a whole tensor: a view where that is one range."""
    pieces = [whole.narrow(part.axis, begin, end - begin) for begin, end in part.ranges[member]]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, part.axis)


class Part(typing.NamedTuple):
    """What a member has of a tensor that lies so."""

    lying: Lying
    member: int

    def of(self, whole):
        return part_of(whole, self.lying, self.member)


def put_part(whole, own, part, member):
    """Copies what a member has into the whole tensor."""
    at = 0
    for begin, end in part.ranges[member]:
        whole.narrow(part.axis, begin, end - begin).copy_(own.narrow(part.axis, at, end - begin))
        at += end - begin


def narrowed(x, block, side):
    """A block of what its giver (`side` 1) or its taker (2) has."""
    for along in block:
        x = x.narrow(along[0], along[side], along[3])
    return x


def _elements(block, whole):
    dims = list(whole)
    for axis, _, _, size in block:
        dims[axis] = size
    return math.prod(dims)


def _unpack(mine, flat, blocks):
    at = 0
    for block in blocks:
        own = narrowed(mine, block, 2)
        own.add_(flat[at:at + own.numel()].view(own.shape))
        at += own.numel()


def _blocks(source, giver, target, taker):
    """What `giver` has as `source` and `taker` as `target`: blocks of (axis, where it begins at the giver, where at the taker,
    size); of axes without an entry, all."""
    given = _bands(source.ranges[giver]) if source.kind == "part" else None
    taken = _bands(target.ranges[taker]) if target.kind == "part" else None
    if given is None:
        return [[(target.axis, begin, at, size)] for begin, at, size in taken]
    if taken is None:
        return [[(source.axis, at, begin, size)] for begin, at, size in given]
    if source.axis != target.axis:
        return [[(source.axis, at, begin, size), (target.axis, other, there, extent)]
                for begin, at, size in given for other, there, extent in taken]
    blocks = []
    for begin, at, size in given:
        for other, there, extent in taken:
            first, last = max(begin, other), min(begin + size, other + extent)
            if first < last:
                blocks.append([(source.axis, at + first - begin, there + first - other, last - first)])
    return blocks


def _bands(ranges):
    """(begin in the whole axis, begin in what the member has, size) of each range."""
    found, at = [], 0
    for begin, end in ranges:
        found.append((begin, at, end - begin))
        at += end - begin
    return found


class Exchange(torch.nn.Module):
    """Brings a tensor from a form to another one that is made of it, and its gradient back. Forms are those of a Body."""

    def __init__(self, link, source, target):
        super().__init__()
        self.link, self.source, self.target = link, source, target

    def extra_repr(self):
        return exchange_between(self.source.lying, self.target.lying)

    def forward(self, x):
        return _Exchanged.apply(x, self)


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(context, x, how):
        context.how = how
        made = how.link.exchange(x, how.source.lying, how.target.lying)
        return x.view_as(x) if made is x else made

    @staticmethod
    def backward(context, gradient):
        how = context.how
        return how.link.exchange(gradient, how.target.gradient_lying, how.source.gradient_lying), None


class ParameterForm(torch.nn.Module):
    """A form of a parameter whose gradient members exchange once a step: passes add it up apart from the parameter's own."""

    def __init__(self, link, source, target):
        super().__init__()
        self.link, self.source, self.target = link, source, target
        self._leaf = None

    def forward(self, x):
        if self.link.only_shapes:
            return self.link.exchange(x, self.source.lying, self.target.lying)
        if self._leaf is None:
            with torch.no_grad():
                self._leaf = self.link.exchange(x.detach(), self.source.lying, self.target.lying).detach().requires_grad_()
        return self._leaf

    def begin_step(self):
        self._leaf = None

    def add(self, gradient):
        """Adds the gradient of a form that was made of this one."""
        self._leaf.grad = gradient if self._leaf.grad is None else self._leaf.grad + gradient

    def ended(self):
        """The step's gradient, as the form lies of which this one was made."""
        gradient = torch.zeros_like(self._leaf) if self._leaf.grad is None else self._leaf.grad
        return self.link.exchange(gradient, self.target.gradient_lying, self.source.gradient_lying)
