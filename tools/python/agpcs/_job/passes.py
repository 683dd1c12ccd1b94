# SPDX-License-Identifier: Apache-2.0
"""Times passes of a whole module as agpcs.torch.Job computes them, and divides each pass among the nodes of its graph."""

from __future__ import annotations

import collections
import copy
import functools
import operator
import statistics
import time
import typing

import torch

from agpcs._job.graph import is_number
from agpcs._job.loss import MeanLoss
from agpcs._job.split import NODE
from agpcs._torch_clock import Clock
from agpcs._torch_steps import Step, memory_meter, resized

LOSS = ""  #: stands for the loss among names of nodes


class Times(typing.NamedTuple):
    """Seconds of one number of samples, of the forward and the backward pass."""

    samples: int
    nodes: dict[str, tuple[float, float]]  #: by name of a node; the loss is `LOSS`. They add up to the passes
    spread: float  #: interquartile range / median of the passes


class Passes:
    """Of a Graph that is one stage, whose Stage is `part`. `with_operators` are the names of the nodes that the exported
    file has operators of; what other nodes take counts for the one of these before it.

    `sample_batch` has the inputs and targets of `size` samples. Gradients are added to those that are there, as in all
    micro-batches of a step but the first.
    """

    def __init__(self, graph, part, with_operators, loss_fn, spec, ignored, inputs, targets, size, autocast, device):
        self._module, self._autocast, self.device, self._clock = part.module, autocast, device, Clock(device)
        self._loss_fn, self._spec, self._ignored = loss_fn, spec, ignored
        self._inputs, self._targets, self._size = [inputs[i] for i in part.inputs], targets, size
        owners = _owners(graph, with_operators)
        self._cuda = device.type == "cuda"
        # Processor time stands still while a quota, or another program, stops the thread; `stretch` has what that takes.
        self._now = self._clock.mark if self._cuda else time.thread_time
        self._forward, self._backward = [], []  # (node, when it ended or began, when its note was made) of a marked pass
        self._marked = _marked(part.module, owners, self._note)
        self._batches = {}  # by samples, as those that follow
        self._steps, self._parts = collections.defaultdict(list), collections.defaultdict(list)
        self._clocked = collections.defaultdict(lambda: [0.0, 0.0])  # seconds by the clock, and of the processor

    def first(self, samples):
        """Makes the first passes of a number of samples, which do not count. Returns the seconds of the last one, and the
        most bytes that were in use."""
        inputs = resized(tuple(self._inputs), self._size, samples)
        loss = MeanLoss(self._loss_fn, self._spec, {} if self._ignored is None else {"ignore_index": self._ignored}, samples,
                        self.device)
        loss.begin(resized(self._targets, self._size, samples))
        self._batches[samples] = ([tensor.to(self.device) for tensor in inputs], loss)
        self._pass(self._marked, samples)
        meter = memory_meter(self.device)
        step, _ = self._pass(self._module, samples)
        return step.forward + step.backward, meter()

    def measure(self, samples):
        """Makes two passes: one is timed as a whole, and one divided. Returns what both took."""
        whole, own = self._pass(self._module, samples)
        self._steps[samples].append(own)
        self._clocked[samples][0] += whole.forward + whole.backward
        self._clocked[samples][1] += own.forward + own.backward
        divided, _ = self._pass(self._marked, samples)
        self._parts[samples].append(self._divided())
        return sum(whole[:2]) + sum(divided[:2])

    def step(self, samples, between=None):
        """Makes a pass. Calls `between` before its backward pass. Returns the Step, by the clock."""
        return self._pass(self._module, samples, between)[0]

    def stretch(self, samples=None):
        """How many times longer passes took than the processor worked for them; of one thread, those of all numbers of
        samples together. 1 on a device that no other program can stop."""
        if self._cuda:
            return 1.0
        counted = [samples] if samples is not None and torch.get_num_threads() > 1 else list(self._clocked)
        return sum(self._clocked[n][0] for n in counted) / sum(self._clocked[n][1] for n in counted)

    def times(self):
        """The Times of each number of samples that was measured, ascending."""
        return [self._times(samples) for samples in sorted(self._steps)]

    def _times(self, samples):
        steps, stretch = self._steps[samples], self.stretch(samples)
        names = set().union(*(parts for passes in self._parts[samples] for parts in passes))
        halves = [{name: statistics.median(passes[half].get(name, 0.0) for passes in self._parts[samples]) for name in names}
                  for half in (0, 1)]
        forward, backward = (stretch * statistics.median(step[half] for step in steps) / max(sum(halves[half].values()), 1e-12)
                             for half in (0, 1))
        whole = sorted(step.forward + step.backward for step in steps)
        spread = (whole[-1 - len(whole) // 4] - whole[len(whole) // 4]) / whole[len(whole) // 2]
        return Times(samples, {name: (forward * halves[0][name], backward * halves[1][name]) for name in names}, spread)

    def _pass(self, module, samples, between=None):
        """Makes a pass. Returns its Step by the clock, and that of the processor or device."""
        inputs, loss = self._batches[samples]
        self._forward.clear()
        self._backward.clear()
        self._clock.wait()
        begin, self._begun = self._clock.mark(), self._now()
        with self._autocast():
            _, outputs = module(samples, *inputs)
            value = loss.part(outputs, 0, samples)
        if between is not None:
            between()
        middle, self._turned = self._clock.mark(), self._now()
        torch.autograd.backward([value])
        end, self._ended = self._clock.mark(), self._now()
        self._clock.wait()
        return (Step(self._clock.between(begin, middle), self._clock.between(middle, end), ()),
                Step(self._seconds(self._begun, self._turned), self._seconds(self._turned, self._ended), ()))

    def _note(self, node, value):
        """Notes that a node has been computed, and when the gradient of what it gave will be there."""
        ended = self._now()
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(functools.partial(self._note_gradient, node))
        self._forward.append((node, ended, self._now()))

    def _note_gradient(self, node, _):
        self._backward.append((node, self._now(), self._now()))

    def _divided(self):
        """The last pass, which was marked: seconds of the forward and of the backward pass by node."""
        forward, backward = collections.defaultdict(float), collections.defaultdict(float)
        last = self._begun
        for node, ended, noted in self._forward:
            forward[node] += self._seconds(last, ended)
            last = noted
        forward[LOSS] += self._seconds(last, self._turned)
        last, running = self._turned, LOSS
        for node, began, noted in self._backward:
            backward[running] += self._seconds(last, began)
            last, running = noted, node
        backward[running] += self._seconds(last, self._ended)
        return forward, backward

    def _seconds(self, begin, end):
        return self._clock.between(begin, end) if self._cuda else end - begin


def _owners(graph, with_operators):
    """The name of the node that the time of each node counts for, by name. Nodes of shape arithmetic and checks have none:
    theirs counts for the next one."""
    owners, before = {}, next(node.name for node in graph.nodes if node.name in with_operators)
    for node in graph.nodes:
        if node.op != "call_function" or is_number(node):
            continue
        if node.name in with_operators:
            before = node.name
        of_source = owners.get(node.args[0].name) if node.target is operator.getitem else None
        owners[node.name] = of_source or before
    return owners


def _marked(module, owners, note):
    """A copy of a stage's module, with its parameters, that calls `note(node, value)` after each node."""
    def noted(node, value):  # torch.fx wants a function
        note(node, value)

    graph = copy.deepcopy(module.graph)
    for node in list(graph.nodes):
        owner = owners.get(node.meta.get(NODE))
        if node.op == "call_function" and owner is not None:
            with graph.inserting_after(node):
                graph.call_function(noted, (owner, node))
    return torch.fx.GraphModule(module, graph)
