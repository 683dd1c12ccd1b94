# SPDX-License-Identifier: Apache-2.0
"""The part of a stage that a member of a team computes: the nodes of the stage's graph on what the member has of their tensors, and
between them the exchanges of the plan's body.

The ONNX operators of a node are a block: they read and leave tensors in forms that the body says, and so does the node. Inside
of a block, tensors lie as the operators leave them, or the node is taken apart, or the plan refused. A node without operators
of its own is computed for each block that reads it, on what that reads.
"""

from __future__ import annotations

import operator

import torch

from agpcs._errors import PlanMismatch, UsageError
from agpcs._job.graph import argument, extents, is_number, origin_of, schema, where
from agpcs._job.teams.exchange import COPY, Exchange, ParameterForm
from agpcs._job.teams.member_ops import Call, keeps_shape, member_call
from agpcs._job.teams.team import Form


class _Block:
    """The operators of a node: what they read of others, and what others read of them."""

    def __init__(self, name):
        self.name, self.operators, self.made, self.reads = name, [], {}, {}

    def add(self, one, body):
        self.operators.append(one)
        for i, number in enumerate(one["inputs"]):
            if number is not None and (one["type"], i) != ("CastLike", 1):  # of which only the type counts
                self.reads.setdefault(body.forms[number].tensor, set()).add(body.variable[number])
        for number in one["outputs"]:
            if number is not None:
                self.made[body.forms[number].tensor] = number

    def inner(self):
        """The tensors that it makes and reads."""
        return [tensor for tensor in self.reads if tensor in self.made]


class Member:
    """Builds the module of one member of `team`, of stage `s` of a Graph, whose nodes are `nodes`; `hold(root, node)` puts a
    parameter, buffer or constant into a module."""

    def __init__(self, graph, s, nodes, team, hold):
        self._graph, self._s, self._team, self._body, self._hold = graph, s, team, team.body, hold
        self._root, self._result = torch.nn.Module(), torch.fx.Graph()
        self._nodes = nodes
        self._known = {}  # by variable: its node in the result
        self._inner = set()  # tensors inside of nodes that are taken apart
        self._whole = {}  # by node of the graph: what is there whole
        self._of_block = {}  # by (node without operators, block): (its node in the result, whether it is divided)
        self._forms = {}  # by node of the result: the Form, for a check of shapes; None: nobody knows
        self._wanted = {}  # by node of the result: (node, form) whose shape it has to have
        names = {node.name for node in graph.nodes}
        self._by_origin = {}  # by name of a node: the body's tensors of its operators
        for tensor in self._body.of_tensor:
            self._by_origin.setdefault(origin_of(team.origins, tensor), []).append(tensor)
        self._blocks = {}  # by name of a node
        for one in self._body.operators:
            made = [self._body.forms[number].tensor for number in one["outputs"] if number is not None]
            name = next((origin for origin in (origin_of(team.origins, tensor) for tensor in made) if origin in names), None)
            if name is not None:
                self._blocks.setdefault(name, _Block(name)).add(one, self._body)
        self._inputs = {node: name for node, name in zip(graph.inputs, team.inputs) if node is not None}

    def module(self, inputs, received, sent, outputs, name, extent_of, linear):
        """The module, of the number of samples, rows of masks, inputs and received values; gives (sent values, outputs)."""
        graph = self._graph
        self._samples = self._result.placeholder("samples")
        self._extent_of, self._linear = extent_of, linear
        drawn = [node for node in self._nodes if node in graph.drawings]
        self._masks = (self._result.placeholder("masks"), drawn) if drawn else None
        for node in [graph.inputs[i] for i in inputs] + received:
            self._whole[node] = self._result.placeholder(node.name)
        for node in self._nodes:
            if node.name in self._blocks and node not in self._whole:
                self._compute(node)
            elif node in graph.changed.values() and node not in self._whole:
                self._value(node, None)  # nobody reads it
        given = tuple(self._value(node, None) for node in sent)
        self._result.output((given, torch.fx.map_arg(outputs, lambda node: self._value(node, None))))
        module = torch.fx.GraphModule(self._root, self._result, name)
        _Shapes(module, self._wanted, self._team).check(graph, [graph.inputs[i] for i in inputs] + received, drawn)
        return module

    # -- tensors

    def _tensor_of(self, node):
        """The name of the body's tensor that a node's value is, or None."""
        if node.op == "placeholder":
            return (self._graph.parameters.get(node.name) or self._graph.buffers.get(node.name) or self._inputs.get(node))
        if node.target is operator.getitem and node.args[0].name in self._blocks:
            made = self._results(node.args[0])
            return made[node.args[1]] if len(made) > node.args[1] else None
        if node.name in self._blocks and not _is_tuple(node):
            return self._results(node)[0]
        return self._received(node)

    def _received(self, node):
        """The tensor of a node of another stage, or of one that every stage computes, by which a body reads it."""
        found = self._by_origin.get(node.name, ())
        return found[0] if len(found) == 1 else None

    def _results(self, node):
        """The tensors that a node with operators gives, in order."""
        block = self._blocks[node.name]
        if _is_tuple(node):
            return [None if number is None else self._body.forms[number].tensor for number in block.operators[-1]["outputs"]]
        read = {tensor for other in self._blocks.values() if other is not block for tensor in other.reads if tensor in block.made}
        read = read or {self._body.forms[block.operators[-1]["outputs"][0]].tensor}
        if len(read) > 1:
            raise PlanMismatch(f"the plan reads {', '.join(sorted(read))} of {where(node)}, which gives one tensor")
        return list(read)

    def _value(self, node, block):
        """What `block` reads of a node; None: all of it, as a copy whose gradient is one."""
        tensor = self._tensor_of(node)
        if tensor in self._body.of_tensor:
            number = self._read_form(node, tensor, block)
            return self._copy(node, tensor) if number is None else self._made(node, number)
        if node.op in ("placeholder", "get_attr") or node in self._whole:
            return self._there(node)
        return self._without_operators(node, block)

    def _read_form(self, node, tensor, block):
        """The variable in which a block reads a tensor; None: as a copy."""
        if block is None:
            return None
        read = block.reads.get(tensor)
        if read is None:
            first = self._body.of_tensor[tensor]
            if len({self._body.variable[number] for number in first}) > 1:
                self._refuse(node, f"which '{block.name}' reads, and its ONNX operators do not")
            return self._body.variable[first[0]]
        if len(read) > 1:
            self._refuse(node, f"which '{block.name}' reads in several ways at once")
        return next(iter(read))

    def _refuse(self, node, why):
        raise UsageError(f"{where(node)}, {why}: agpcs.torch.Job does not divide it among a team as the plan does\n"
                         "  hint: a layout without a team for this part of the module")

    def _copy(self, node, tensor):
        """A tensor as it leaves a body, or as the loss reads it."""
        number = self._body.copy_of(tensor)
        if number is not None:
            return self._made(node, self._body.variable[number])
        base = next(number for number in self._body.of_tensor[tensor] if self._body.forms[number].source is None)
        key = ("copy", tensor)
        if key not in self._known:
            form = self._body.forms[base]
            whole = Form(tensor, form.kind, form.gradient, COPY, COPY, base)
            self._known[key] = self._exchanged(self._made(node, base), form, whole, f"{node.name}_copy")
            self._note(self._known[key], node, whole)
        return self._known[key]

    def _made(self, node, number):
        """The node of a form, which is made of another one where it is not there."""
        number = self._body.variable[number]
        if number in self._known:
            return self._known[number]
        form = self._body.forms[number]
        if form.source is None:
            self._known[number] = self._there_as(node, form, number)
        else:
            source = self._made(node, form.source)
            first = self._body.forms[form.source]
            if form.kind == "parameter" and number in self._body.step_end:
                self._team.forms[number] = ParameterForm(self._team.link, first, form)
                self._known[number] = self._called(self._team.forms[number], source, f"{node.name}_as_{number}")
            else:
                self._known[number] = self._exchanged(source, first, form, f"{node.name}_as_{number}")
        self._note(self._known[number], node, form)
        return self._known[number]

    def _there_as(self, node, form, number):
        """The first form of a tensor that no operator of the stage makes."""
        if form.kind == "activation" and any(form.tensor in block.made for block in self._blocks.values()):
            self._refuse(node, "which is read before it is computed")
        whole = self._there(node) if node.op in ("placeholder", "get_attr") or node in self._whole else (
            self._without_operators(node, None))
        held = self._team.held.get(form.tensor, COPY)
        if form.lying == held:
            return whole
        before = Form(form.tensor, form.kind, form.gradient, held, held, None)
        return self._exchanged(whole, before, form, f"{node.name}_as_{number}")

    def _exchanged(self, source, first, form, name):
        return self._called(Exchange(self._team.link, first, form), source, name)

    def _called(self, module, source, name):
        self._root.add_module(name, module)
        return self._result.call_module(name, (source,))

    def _there(self, node):
        """A tensor that is there before, as the member has it."""
        if node not in self._whole:
            if node.op == "get_attr":  # the graph of a region
                self._root.add_module(node.name, self._graph.program.graph_module.get_submodule(node.target))
            else:
                self._hold(self._root, node)
            self._whole[node] = self._result.get_attr(node.name)
        return self._whole[node]

    # -- nodes

    def _without_operators(self, node, block):
        """A node without operators of its own, as a block reads it."""
        if is_number(node) and self._linear(node):
            if node not in self._whole:
                self._whole[node] = self._result.call_function(self._extent_of, (self._samples, *self._linear(node)))
            return self._whole[node]
        if self._graph.stage.get(node) is None:
            block = None
        key = (node, None if block is None else block.name)
        if key not in self._of_block:
            arguments = {source: self._value(source, block) for source in node.all_input_nodes}
            divided = any(self._is_divided(copy) for copy in arguments.values())
            if divided and keeps_shape(node):
                self._of_block[key] = arguments[node.all_input_nodes[0]]
            else:
                self._of_block[key] = self._copied(node, arguments, (None,), ())
                self._forms[self._of_block[key]] = _UNKNOWN if divided else None
        return self._of_block[key]

    def _is_divided(self, copy):
        form = self._forms.get(copy)
        return form is _UNKNOWN or form is not None and form.divided

    def _compute(self, node):
        """Computes a node with operators."""
        block = self._blocks[node.name]
        made = [None if tensor is None else block.made.get(tensor) for tensor in self._results(node)]
        results = [None if number is None else self._body.forms[number] for number in made]
        apart = self._is_apart(node, block, results)
        arguments = {source: self._value(source, block) for source in node.all_input_nodes}
        self._check_attributed(node, block)
        copy = (self._taken_apart(node, arguments, block) if apart
                else self._copied(node, arguments, results, block.operators))
        if not _is_tuple(node):
            self._known[self._body.variable[made[0]]] = copy
            self._note(copy, node, results[0])
            return
        for i, (number, form) in enumerate(zip(made, results)):
            if number is not None:
                part = self._result.call_function(operator.getitem, (copy, i))
                self._known[self._body.variable[number]] = part
                self._forms[part] = form

    def _is_apart(self, node, block, results):
        """Whether members exchange a tensor inside of a node, so that it has to be taken apart."""
        given = {form.tensor for form in results if form is not None}
        for tensor in block.inner():
            variables = block.reads[tensor] | {self._body.variable[block.made[tensor]]}
            if tensor in given or len(variables) == 1:
                continue
            if schema(node).name != "aten::linear" or any(one["type"] not in _LINEAR for one in block.operators):
                self._refuse(node, f"among whose ONNX operators members exchange '{tensor}'")
            self._inner.update(one for one in block.inner() if one not in given)
            return True
        return False

    def _taken_apart(self, node, arguments, block):
        """A linear layer as its ONNX operators compute it: with the weight turned, multiplied, and the bias added."""
        x, weight, bias = (*(arguments.get(source) for source in node.args), None)[:3]
        for one in block.operators:
            given = {"Transpose": [weight], "MatMul": [x, None], "Add": [None, bias]}[one["type"]]
            for i, number in enumerate(one["inputs"]):
                if self._body.forms[number].tensor in block.made:
                    given[i] = self._made(node, number)
            if any(value is None for value in given):
                self._refuse(node, f"whose ONNX operator '{one['name']}' reads what torch's does not")
            copy = self._result.call_function(_LINEAR[one["type"]], tuple(given))
            self._known[self._body.variable[one["outputs"][0]]] = copy
            self._note(copy, node, self._body.forms[one["outputs"][0]])
        return copy

    def _check_attributed(self, node, block):
        """Refuses constants inside of a node of which members have unlike values: torch has no argument for them."""
        sources = {self._tensor_of(source) for source in self._all_sources(node, block)}
        sources |= self._zeros(node, block) | self._causal_masks(node, block)
        for tensor, read in block.reads.items():
            if tensor in block.made or tensor in sources:
                continue
            if any(self._body.forms[number].divided for number in read):
                self._refuse(node, f"of which '{tensor}' is divided inside")

    def _zeros(self, node, block):
        """The constants of a block that are 0: the exporter gives a convolution without a bias one."""
        if schema(node) is None or not schema(node).name.startswith("aten::conv") or argument(node, "bias") is not None:
            return set()
        return {self._body.forms[one["inputs"][2]].tensor for one in block.operators
                if one["type"] == "Conv" and len(one["inputs"]) > 2 and one["inputs"][2] is not None}

    def _causal_masks(self, node, block):
        """The masks that the exporter makes of `is_causal`: their rows are divided as queries are."""
        if schema(node) is None or schema(node).name != "aten::scaled_dot_product_attention" or not argument(node, "is_causal"):
            return set()
        return {self._body.forms[number].tensor for one in block.operators if one["type"] == "Attention"
                for number in one["inputs"][3:4] if number is not None}

    def _all_sources(self, node, block):
        """The nodes with tensors of their own that a block reads, also by nodes without operators."""
        found, more = set(), list(node.all_input_nodes)
        while more:
            one = more.pop()
            if one in found:
                continue
            found.add(one)
            if self._tensor_of(one) not in self._body.of_tensor:
                more += one.all_input_nodes
        return found

    def _copied(self, node, arguments, results, operators):
        """The node's operator on what the member has."""
        random = node in self._graph.random
        divided = any(self._is_divided(copy) for copy in arguments.values()) or any(
            form is not None and form.divided for form in results)
        if random and (divided or node not in self._graph.drawings):
            raise UsageError(f"{where(node)} draws random numbers, and members of a team would draw unlike ones\n"
                             "  hint: a dropout of 0" + ("" if divided else ", or Job(..., dropout=\"by-sample\")"))
        copy = self._result.node_copy(node, arguments.__getitem__)
        copy.meta = {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}
        if random:
            function, axis = self._graph.drawings[node]
            masks, drawn = self._masks
            with self._result.inserting_before(copy):
                rows = self._result.call_function(torch.select, (masks, 1, drawn.index(node)))
            copy.target, copy.args = function, (rows, axis, *copy.args)
        if not divided or node.op != "call_function" or node.target is operator.getitem:
            return copy
        operands = {source: self._forms.get(made) for source, made in arguments.items()}
        operands = {source: form for source, form in operands.items() if isinstance(form, Form)}
        call = Call(node, copy.args, copy.kwargs, operands, results, operators, self._team.member)
        call.factor = None
        member_call(call)
        copy.target = call.target
        copy.args, copy.kwargs = torch.fx.map_arg((tuple(call.arguments), call.options),
                                                  lambda one: arguments.get(one, one))
        return copy if call.factor is None else self._result.call_function(torch.mul, (copy, call.factor))

    def _note(self, copy, node, form):
        self._forms[copy] = form
        if isinstance(node.meta.get("val"), torch.Tensor) and form.tensor not in self._inner:
            self._wanted[copy] = (node, form)


# What a linear layer becomes in ONNX.
_LINEAR = {"Transpose": torch.ops.aten.t.default, "MatMul": torch.ops.aten.matmul.default, "Add": torch.ops.aten.add.Tensor}
_UNKNOWN = object()  # how a divided tensor lies that no operator of the body makes


def _is_tuple(node):
    return isinstance(node.meta.get("val"), (tuple, list))


class _Shapes(torch.fx.Interpreter):
    """Checks that a member's module computes tensors of the shapes that the body says, without computing."""

    SAMPLES = 3

    def __init__(self, module, wanted, team):
        super().__init__(module)
        self._wanted, self._team = wanted, team

    def check(self, graph, places, drawn):
        from torch._subclasses import FakeTensorMode
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
            given = [torch.empty([fixed + per * self.SAMPLES for fixed, per in extents(node)], dtype=node.meta["val"].dtype)
                     if isinstance(node.meta["val"], torch.Tensor) else node.meta["val"] for node in places]
            masks = [torch.empty(self.SAMPLES + 1, len(drawn), 2, dtype=torch.int64)] if drawn else []
            self._held = {}
            self._mode = mode
            self._team.link.only_shapes = True
            try:
                self.run(self.SAMPLES, *masks, *given)
            finally:
                self._team.link.only_shapes = False

    def get_attr(self, target, args, kwargs):
        value = super().get_attr(target, args, kwargs)
        if not isinstance(value, torch.Tensor):
            return value
        dims = list(value.shape)
        node = next(node for node in self.module.graph.nodes if node.op == "get_attr" and node.target == target)
        of_graph, form = self._wanted.get(node, (None, None))
        if form is not None and form.tensor in self._team.held:
            dims = self._team.held[form.tensor].dims(self._team.member, [fixed for fixed, _ in extents(of_graph)])
        return torch.empty(dims, dtype=value.dtype)

    def run_node(self, node):
        value = super().run_node(node)
        if node in self._wanted and isinstance(value, torch.Tensor):
            of_graph, form = self._wanted[node]
            dims = form.lying.dims(self._team.member, [fixed + per * self.SAMPLES for fixed, per in extents(of_graph)])
            if list(value.shape) != dims:
                raise PlanMismatch(
                    f"{where(of_graph)}: member {self._team.member} of the plan's team has a tensor of shape "
                    f"{'x'.join(map(str, dims))} of it, and computes one of shape {'x'.join(map(str, value.shape))}\n"
                    "  hint: a layout without a team for this part of the module, and a report of the module")
        return value
