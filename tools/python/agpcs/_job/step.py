# SPDX-License-Identifier: Apache-2.0
"""A step of agpcs.torch.Job on one rank: it plays the program that the plan has for the rank's stage, line by line.

A line waits for what the plan says that it waits for (`after`), and computes or begins a message. Sends, receives and
collectives are a stream each: what one of them waits for has come when all lines of the stream before it have ended, too.
All-reduces and reduce-scatters begin during the last backward pass, when their gradients are there, in the plan's order.
"""

from __future__ import annotations

import contextlib
import functools
import itertools

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from agpcs._job.links import Works

_STREAMS = {"send": "send", "send_gradient": "send", "recv": "recv", "recv_gradient": "recv", "all_reduce": "collective",
            "reduce_scatter": "collective", "all_gather": "collective", "report": "collective"}


class Bucket:
    """Gradients that the stage's ranks reduce together, and those of other stages if it is `shared`."""

    def __init__(self, name, parameters, group, wire_type, shared):
        self.name, self.parameters, self._group, self._wire_type, self.shared = name, parameters, group, wire_type, shared
        self._held, self._flat, self._works = [], None, []
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
        self._held = [parameter for parameter in self.parameters if parameter.grad is not None]
        if not self._held:
            return []
        self._flat = self._travelling(parameter.grad for parameter in self._held)
        self._works = [dist.all_reduce(self._flat, group=self._group, async_op=True)]
        return list(self._works)

    def wait(self):
        if not self._works:
            return
        for work in self._works:
            work.wait()
        parts = self._flat.split([parameter.numel() for parameter in self._held])
        for parameter, part in zip(self._held, parts):
            parameter.grad.copy_(part.view_as(parameter))
        self._held, self._flat, self._works = [], None, []


class ShardedBucket(Bucket):
    """Gradients of which each of the ranks gets the sums of its own part, and parameters of which it updates that part.

    `owned` has this rank's slices of its parameters, by name; `slices` those of all ranks.
    """

    def __init__(self, group, parameters, process_group, wire_type, owned, slices):
        super().__init__(group.name, parameters, process_group, wire_type, bool(group.shared_with))
        ends = list(itertools.accumulate(group.parts))
        self._parts = [(rank, end - part, end) for rank, part, end in zip(group.ranks, group.parts, ends) if part > 0]
        first, self._owned = 0, []  # (parameter, its slice, begin and end of that in the bucket)
        for name, parameter in zip(group.parameters, parameters):
            for one in slices.get(name, ()):
                if one.rank == dist.get_rank():
                    self._owned.append((parameter, owned[name], first + one.begin, first + one.end))
            first += parameter.numel()

    @property
    def gathered_bytes(self):
        return sum(p.numel() * p.dtype.itemsize for p in self.parameters)

    def begin(self):
        """Begins to reduce. Returns the works of it."""
        for _, own, _, _ in self._owned:
            own.grad = None
        if all(parameter.grad is None for parameter in self.parameters):
            return []
        self._flat = self._travelling(torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters)
        # Gloo has no reduce-scatter of unlike parts.
        self._works = [dist.reduce(self._flat[begin:end], rank, group=self._group, async_op=True)
                       for rank, begin, end in self._parts]
        return list(self._works)

    def wait(self):
        for work in self._works:
            work.wait()
        if self._works:
            for parameter, own, begin, end in self._owned:
                own.grad = None if parameter.grad is None else self._flat[begin:end].to(own.dtype)
            for parameter in self.parameters:
                parameter.grad = None  # of this rank's rows alone
        self._flat, self._works = None, []

    def gather(self):
        """Begins to give all ranks what each has updated."""
        return _Gathering(self.parameters, self._parts, self._group)


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


class Player:
    """Plays the program of a rank. Needs all ranks to call `step` alike."""

    def __init__(self, role, stage, buckets, loss_of, update, autocast, masks, compiled, watch, trace):
        self._stage, self._number, self._program, self._recompute = stage, role.number, role.program(), role.recomputes
        self._cuts, self._links, self._shares = {cut.name: cut for cut in role.cuts}, role.links, role.shares
        self._replica = role.shares.ranks[role.number].index(role.rank)
        self._loss_of, self._updating, self._autocast, self._masks = loss_of, update, autocast, masks
        self._watch, self._trace = watch, trace  # a JobWatch, a Recorder; or None
        # Lines that wait for no other rank.
        self._computing = () if watch is None else ("forward", "backward") if update.waits else ("forward", "backward", "update")
        self._forward_of = stage.module if compiled is False else torch.compile(stage.module, **self._compiling(compiled))
        self._buckets = {bucket.name: bucket for bucket in buckets}
        # The lines that reduce, by bucket, in the program's order.
        self._lines = {word.partition(":")[2]: word for word, _ in self._program
                       if word.startswith(("all_reduce:", "reduce_scatter:"))}
        self._order = list(self._lines)
        self._last_backward = max((i for i, (word, _) in enumerate(self._program) if word.startswith("backward:")), default=-1)
        self._buffers = [stage.module.get_buffer(place) for place in stage.changed]
        self._hooks = [parameter.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self._ready(bucket))
                       for bucket in (buckets if self._order else ()) for parameter in bucket.parameters]

    def _compiling(self, options):
        """The arguments of torch.compile. Where micro-batches differ, one graph takes them all from the beginning: a pass that is
        computed again by another graph than the first time would not fit what was kept of that."""
        sizes = {end - begin for begin, end in map(self._rows, range(self._shares.micro_batches))}
        return {**({"dynamic": True} if len(sizes) > 1 else {}), **({} if options is True else options)}

    def close(self):
        """Leaves the parameters as they were before."""
        for hook in self._hooks:
            hook.remove()

    def step(self, inputs):
        """Makes a step of the whole batch. Returns its loss, the same on every rank."""
        self._inputs = inputs
        self._works = {"send": {}, "recv": {}, "collective": {}}  # by stream and word, those that nothing has waited for
        self._received, self._gradients, self._sent = {}, {}, {}
        self._losses, self._loss, self._begun, self._armed, self._reductions, self._reducing = {}, None, 0, False, [], {}
        for parameter in self._stage.module.parameters():
            parameter.grad = None
        for i, (word, after) in enumerate(self._program):
            self._armed = i == self._last_backward and bool(self._order)
            if self._armed:
                for bucket in self._buckets.values():
                    bucket.missing = len(bucket.parameters)
            for other in after:
                self._wait(other)
            what, *of = word.split(":")
            begin = self._watch.mark() if what in self._computing else None
            self._line_begun = None if self._trace is None else self._trace.mark()
            getattr(self, f"_{what}")(word, *of)
            if begin is not None:
                self._watch.computed(begin)
            if self._trace is not None and what not in _STREAMS:
                self._trace.noted(word, self._line_begun)
        for stream in self._works.values():
            for works in stream.values():
                works.wait()
        if self._watch is not None:
            self._watch.step(self._reductions)
        if self._trace is not None:
            self._trace.end_step()
        return self._loss

    def _begin(self, word, works):
        if self._trace is not None:
            works = self._trace.begun(word, works, self._line_begun)
        self._works[_STREAMS[word.partition(":")[0]]][word] = works

    def _wait(self, word):
        stream = self._works.get(_STREAMS.get(word.partition(":")[0]), ())
        while word in stream:
            stream.pop(next(iter(stream))).wait()

    def _rows(self, k):
        begin, end = self._shares.rows(self._number, k)[self._replica]
        return begin + self._shares.begins[k], end + self._shares.begins[k]

    def _forward(self, word, k):
        k = int(k)
        begin, end = self._rows(k)
        masks = [self._masks.rows(self._stage.masks, begin, end)] if self._stage.masks else []
        inputs = [tensor[begin:end] if batched else tensor for tensor, batched in self._inputs]
        received = [self._take(value, k) for value in self._stage.received]
        with self._autocast():
            values, outputs = self._computed(end - begin, *masks, *inputs, *received)
            loss = None if self._loss_of is None else self._loss_of(outputs, begin, end)
        self._sent[k] = dict(zip(self._stage.sent, values))
        if loss is not None:
            self._losses[k] = self._updating.scaled(loss)
            self._loss = loss.detach() + (0 if self._loss is None else self._loss)

    def _computed(self, *arguments):
        if not self._recompute:
            return self._forward_of(*arguments)
        return checkpoint(self._forward_of, *arguments, use_reentrant=False,
                          context_fn=lambda: (contextlib.nullcontext(), _unchanged(self._buffers)))

    def _take(self, value, k):
        """A received value, ready to get a gradient."""
        tensor = self._received[k][value]
        return tensor.requires_grad_(value.gradient)

    def _backward(self, word, k):
        k = int(k)
        roots, gradients = [], []
        for value, tensor in self._sent.pop(k).items():
            parts = self._gradients.pop((value, k), [])
            if tensor.requires_grad and parts:
                roots.append(tensor)
                gradients.append(functools.reduce(torch.add, parts))
        if k in self._losses:
            roots.append(self._losses.pop(k))
            gradients.append(None)
        torch.autograd.backward(roots, gradients)
        self._received[k] = {value: tensor for value, tensor in self._received.get(k, {}).items() if value.gradient}
        for cut in self._cuts.values():
            if cut.source == self._number and any(value.gradient for value in cut.values):
                self._wait(f"send:{cut.name}:{k}")  # its gradients are here, so it has arrived
        if self._armed:
            self._armed = False
            self._begin_buckets(len(self._order))

    def _ready(self, bucket):
        if not self._armed:
            return
        bucket.missing -= 1
        ready = self._begun
        while ready < len(self._order) and self._buckets[self._order[ready]].missing == 0:
            ready += 1
        self._begin_buckets(ready)

    def _begin_buckets(self, end):
        for name in self._order[self._begun:end]:
            mark = None if self._trace is None else self._trace.mark()
            works = self._buckets[name].begin()
            self._reducing[name] = self._buckets[name]
            if self._trace is not None:
                self._reducing[name] = self._trace.begun(self._lines[name], self._buckets[name], mark)
            self._note(self._buckets[name], works)
        self._begun = end

    def _note(self, bucket, works):
        """Lets the watch know of works that have just begun."""
        if self._watch is not None and self._watch.notes_reductions and not bucket.shared:
            self._reductions += map(self._watch.begun, works)

    def _send(self, word, name, k):
        if name in self._cuts:
            cut, k = self._cuts[name], int(k)
            self._begin(word, self._links.send(cut, k, [self._sent[k][value] for value in cut.values]))

    def _recv(self, word, name, k):
        if name in self._cuts:
            cut, k = self._cuts[name], int(k)
            works, tensors = self._links.receive(cut, k)
            self._begin(word, works)
            self._received.setdefault(k, {}).update(zip(cut.values, tensors))

    def _send_gradient(self, word, name, k):
        if name in self._cuts:
            cut, k = self._cuts[name], int(k)
            received = self._received[k]
            gradients = [received.pop(value).grad if value.gradient else None for value in cut.values]
            self._begin(word, self._links.send_gradients(cut, k, gradients))

    def _recv_gradient(self, word, name, k):
        if name in self._cuts:
            cut, k = self._cuts[name], int(k)
            works, parts = self._links.receive_gradients(cut, k)
            self._begin(word, works)
            for value, of_value in zip(cut.values, parts):
                self._gradients.setdefault((value, k), []).extend(of_value)

    def _all_reduce(self, word, name):
        self._works["collective"][word] = self._reducing.pop(name, self._buckets[name])  # it began with the last backward pass

    def _reduce_scatter(self, word, name):
        self._all_reduce(word, name)

    def _all_gather(self, word, name):
        gathering = self._buckets[name].gather()
        self._note(self._buckets[name], gathering.works)
        self._begin(word, gathering)

    def _update(self, word):
        self._updating.step()

    def _report(self, word):
        total = torch.zeros((), device=self._links.device) if self._loss is None else self._loss.float()
        works = Works()
        works.add(dist.all_reduce(total, async_op=True), total)
        self._begin(word, works)
        self._loss = total


@contextlib.contextmanager
def _unchanged(buffers):
    """Restores buffers that are changed within: a pass that is computed again counts once."""
    kept = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, kept):
                buffer.copy_(value)
