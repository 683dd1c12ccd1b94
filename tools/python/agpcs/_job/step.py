# SPDX-License-Identifier: Apache-2.0
"""A step of agpcs.torch.Job on one rank: it plays the program that the plan has for the rank's stage, line by line.

A line waits for what the plan says that it waits for (`after`), and computes or begins a message. Sends, receives and
collectives are a stream each: what one of them waits for has come when all lines of the stream before it have ended, too.
All-reduces and reduce-scatters begin during the last backward pass, when their gradients are there, in the plan's order.
Where ranks divide gradients, their reduce-scatters begin during every backward pass, each when the one before it has ended.
Where backward passes are parted, weight passes are what is said here of backward passes.
"""

from __future__ import annotations

import functools
import itertools

import torch
import torch.distributed as dist

from agpcs._job.links import Works
from agpcs._job.put_off import PutOff, finish, weights
from agpcs._job.segments import Segments

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
            gradient = part.view_as(parameter)
            if gradient.dtype == parameter.grad.dtype and parameter.grad.is_contiguous():
                parameter.grad = gradient
            else:  # it has a layout or type of its own
                parameter.grad.copy_(gradient)
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
        return self._reduced()

    def _reduced(self):
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


class ScatteredBucket(ShardedBucket):
    """A ShardedBucket whose gradients are summed after each micro-batch: each rank keeps the sums of its own part alone."""

    def clear(self):
        """Forgets the sums of the step before."""
        for _, own, _, _ in self._owned:
            own.grad = None

    def begin(self):
        """Begins to reduce what a backward pass has made, and gives it up. Returns the works of it."""
        works = self._reduced()
        for parameter in self.parameters:
            parameter.grad = None
        return works

    def wait(self):
        for work in self._works:
            work.wait()
        if self._works:
            for _, own, begin, end in self._owned:
                part = self._flat[begin:end].to(own.dtype, copy=True)  # the whole does not live on
                own.grad = part if own.grad is None else own.grad.add_(part)
        self._flat, self._works = None, []


class _Once:
    """Waits for something when it is first asked to."""

    def __init__(self, works):
        self._works = works

    def wait(self):
        works, self._works = self._works, None
        if works is not None:
            works.wait()


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


class _MicroBatch:
    """The rows of a micro-batch that this rank has in the batch, and the tensors that its lines hand on to each other."""

    __slots__ = ("begin", "end", "gradients", "loss", "products", "received", "sent")

    def __init__(self, begin, end):
        self.begin, self.end = begin, end

    def clear(self, stage):
        self.received = [None] * len(stage.received)  # by number of the value; after the backward pass, their gradients
        self.sent, self.loss = (), None
        self.products = []  # that are put off
        self.gradients = [[] for _ in stage.sent]  # by number of the value: tensors whose sum is its gradient


class Player:
    """Plays the program of a rank. Needs all ranks to call `step` alike.

    All that is known of a line before a step is prepared once, so that a step calls one function after the other.
    """

    def __init__(self, role, stage, buckets, loss_of, update, autocast, masks, compiled, watch, trace):
        self._stage, self._number = stage, role.number
        self._cuts, self._links = {cut.name: cut for cut in role.cuts}, role.links
        self._loss_of, self._updating, self._autocast, self._masks = loss_of, update, autocast, masks
        self._watch, self._trace = watch, trace  # a JobWatch, a Recorder; or None
        # Lines that wait for no other rank.
        passes = ("forward", "backward", "backward_input", "backward_weight")
        self._computing = () if watch is None else passes if update.waits else (*passes, "update")
        self._parameters = list(stage.module.parameters())
        self._differentiable = [number for number, value in enumerate(stage.received) if value.gradient]
        replica = role.shares.ranks[role.number].index(role.rank)
        self._micro_batches = [_MicroBatch(*(first + row for row in role.shares.rows(role.number, k)[replica]))
                               for k, first in enumerate(role.shares.begins[:-1])]
        prepare = (lambda part: part) if compiled is False else functools.partial(torch.compile, **self._compiling(compiled))
        self._compute = Segments(stage.module, role.recomputed, stage.changed, prepare) if role.recomputed else prepare(stage.module)
        program = role.program()
        # A compiled module gives all parameters their gradients in the input pass.
        parted = compiled is False and any(word.startswith("backward_weight:") for word, _ in program)
        self._put_off = PutOff(stage.module) if parted else None
        if parted:
            self._compute = self._put_off
        program = [(word, after) for word, after in program if self._is_own(word)]
        self._buckets = {bucket.name: bucket for bucket in buckets}
        # The lines that reduce, by what follows their first word: "b0", or "b0:3" of a micro-batch.
        self._reducing_lines = {word.partition(":")[2]: word for word, _ in program
                                if word.startswith(("all_reduce:", "reduce_scatter:"))}
        # By micro-batch: those that begin during its backward pass, in the program's order.
        passes = [word.partition(":")[2] for word, _ in program if word.startswith(("backward:", "backward_weight:"))]
        self._orders = {k: [of for of in self._reducing_lines if of.endswith(f":{k}") or k == passes[-1] and ":" not in of]
                        for k in passes}
        self._order = ()
        self._lines, self._left = self._prepared(program)
        self._hooks = [parameter.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self._ready(bucket))
                       for bucket in (buckets if self._reducing_lines else ()) for parameter in bucket.parameters]

    def _compiling(self, options):
        """The arguments of torch.compile. Where micro-batches differ, one graph takes them all from the beginning: a pass that is
        computed again by another graph than the first time would not fit what was kept of that."""
        sizes = {own.end - own.begin for own in self._micro_batches}
        return {**({"dynamic": True} if len(sizes) > 1 else {}), **({} if options is True else options)}

    def close(self):
        """Leaves the parameters as they were before."""
        for hook in self._hooks:
            hook.remove()

    def step(self, inputs):
        """Makes a step of the whole batch. Returns its loss, the same on every rank."""
        self._inputs = inputs
        self._loss, self._ready_buckets, self._armed, self._reductions, self._reducing = None, 0, False, [], {}
        self._scattering = None  # the reduce-scatter of a micro-batch that began last
        for bucket in self._buckets.values():
            if isinstance(bucket, ScatteredBucket):
                bucket.clear()
        for micro_batch in self._micro_batches:
            micro_batch.clear(self._stage)
        for parameter in self._parameters:
            parameter.grad = None
        works = [None] * len(self._lines)  # by line, those that nothing has waited for
        for i, (before, run, after) in enumerate(self._lines):
            for other in before:
                works[other].wait()
                works[other] = None
            works[i] = run()
            for other in after:
                works[other].wait()
                works[other] = None
        for other in self._left:
            works[other].wait()
        if self._watch is not None:
            self._watch.step(self._reductions)
        if self._trace is not None:
            self._trace.end_step()
        return self._loss

    def _is_own(self, word):
        """Whether a line does anything here: messages of a cut without values do not."""
        what, _, of = word.partition(":")
        return _STREAMS.get(what) not in ("send", "recv") or of.partition(":")[0] in self._cuts

    def _prepared(self, program):
        """([(lines for whose works it waits, function, those for which it waits afterwards)], those for which none does)."""
        streams = {"send": {}, "recv": {}, "collective": {}}  # word -> line, of those for which none has waited yet
        lines = []

        def waited(words):
            found = []
            for word in words:
                stream = streams.get(_STREAMS.get(word.partition(":")[0]), {})
                while word in stream:
                    found.append(stream.pop(next(iter(stream))))
            return found

        for i, (word, after) in enumerate(program):
            what, *of = word.split(":")
            before, arrived = waited(after), []
            run = self._noted(word, what, getattr(self, f"_{what}")(*of))
            if what in ("backward", "backward_input"):  # the gradients of what it sent are here, so it has arrived
                arrived = waited(f"send:{cut.name}:{of[0]}" for cut in self._cuts.values()
                                 if cut.source == self._number and any(value.gradient for value in cut.values))
            if what in _STREAMS:
                streams[_STREAMS[what]][word] = i
            lines.append((before, run, arrived))
        return lines, [i for stream in streams.values() for i in stream.values()]

    def _noted(self, word, what, run):
        """What runs a line, and lets watch and trace know of it as far as they want to."""
        watch, trace = self._watch, self._trace

        def watched():
            begin = watch.mark()
            run()
            watch.computed(begin)

        def traced():
            begin = trace.mark()
            works = noted()
            if what in _STREAMS:
                return trace.begun(word, works, begin)
            return trace.noted(word, begin)

        noted = watched if what in self._computing else run
        return noted if trace is None or what in ("all_reduce", "reduce_scatter") else traced

    def _forward(self, k):
        return functools.partial(self._pass_forward, self._micro_batches[int(k)])

    def _pass_forward(self, own):
        begin, end = own.begin, own.end
        masks = [self._masks.rows(self._stage.masks, begin, end)] if self._stage.masks else []
        inputs = [tensor[begin:end] if batched else tensor for tensor, batched in self._inputs]
        for number in self._differentiable:
            own.received[number].requires_grad_()
        if self._put_off is not None:
            self._put_off.products = own.products
        with self._autocast():
            own.sent, outputs = self._compute(end - begin, *masks, *inputs, *own.received)
            if self._loss_of is None:
                return
            loss = self._loss_of(outputs, begin, end)
        own.loss = self._updating.scaled(loss)
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()

    def _backward(self, k):
        return self._reducing_while(functools.partial(self._pass_back, self._micro_batches[int(k)]), self._orders[k])

    def _backward_input(self, k):
        return functools.partial(self._pass_back, self._micro_batches[int(k)])

    def _backward_weight(self, k):
        own = self._micro_batches[int(k)]
        return self._reducing_while(lambda: finish(own.products), self._orders[k], lambda: weights(own.products))

    def _reducing_while(self, run, order, made=None):
        """What runs a pass, and begins to reduce the buckets `order` when it has made their gradients: those of the parameters
        `made()`, or of all."""
        if not order:
            return run

        def reducing():
            own = None if made is None else made()
            for bucket in self._buckets.values():
                bucket.missing = sum(own is None or parameter in own for parameter in bucket.parameters)
            self._order, self._ready_buckets, self._armed = order, 0, True
            self._begin_ready()
            run()
            self._armed = False
            self._begin_buckets(len(self._order))

        return reducing

    def _pass_back(self, own):
        roots, gradients = [], []
        for tensor, parts in zip(own.sent, own.gradients):
            if parts and tensor.requires_grad:
                roots.append(tensor)
                gradients.append(functools.reduce(torch.add, parts))
        if own.loss is not None:
            roots.append(own.loss)
            gradients.append(None)
        own.sent, own.gradients, own.loss = (), (), None
        torch.autograd.backward(roots, gradients)
        own.received = [tensor.grad for tensor in own.received]

    def _ready(self, bucket):
        if not self._armed:
            return
        bucket.missing -= 1
        self._begin_ready()

    def _begin_ready(self):
        ready = self._ready_buckets
        while ready < len(self._order) and self._bucket_of(self._order[ready]).missing == 0:
            ready += 1
        self._begin_buckets(ready)

    def _begin_buckets(self, end):
        for of in self._order[self._ready_buckets:end]:
            bucket = self._bucket_of(of)
            if self._scattering is not None:
                self._scattering.wait()  # so that no more than one is whole beside the one that fills
                self._scattering = None
            mark = None if self._trace is None else self._trace.mark()
            works = bucket.begin()
            self._reducing[of] = bucket
            if self._trace is not None:
                self._reducing[of] = self._trace.begun(self._reducing_lines[of], bucket, mark)
            if ":" in of:
                self._scattering = self._reducing[of] = _Once(self._reducing[of])
            self._note(bucket, works)
        self._ready_buckets = end

    def _bucket_of(self, of):
        return self._buckets[of.partition(":")[0]]

    def _note(self, bucket, works):
        """Lets the watch know of works that have just begun."""
        if self._watch is not None and self._watch.notes_reductions and not bucket.shared:
            self._reductions += map(self._watch.begun, works)

    def _send(self, name, k):
        cut, own = self._cuts[name], self._micro_batches[int(k)]
        send, numbers = self._links.sender(cut, int(k)), [self._stage.sent.index(value) for value in cut.values]
        return lambda: send([own.sent[number] for number in numbers])

    def _recv(self, name, k):
        cut, own = self._cuts[name], self._micro_batches[int(k)]
        receive, numbers = self._links.receiver(cut, int(k)), [self._stage.received.index(value) for value in cut.values]

        def received():
            works, tensors = receive()
            for number, tensor in zip(numbers, tensors):
                own.received[number] = tensor
            return works

        return received

    def _send_gradient(self, name, k):
        cut, own = self._cuts[name], self._micro_batches[int(k)]
        send, numbers = self._links.gradient_sender(cut, int(k)), [self._stage.received.index(value) for value in cut.values]

        def sent():
            gradients = [own.received[number] for number in numbers]
            for number in numbers:
                own.received[number] = None  # so that they live no longer than the messages
            return send(gradients)

        return sent

    def _recv_gradient(self, name, k):
        cut, own = self._cuts[name], self._micro_batches[int(k)]
        receive, numbers = self._links.gradient_receiver(cut, int(k)), [self._stage.sent.index(value) for value in cut.values]

        def received():
            works, sums = receive()
            for number, parts in zip(numbers, sums):
                own.gradients[number] += parts
            return works

        return received

    def _all_reduce(self, name):
        return lambda: self._reducing.pop(name, self._buckets[name])  # it began with the last backward pass

    def _reduce_scatter(self, name, k=None):
        if k is None:
            return self._all_reduce(name)
        return lambda: self._reducing.pop(f"{name}:{k}")  # it began with the backward pass of the micro-batch

    def _all_gather(self, name):
        bucket = self._buckets[name]

        def gather():
            gathering = bucket.gather()
            self._note(bucket, gathering.works)
            return gathering

        return gather

    def _norm(self):
        return self._updating.agree

    def _update(self):
        return self._updating.step

    def _report(self):
        return self._begin_report

    def _begin_report(self):
        self._loss = torch.zeros((), device=self._links.device) if self._loss is None else self._loss.float()
        return Works([(dist.all_reduce(self._loss, async_op=True), self._loss)])
