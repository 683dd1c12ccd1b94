# SPDX-License-Identifier: Apache-2.0
"""The stages of a module for agpcs.torch.Job: one fx.GraphModule each, with the module's own parameters in it, and the
values that go from one stage to another."""

from __future__ import annotations

import typing

import torch

from agpcs._errors import PlanMismatch, UsageError
from agpcs._job.graph import extent, extents, is_number, where
from agpcs._job.segments import SEGMENT
from agpcs._job.teams.member import Member


NODE = "agpcs.node"  #: by this, a node of a stage's graph names that of the module's graph


class Value(typing.NamedTuple):
    """A tensor that a stage makes and a later one reads."""

    name: str  #: of its node
    source: int  #: the stage that makes it
    batched: bool  #: axis 0 is the sample; False: it does not depend on samples
    shape: tuple[int, ...]  #: without the samples
    dtype: torch.dtype
    gradient: bool  #: whether its gradient may come back


class Stage(typing.NamedTuple):
    inputs: tuple[int, ...]  #: which of the batch's inputs it reads
    received: tuple[Value, ...]
    sent: tuple[Value, ...]
    parameters: tuple[str, ...]  #: names in the module, those that do not train included
    buffers: tuple[str, ...]  #: names in the module of buffers that it reads or changes
    constants: tuple[str, ...]  #: names in the program of constants that it reads
    changed: dict[str, str]  #: buffers that its forward pass changes: name in `module` -> name in the user's module
    masks: tuple[str, ...]  #: names of nodes whose masks follow the sample
    module: torch.fx.GraphModule | None  #: of the number of samples, rows of `masks`, `inputs`, `received`; gives (`sent`, outputs)


def split(graph, stages, own, team=None):
    """The stages of a Graph whose nodes are placed, in order, those of the numbers `own` with their modules: of what the rank computes
    as a member of `team`, if it is one."""
    count = len(stages)
    wanted = [set() for _ in range(count)]  # by stage: nodes that later stages or the loss read
    parts = [None] * count
    for s in reversed(range(count)):
        roots = wanted[s] | {node for node in graph.changed.values() if graph.stage.get(node) == s}
        if s == graph.loss_stage:
            roots |= {node for node in graph.output.all_input_nodes if graph.stage.get(node) in (None, s)}
        needed, received = _needed(graph, s, roots)
        if s == graph.loss_stage:
            received |= {node for node in graph.output.all_input_nodes if graph.stage.get(node) not in (None, s)}
        for node in received:
            wanted[graph.stage[node]].add(node)
        parts[s] = (needed, received)
    _check_owners(graph, parts, stages)
    return tuple(_stage(graph, s, *parts[s], wanted[s], s in own, team) for s in range(count))


def tensors_of(stage, graph):
    """The parameters, buffers and constants that a Stage has, each once, in one order for all of its ranks, whatever they compute of it."""
    every = (*map(graph.module.get_parameter, stage.parameters), *map(graph.module.get_buffer, stage.buffers),
             *map(graph.program.constants.__getitem__, stage.constants))
    return list({id(tensor): tensor for tensor in every}.values())


def _needed(graph, s, roots):
    """The nodes that stage `s` computes or has for `roots`, and those that it receives."""
    needed, received, more = set(), set(), list(roots)
    while more:
        node = more.pop()
        if node in needed:
            continue
        needed.add(node)
        if is_number(node) and _linear(node):
            continue
        for source in node.all_input_nodes:
            if graph.stage.get(source) in (None, s):
                more.append(source)
            else:
                received.add(source)
    return needed, received


def _linear(node):
    value = node.meta["val"]
    return extent(value) if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool) else None


def _check_owners(graph, parts, stages):
    """Each buffer that changes is of one stage. Parameters, and other buffers, may be in several."""
    changed, owner = {node.name for node in graph.changed}, {}
    for s, (needed, _) in enumerate(parts):
        for node in needed:
            if node.name in changed and owner.setdefault(node.name, s) != s:
                first, second = sorted((owner[node.name], s))
                raise UsageError(f"'{graph.buffers[node.name]}' is used in stages {stages[first]} and {stages[second]}; "
                                 "agpcs.torch.Job keeps a buffer that changes in one stage\n"
                                 "  hint: a plan whose cuts leave its uses together (--layout)")


def _value(graph, node):
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise UsageError(f"{where(node)} is several tensors that go from one stage to another; agpcs.torch.Job sends one")
    sizes = extents(node)
    batched = bool(sizes) and sizes[0] == (0, 1)
    rest = sizes[1:] if batched else sizes
    if any(per_sample for _, per_sample in rest) or not batched and node in graph.of_samples:
        shape = "x".join(str(size) for size in value.shape)
        raise UsageError(f"{where(node)} of shape {shape} goes from one stage to another, and its axis 0 is not the samples")
    return Value(node.name, graph.stage[node], batched, tuple(fixed for fixed, _ in rest),
                 graph.types.get(node, value.dtype), node in graph.differentiable)


def _stage(graph, s, needed, received, sent, build, team):
    nodes = [node for node in graph.nodes if node in needed]
    order = {node: i for i, node in enumerate(graph.nodes)}
    received, sent = sorted(received, key=order.get), sorted(sent, key=order.get)
    places = [node for node in nodes if node.op == "placeholder"]
    inputs = [i for i, node in enumerate(graph.inputs) if node in needed]
    return Stage(tuple(inputs), tuple(_value(graph, node) for node in received),
                 tuple(_value(graph, node) for node in sent),
                 tuple(graph.parameters[node.name] for node in places if node.name in graph.parameters),
                 tuple(graph.buffers[node.name] for node in places if node.name in graph.buffers),
                 tuple(graph.constants[node.name] for node in places if node.name in graph.constants),
                 {node.name: graph.buffers[node.name] for node in places if node in graph.changed},
                 tuple(node.name for node in nodes if node in graph.drawings),
                 _module(graph, s, nodes, inputs, received, sent, team) if build else None)


def _module(graph, s, nodes, inputs, received, sent, team):
    if team is not None:
        outputs = tuple(graph.output.args[0]) if s == graph.loss_stage else ()
        member = Member(graph, s, nodes, team, lambda root, node: _hold(graph, root, node))
        return member.module(inputs, received, sent, outputs, f"Stage{s}", _extent_of, _linear)
    root, result, copies = torch.nn.Module(), torch.fx.Graph(), {}
    samples = result.placeholder("samples")
    drawn = [node for node in nodes if node in graph.drawings]
    masks = result.placeholder("masks") if drawn else None
    for node in [graph.inputs[i] for i in inputs] + received:
        copies[node] = result.placeholder(node.name)
    for node in nodes:
        if node in copies:
            continue
        if node.op == "placeholder":
            _hold(graph, root, node)
            copies[node] = result.get_attr(node.name)
        elif node.op == "get_attr":  # the graph of a region
            root.add_module(node.name, graph.program.graph_module.get_submodule(node.target))
            copies[node] = result.get_attr(node.name)
        elif is_number(node) and _linear(node):
            fixed, per_sample = _linear(node)
            copies[node] = result.call_function(_extent_of, (samples, fixed, per_sample))
        else:
            copies[node] = result.node_copy(node, copies.__getitem__)
            if node in graph.drawings:
                function, axis = graph.drawings[node]
                with result.inserting_before(copies[node]):
                    rows = result.call_function(torch.select, (masks, 1, drawn.index(node)))
                copies[node].target, copies[node].args = function, (rows, axis, *copies[node].args)
            copies[node].meta = {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}
            copies[node].meta[NODE] = node.name
            copies[node].meta[SEGMENT] = graph.segment.get(node.name)
    outputs = ()
    if s == graph.loss_stage:
        outputs = torch.fx.map_arg(tuple(graph.output.args[0]), copies.__getitem__)
    result.output((tuple(copies[node] for node in sent), outputs))
    return torch.fx.GraphModule(root, result, f"Stage{s}")


def _extent_of(samples, fixed, per_sample):
    return fixed + per_sample * samples


def _hold(graph, root, node):
    """Puts the module's own parameter or buffer, or a constant, into `root` under the node's name."""
    if node.name in graph.parameters:
        root.register_parameter(node.name, graph.module.get_parameter(graph.parameters[node.name]))
    elif node.name in graph.buffers:
        root.register_buffer(node.name, graph.module.get_buffer(graph.buffers[node.name]))
    elif node.name in graph.constants:
        root.register_buffer(node.name, graph.program.constants[graph.constants[node.name]])
    else:
        raise PlanMismatch(f"{where(node)} is an input of the graph that agpcs.torch.Job does not know")
