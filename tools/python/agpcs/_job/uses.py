# SPDX-License-Identifier: Apache-2.0
"""Where the passes of a stage of agpcs.torch.Job use the parameters that ranks divide.

A forward pass needs a bucket before the first node that reads one of its parameters, or a view of one, and releases it after the
last. Before autograd goes back through such a node, the backward pass needs the bucket.
"""

from __future__ import annotations

import collections

import torch
from torch.utils import _pytree

from agpcs._job.graph import is_region, is_view, schema, stops_gradients
from agpcs._job.split import NODE


class Uses:
    """Of a Stage's `module`. `buckets` are its GatheredBuckets. `passing` is told of uses: `need(name)`, `release(name)`, and
    `await_back(name, tensor)` of a tensor through whose gradient autograd comes to a use."""

    def __init__(self, module, buckets, passing):
        self._passing = passing
        of = {id(parameter): bucket.name for bucket in buckets for parameter in bucket.parameters}
        lying = {}  # by node: the names of the buckets in whose memory its value may lie
        self._reads = {}  # by name of a node that computes: the names of the buckets that it reads
        self._views = set()  # those whose values may lie there
        self.late = set()  #: buckets of which something is read that their gradients do not tell of
        last = {}
        for node in module.graph.nodes:
            if node.op == "get_attr":
                name = of.get(id(getattr(module, node.target, None)))
                lying[node] = () if name is None else (name,)
                continue
            reads = tuple(dict.fromkeys(name for source in node.all_input_nodes for name in lying.get(source, ())))
            if node.op == "output":
                last = {name: number for name, number in last.items() if name not in reads}  # they last until the pass ends
            if not reads or node.op != "call_function":
                continue
            number = node.meta[NODE]
            self._reads[number] = reads
            for name in reads:
                last[name] = number
            if _may_be_view(node):
                lying[node] = reads
                self._views.add(number)
                if is_region(node) or stops_gradients(node):
                    self.late.update(reads)
        self._last = collections.defaultdict(list)
        for name, number in last.items():
            self._last[number].append(name)

    def of(self, part):
        """The names of the buckets that the nodes of `part`, a part of the module, read; in their order."""
        found = (name for node in part.graph.nodes for name in self._reads.get(node.meta.get(NODE), ()))
        return tuple(dict.fromkeys(found))

    def told(self, part):
        """What computes `part`, a part of the module, and tells of uses."""
        def need(*names):  # torch.fx wants functions
            for name in names:
                self._passing.need(name)

        def release(*names):
            for name in names:
                self._passing.release(name)

        def await_back(value, *names):
            self._await_back(value, names)

        graph = torch.fx.Graph()
        copies = {}
        for node in part.graph.nodes:
            number = node.meta.get(NODE) if node.op == "call_function" else None
            reads = self._reads.get(number, ())
            if reads:
                graph.call_function(need, reads)
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if reads and number not in self._views:
                graph.call_function(await_back, (copies[node], *reads))
            if number in self._last:
                graph.call_function(release, tuple(self._last[number]))
        return torch.fx.GraphModule(part, graph, type(part).__name__)

    def told_around(self, part, compute):
        """What computes `part` by `compute`, which tells of no uses: all of them last as long as it does."""
        reads = self.of(part)
        over = [name for node in part.graph.nodes if node.op == "call_function" for name in self._last.get(node.meta.get(NODE), ())]

        def computed(*arguments):
            for name in reads:
                self._passing.need(name)
            values = compute(*arguments)
            self._await_back(values, reads)
            for name in over:
                self._passing.release(name)
            return values

        return computed

    def _await_back(self, values, names):
        for tensor in _pytree.tree_leaves(values):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad and not tensor.is_leaf:
                self._passing.await_back(tensor, names)


# These give what they read where there is nothing to compute, though their schemas do not say so.
_SOMETIMES_VIEWS = frozenset(f"aten::{name}" for name in (
    "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "chain_matmul", "einsum", "meshgrid", "sum_to_size", "type_as"))


def _may_be_view(node):
    """Whether what a node gives may lie in the memory of what it reads."""
    of_node = schema(node)
    return (is_region(node) or is_view(node)
            or of_node is not None and (of_node.name in _SOMETIMES_VIEWS or of_node.name.endswith("dropout")))
