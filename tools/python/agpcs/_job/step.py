# SPDX-License-Identifier: Apache-2.0
"""A step of agpcs.torch.Job on one rank: it plays the program that the plan has for the rank's stages, line by line.

A line waits for what the plan says that it waits for (`after`), and computes or begins a message. Sends, receives and
collectives are a stream each: what one of them waits for has come when all lines of the stream before it have ended, too.
What goes to another stage of the rank needs no line: that stage's passes take it and give its gradient back.
All-reduces and reduce-scatters begin during the last backward pass, when their gradients are there, in the plan's order.
Where ranks divide gradients, their reduce-scatters begin during every backward pass, each when the one before it has ended.
Where ranks divide parameters, gathers begin during passes, too, each when the pass comes to the bucket before it.
Where backward passes are parted, weight passes are what is said here of backward passes.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist

from agpcs._job.links import Works
from agpcs._job.put_off import PutOff, finish, weights
from agpcs._job.segments import Segments
from agpcs._job.uses import Uses
from agpcs._job.within import Within

_STREAMS = {"send": "send", "send_gradient": "send", "recv": "recv", "recv_gradient": "recv", "all_reduce": "collective",
            "reduce_scatter": "collective", "all_gather": "collective", "gather_forward": "collective",
            "gather_backward": "collective", "report": "collective"}
_WITHIN = ("all_reduce", "reduce_scatter", "gather_forward", "gather_backward")  # they begin within passes


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


class _Stage:
    """A stage of the rank: what computes it, and its micro-batches."""

    def __init__(self, role, number, loss_of):
        self.part, self.number, self.loss_of = role.parts[number], number, loss_of
        self.micro_batches = [_MicroBatch(*(first + row for row in role.shares.rows(number, k)[role.replica]))
                              for k, first in enumerate(role.shares.begins[:-1])]
        self.differentiable = [number for number, value in enumerate(self.part.received) if value.gradient]
        self.compute = self.put_off = None  # a PutOff, where backward passes are parted

    def prepare(self, segmented, prepare, parted, again, host):
        """Makes `compute`: of the module by `prepare`, by segments that keep less, as `segmented` says, or with what is put off. `host` is
        a HostActivations, or None."""
        module = self.part.module
        if parted:
            self.compute = self.put_off = PutOff(module)
        elif segmented.count > 0:
            self.compute = Segments(module, segmented, self.part.changed, prepare, again, host)
        else:
            self.compute = prepare(module)


class Player:
    """Plays the program of a rank. `losses` are functions that compute the loss, by number of the stage. Needs all ranks to call
    `step` alike.

    All that is known of a line before a step is prepared once, so that a step calls one function after the other.
    """

    def __init__(self, role, buckets, losses, update, autocast, masks, compiled, watch, trace):
        self._stages = {name: _Stage(role, number, losses.get(number)) for name, number in zip(role.stages, role.numbers)}
        self._by_number = {stage.number: stage for stage in self._stages.values()}
        self._cuts, self._links = {cut.name: cut for cut in role.cuts}, role.links
        self._updating, self._autocast, self._masks = update, autocast, masks
        self._watch, self._trace = watch, trace  # a JobWatch, a Recorder; or None
        # Lines that wait for no other rank.
        passes = ("forward", "backward", "backward_input", "backward_weight")
        self._computing = () if watch is None else passes if update.waits else (*passes, "update")
        self._team, self._idle = role.team, role.idle
        self._parameters = [parameter for stage in self._stages.values() for parameter in stage.part.module.parameters()]
        program = [(word, after) for word, after in role.program() if self._is_own(word)]
        self._buckets = {bucket.name: bucket for bucket in buckets}
        self._within = Within(program, buckets, watch, trace, role.team is not None)
        self._last = next((word for word, _ in reversed(program) if word.startswith("backward:")), None)
        prepare = (lambda part: part) if compiled is False else functools.partial(torch.compile, **self._compiling(compiled))
        if self._within.gathered:
            prepare = self._telling(prepare, compiled is not False)
        # A compiled module gives all parameters their gradients in the input pass.
        parted = compiled is False and any(word.startswith("backward_weight:") for word, _ in program)
        for stage in self._stages.values():
            stage.prepare(role.segmented(stage.number), prepare, parted, self._within.again, role.host)
        self._lines, self._left = self._prepared(program)

    @property
    def idle(self):
        """Lines of the program that move nothing: what they gather is there."""
        return self._within.idle

    def _telling(self, prepare, compiled):
        """What prepares a part of the stage, the only one, and tells of its uses of parameters that ranks divide."""
        stage, = self._stages.values()
        uses = Uses(stage.part.module, self._within.gathered, self._within)
        self._within.tell_of(uses)
        return (lambda part: uses.told_around(part, prepare(part))) if compiled else uses.told

    def _compiling(self, options):
        """The arguments of torch.compile. Where micro-batches differ, one graph takes them all from the beginning: a pass that is
        computed again by another graph than the first time would not fit what was kept of that."""
        sizes = {own.end - own.begin for stage in self._stages.values() for own in stage.micro_batches}
        return {**({"dynamic": True} if len(sizes) > 1 else {}), **({} if options is True else options)}

    def close(self):
        """Leaves the parameters as they were before."""
        self._within.close()

    def step(self, inputs):
        """Makes a step of the whole batch, whose `inputs` are (tensor, whether it has samples) by number. Returns its loss, the
        same on every rank."""
        self._inputs, self._loss = inputs, None
        for stage in self._stages.values():
            for micro_batch in stage.micro_batches:
                micro_batch.clear(stage.part)
        for parameter in self._parameters:
            parameter.grad = None
        if self._team is not None:
            self._team.begin_step()
        self._within.begin_step()
        try:
            self._play()
        finally:
            self._within.end_step()
        if self._watch is not None:
            self._watch.step(self._within.reductions)
        if self._trace is not None:
            self._trace.end_step()
        return self._loss

    def _play(self):
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
            if what == "all_gather":  # so that no more than one bucket is there twice
                before += waited(list(streams["collective"]))
            run = self._noted(word, what, getattr(self, f"_{what}")(*of))
            if what in ("backward", "backward_input"):  # the gradients of what it sent are here, so it has arrived
                number = self._stage_of(of).number
                arrived = waited(f"send:{cut.name}:{of[-1]}" for cut in self._cuts.values()
                                 if cut.source == number and any(value.gradient for value in cut.values))
            if what in _STREAMS:
                streams[_STREAMS[what]][word] = i
            lines.append((before, run, arrived))
        return lines, [i for stream in streams.values() for i in stream.values()]

    def _noted(self, word, what, run):
        """What runs a line, and lets watch and trace know of it as far as they want to."""
        watch, trace = self._watch, self._trace

        def watched():
            self._within.since = watch.mark()
            run()
            watch.computed(self._within.since)

        def traced():
            begin = trace.mark()
            works = noted()
            if what in _STREAMS:
                return trace.begun(word, works, begin)
            return trace.noted(word, begin)

        if self._idle and what == "update":
            return run  # it is in no plan
        noted = watched if what in self._computing else run
        return noted if trace is None or what in _WITHIN else traced

    def _stage_of(self, of):
        """The _Stage of a pass: the only one, or that which the pass names before its micro-batch."""
        return self._stages[of[0]] if len(of) > 1 else next(iter(self._stages.values()))

    def _at(self, number, k):
        """What micro-batch `k` has in the stage of a number."""
        return self._by_number[number].micro_batches[int(k)]

    def _taken(self, stage, k):
        """What a stage's passes of micro-batch `k` have from other stages of the rank: (the micro-batch there, the value's number in
        what that sends, in what this receives)."""
        return [(self._at(cut.source, k), self._by_number[cut.source].part.sent.index(value), stage.part.received.index(value))
                for cut in self._cuts.values() if cut.local and cut.target == stage.number for value in cut.values]

    def _forward(self, *of):
        stage = self._stage_of(of)
        run = functools.partial(self._pass_forward, stage, stage.micro_batches[int(of[-1])], self._taken(stage, of[-1]))
        return self._within.around(":".join(("forward", *of)), run)

    def _pass_forward(self, stage, own, taken):
        for maker, made, number in taken:
            own.received[number] = maker.sent[made].detach()
        begin, end, part = own.begin, own.end, stage.part
        masks = [self._masks.rows(part.masks, begin, end)] if part.masks else []
        inputs = [tensor[begin:end] if batched else tensor for tensor, batched in map(self._inputs.__getitem__, part.inputs)]
        for number in stage.differentiable:
            own.received[number].requires_grad_()
        if stage.put_off is not None:
            stage.put_off.products = own.products
        with self._autocast():
            own.sent, outputs = stage.compute(end - begin, *masks, *inputs, *own.received)
            if self._within.gathered:
                own.sent, outputs = self._within.kept(own.sent), self._within.kept(outputs)
            if stage.loss_of is None:
                return
            loss = stage.loss_of(outputs, begin, end)
        own.loss = self._updating.scaled(loss)
        if self._team is not None and self._team.member > 0:
            return  # the first member reports it
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()

    def _backward(self, *of):
        word, stage = ":".join(("backward", *of)), self._stage_of(of)
        run = functools.partial(self._pass_back, stage.micro_batches[int(of[-1])], self._taken(stage, of[-1]))
        if self._team is not None and word == self._last:
            run = functools.partial(self._last_pass_back, run)
        return self._within.around(word, run)

    def _last_pass_back(self, run):
        """Makes the last backward pass of a step, after which a team's members exchange gradients of parameters."""
        run()
        self._team.end_step()

    def _backward_input(self, *of):
        return functools.partial(self._pass_back, self._stage_of(of).micro_batches[int(of[-1])])

    def _backward_weight(self, *of):
        own = self._stage_of(of).micro_batches[int(of[-1])]
        return self._within.around(":".join(("backward_weight", *of)), lambda: finish(own.products), lambda: weights(own.products))

    def _pass_back(self, own, taken=()):
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
        for maker, made, number in taken:
            gradient, own.received[number] = own.received[number], None
            if gradient is not None:
                maker.gradients[made].append(gradient)

    def _send(self, name, k):
        cut = self._cuts[name]
        own, sent = self._at(cut.source, k), self._by_number[cut.source].part.sent
        send, numbers = self._links.sender(cut, int(k)), [sent.index(value) for value in cut.values]
        return lambda: send([own.sent[number] for number in numbers])

    def _recv(self, name, k):
        cut = self._cuts[name]
        own, known = self._at(cut.target, k), self._by_number[cut.target].part.received
        receive, numbers = self._links.receiver(cut, int(k)), [known.index(value) for value in cut.values]

        def received():
            works, tensors = receive()
            for number, tensor in zip(numbers, tensors):
                own.received[number] = tensor
            return works

        return received

    def _send_gradient(self, name, k):
        cut = self._cuts[name]
        own, known = self._at(cut.target, k), self._by_number[cut.target].part.received
        send, numbers = self._links.gradient_sender(cut, int(k)), [known.index(value) for value in cut.values]

        def sent():
            gradients = [own.received[number] for number in numbers]
            for number in numbers:
                own.received[number] = None  # so that they live no longer than the messages
            return send(gradients)

        return sent

    def _recv_gradient(self, name, k):
        cut = self._cuts[name]
        own, known = self._at(cut.source, k), self._by_number[cut.source].part.sent
        receive, numbers = self._links.gradient_receiver(cut, int(k)), [known.index(value) for value in cut.values]

        def received():
            works, sums = receive()
            for number, parts in zip(numbers, sums):
                own.gradients[number] += parts
            return works

        return received

    def _all_reduce(self, *of):
        return functools.partial(self._within.taken, ":".join(("all_reduce", *of)))  # it began within a pass

    def _reduce_scatter(self, *of):
        return functools.partial(self._within.taken, ":".join(("reduce_scatter", *of)))

    def _gather_forward(self, *of):
        return self._gathering(":".join(("gather_forward", *of)))

    def _gather_backward(self, *of):
        return self._gathering(":".join(("gather_backward", *of)))

    def _gathering(self, word):
        return functools.partial(self._within.taken if self._within.follows(word) else self._within.begin, word)

    def _all_gather(self, name):
        bucket = self._buckets[name]

        def gather():
            gathering = bucket.gather()
            self._within.note(bucket, gathering.works)
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
