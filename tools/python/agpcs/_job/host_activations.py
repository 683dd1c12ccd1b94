# SPDX-License-Identifier: Apache-2.0
"""What segments of a stage of agpcs.torch.Job keep for their backward passes in the memory of the host (docs/design/offload.md): it
leaves the device beside the segment that follows, and comes back beside the backward pass of that one.

Autograd hands over what it saves, torch's checkpoint what a segment reads that is computed again. Tensors go by the memory that they
share, each once, with the last segment that keeps something in it. Nothing of a stage's graph is changed in place but buffers, which
stay on the device, as do parameters and what the stage receives. Copies of these in half precision are made again.
"""

from __future__ import annotations

import bisect
import collections
import typing
import weakref

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class HostActivations:
    """The copies between `device` and the memory of its host, and what of that memory is free."""

    def __init__(self, device):
        self.device, self._copies = device, _Stream(device) if device.type == "cuda" else _Turns()
        self._free = []  # (bytes, something to tell them apart, memory), sorted
        self._given_back = collections.deque()  # memory that is to become free; other threads may add to it at any time

    def begun(self, staying):
        """A Pass of a micro-batch. The memory of the tensors `staying` stays on the device."""
        return Pass(self, staying)

    def give_back(self, there):
        """Takes memory of the host, of which all copies have begun."""
        self._given_back.append(there)

    def out(self, memories):
        """Begins to copy memories to the host. Returns a function that waits for that, and lets go of the device's memory."""
        for memory in memories:
            memory.bytes, memory.there = memory.here.nbytes(), self._taken(memory.here.nbytes())
        copied = self._copies.out([(self._here(memory), memory.there[:memory.bytes]) for memory in memories])

        def end():
            copied()
            for memory in memories:
                memory.here = None

        return end

    def come(self, memories):
        """Begins to bring them back. Returns a function that waits for that."""
        for memory in memories:
            memory.here = torch.empty(memory.bytes, dtype=torch.uint8, device=self.device).untyped_storage()
        copied = self._copies.come([(memory.there[:memory.bytes], self._here(memory)) for memory in memories])

        def end():
            copied()
            for memory in memories:
                self.give_back(memory.there)
                memory.there = None

        return end

    def settle(self):
        """Lets what the device computes from now on wait for all copies."""
        self._copies.settle()

    def _taken(self, size):
        """At least so many bytes of the host's memory: the least that are free, or new ones."""
        free = self._all_free()
        place = bisect.bisect_left(free, (size,))
        return free.pop(place)[-1] if place < len(free) else self._copies.host_memory(size)

    def _all_free(self):
        while self._given_back:
            there = self._given_back.popleft()
            bisect.insort(self._free, (there.numel(), id(there), there))
        return self._free

    def _here(self, memory):
        return torch.empty(0, dtype=torch.uint8, device=self.device).set_(memory.here, 0, (memory.bytes,), (1,))


class _Memory:
    """Memory that tensors share: a storage `here`, its bytes `there`, or both while it is copied. It lives as long as something is kept
    in it."""

    __slots__ = ("__weakref__", "_host", "bytes", "here", "segment", "there")

    def __init__(self, host, here):
        self._host, self.here, self.there, self.bytes = host, here, None, 0
        self.segment = None  # the last one that keeps something in it

    def __del__(self):
        if self.there is not None:
            self._host.give_back(self.there)


def _nothing():
    """Waits for no copies."""


class _Kept(typing.NamedTuple):
    """A tensor that was saved."""

    memory: _Memory
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]


class _Cast(typing.NamedTuple):
    """A saved copy, in another type, of what stays on the device: it is made again."""

    leaf: torch.Tensor
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class Pass:
    """What the segments of a stage keep for one micro-batch, from its forward pass to its backward pass."""

    def __init__(self, host, staying):
        self._host, self._staying = host, {_memory_of(tensor) for tensor in staying}
        self._known = {}  # by what tensors of a memory have in common: a weak reference to the _Memory
        self._of = collections.defaultdict(list)  # by segment: weak references to what it keeps something in
        self._segment = 0  # the one that is computed
        self._here = 0  # segments from here on have come, or have not left
        self._leaving = self._coming = None  # functions that wait for copies

    def __del__(self):
        if self._leaving is not None or self._coming not in (None, _nothing):
            self._host.settle()  # the pass has failed, and its memory is free from now on

    def saving(self):
        """Within it, a segment is computed, and what autograd saves is kept."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def end(self, staying):
        """Ends a segment: what the one before it keeps has left, and what it keeps begins to leave. The memory of the tensors
        `staying` does not."""
        self.leave()
        self._staying.update(map(_memory_of, staying))
        own = [memory for memory in self._alive(self._segment) if memory.there is None and StorageWeakRef(memory.here) not in self._staying]
        self._leaving = self._host.out(own)
        self._segment = self._here = self._segment + 1

    def leave(self):
        """Waits until all that has begun to leave has left."""
        if self._leaving is not None:
            self._leaving()
        self._leaving = None

    def end_forward(self, given):
        """Ends the forward pass. What has left begins to come back when there is a gradient of one of the tensors `given`."""
        self.leave()
        self._known.clear()
        for tensor in given:
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(self._come)

    def _come(self, _=None):
        """Begins to bring back what the last segment keeps that is not here."""
        if self._coming is None and self._here > 0:
            gone = [memory for memory in self._alive(self._here - 1) if memory.there is not None]
            self._coming = self._host.come(gone) if gone else _nothing

    def _end_coming(self):
        self._come()
        assert self._coming is not None, "a saved tensor is in the memory of the host, and no segment keeps it there"
        self._coming()
        self._coming, self._here = None, self._here - 1

    def _alive(self, segment):
        """What still has something that this segment was the last to keep."""
        return [memory for memory in (one() for one in self._of[segment]) if memory is not None and memory.segment == segment]

    def _moves(self, tensor):
        """Whether a tensor is of the kind that goes to the host."""
        plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and not tensor.is_conj() and not tensor.is_neg()
        return (plain and tensor.device.type == self._host.device.type and tensor.untyped_storage().nbytes() > 0
                and _memory_of(tensor) not in self._staying)

    def _pack(self, tensor):
        leaf = _cast_leaf(tensor)
        if leaf is not None and _memory_of(leaf) in self._staying:
            return _Cast(leaf, tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset())
        alone = tensor.detach()
        if not self._moves(alone):
            return alone
        key = _memory_of(alone)
        memory = self._known[key]() if key in self._known else None
        if memory is None:
            memory = _Memory(self._host, alone.untyped_storage())
            self._known[key] = weakref.ref(memory)
        if memory.segment != self._segment:
            memory.segment = self._segment
            self._of[self._segment].append(weakref.ref(memory))
        return _Kept(memory, alone.dtype, alone.storage_offset(), alone.size(), alone.stride())

    def _unpack(self, kept):
        if isinstance(kept, torch.Tensor):
            return kept
        if isinstance(kept, _Cast):
            leaf, dtype, *lying = kept
            return leaf.detach().to(dtype).as_strided(*lying)
        memory, dtype, *lying = kept
        if memory.there is not None:
            while memory.there is not None:
                self._end_coming()
            self._come()  # beside what goes back now
        return torch.empty(0, dtype=dtype, device=self._host.device).set_(memory.here, *lying)


class _Turns:
    """Copies take turns with what is computed, when a CUDA device would wait for them: host and device have one memory."""

    @staticmethod
    def host_memory(size):
        return torch.frombuffer(bytearray(size), dtype=torch.uint8)  # which torch does not count as the device's

    @staticmethod
    def out(pairs):
        return lambda: _copy(pairs)

    @staticmethod
    def come(pairs):
        _copy(pairs)
        return lambda: None

    @staticmethod
    def settle():
        pass


class _Stream:
    """On a CUDA device, copies have a stream of their own. They never go both ways at once."""

    def __init__(self, device):
        self._device, self._own = device, torch.cuda.Stream(device)

    @staticmethod
    def host_memory(size):
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def out(self, pairs):
        self._own.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._own):
            _copy(pairs)
            copied = self._own.record_event()
        return lambda: torch.cuda.current_stream(self._device).wait_event(copied)

    come = out

    def settle(self):
        torch.cuda.current_stream(self._device).wait_stream(self._own)


def _copy(pairs):
    with torch.no_grad():
        for source, into in pairs:
            into.copy_(source, non_blocking=True)


def _cast_leaf(tensor):
    """The leaf of autograd's graph of which a tensor is a copy in another type, or a view of such a copy, as torch.autocast makes them of
    weights; or None."""
    copy = tensor if tensor._base is None else tensor._base
    made = copy.grad_fn
    leaf = getattr(made.next_functions[0][0], "variable", None) if made is not None and made.name() == "ToCopyBackward0" else None
    alike = leaf is not None and (copy.device, copy.size(), copy.stride()) == (leaf.device, leaf.size(), leaf.stride())
    return leaf if alike and copy.dtype != leaf.dtype and copy.storage_offset() == 0 else None


def _memory_of(tensor):
    """What tensors that share memory have in common. While it is there, no other memory has the same."""
    return StorageWeakRef(tensor.untyped_storage())
