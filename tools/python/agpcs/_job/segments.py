# SPDX-License-Identifier: Apache-2.0
"""Computes a stage's module segment by segment. A recomputed segment keeps what it reads, and computes the rest again for its
backward pass; what a segment keeps may lie in the memory of the host. What follows these segments keeps what it needs on the device."""

from __future__ import annotations

import contextlib
import functools
import typing

import torch
from torch.utils.checkpoint import checkpoint

from agpcs._job.graph import is_view

SEGMENT = "agpcs.segment"  #: by this, a node of a stage's graph that has operators names its segment, from 0


class Segmented(typing.NamedTuple):
    """What the first segments of a stage do so that the device keeps less between the passes of a micro-batch."""

    count: int = 0  #: of these segments
    recomputed: bool = False  #: whether they are computed again
    in_host: bool = False  #: whether what they keep lies in the memory of the host


class Segments:
    """Computes the `module` of a Stage, whose first segments keep less, as `segmented` says. `changed` are the names in it of buffers
    that its forward pass changes; `prepare(module)` is called for what computes a segment, and `again(module)` before that is
    computed again. `host` is a HostActivations, or None."""

    def __init__(self, module, segmented, changed, prepare, again=lambda _: None, host=None):
        self._host = host if segmented.in_host else None
        nodes = list(module.graph.nodes)
        self._places = [node for node in nodes if node.op == "placeholder"]
        self._module, self._output = module, nodes[-1]
        numbers = _numbers(nodes)
        self._late = _read_late(nodes, numbers, segmented.count)
        self._parts = []  # (function, nodes that it reads, nodes that it gives, nodes that nobody reads after it, whether it keeps less)
        found = sorted(set(numbers.values()))
        held = set(self._places)
        for number in found:
            own = [node for node in nodes if numbers.get(node) == number]
            part, reads, gives = _part(module, own)
            held.update(gives)
            over = {node for node in held if all(numbers.get(user, found[-1] + 1) <= number for user in node.users)}
            held -= over
            compute = prepare(part)
            less = number < segmented.count
            if less and segmented.recomputed:
                buffers = [part.get_buffer(name) for name in changed if hasattr(part, name)]
                compute = functools.partial(_recomputed, compute, buffers, functools.partial(again, part))
            self._parts.append((compute, reads, gives, over, less))

    def __call__(self, *arguments):
        values = dict(zip(self._places, arguments))
        moving = self._moving(arguments) if self._host is not None and torch.is_grad_enabled() else None
        del arguments  # what nobody reads any more is freed
        for compute, reads, gives, over, less in self._parts:
            moves = moving is not None and less
            with moving.saving() if moves else contextlib.nullcontext():
                values.update(zip(gives, compute(*(values[node] for node in reads))))
            for node in over:
                del values[node]
            if moves:
                moving.end(_tensors(value for node, value in values.items() if node in self._late))
            elif moving is not None:
                moving.leave()
        if moving is not None:
            moving.end_forward(_tensors(values.values()))
        values.update((node, getattr(self._module, node.target)) for node in self._output.all_input_nodes if node.op == "get_attr")
        return torch.fx.map_arg(self._output.args[0], values.__getitem__)

    def _moving(self, arguments):
        """The Pass of a micro-batch through segments of which something goes to the host."""
        return self._host.begun(_tensors((*arguments, *self._module.parameters(), *self._module.buffers())))


def _tensors(values):
    return [value for value in values if isinstance(value, torch.Tensor)]


def _read_late(nodes, numbers, count):
    """The nodes whose values, or views of them, are read behind the first `count` segments, or leave the stage."""
    found = set()
    for node in reversed(nodes):
        if node.op == "output" or numbers.get(node, 0) >= count or node in found and is_view(node):
            found.update(node.all_input_nodes)
    return found


def _numbers(nodes):
    """The segment of each node that computes. A node without operators lies with the last of its inputs; one that reads no
    segment lies with the first that reads it, and one that nobody reads, which changes a buffer, with the next node."""
    numbers = {}
    for node in nodes:
        own = [number for number in (node.meta.get(SEGMENT),) if number is not None]
        own += [numbers[source] for source in node.all_input_nodes if source in numbers]
        if node.op == "call_function" and own:
            numbers[node] = max(own)
    following = max(numbers.values(), default=0)
    for node in reversed(nodes):
        if node.op == "call_function":
            readers = [numbers[user] for user in node.users if user in numbers]
            following = numbers.setdefault(node, min(readers, default=following))
    return numbers


def _part(module, own):
    """A module of the nodes `own`, the nodes whose values it takes, and those whose values it gives."""
    inside = set(own)
    sources = dict.fromkeys(source for node in own for source in node.all_input_nodes if source not in inside)
    reads = [source for source in sources if source.op != "get_attr"]
    gives = [node for node in own if any(user not in inside for user in node.users)]
    graph = torch.fx.Graph()
    copies = {source: graph.placeholder(source.name) for source in reads}
    copies.update((source, graph.get_attr(source.target)) for source in sources if source.op == "get_attr")
    for node in own:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in gives))
    return torch.fx.GraphModule(module, graph, type(module).__name__), reads, gives


def _recomputed(compute, buffers, again, *arguments):
    return checkpoint(compute, *arguments, use_reentrant=False,
                      context_fn=lambda: (contextlib.nullcontext(), _once_more(buffers, again)))


@contextlib.contextmanager
def _once_more(buffers, again):
    """Restores buffers that are changed within: a pass that is computed again counts once."""
    again()
    kept = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, kept):
                buffer.copy_(value)
