# SPDX-License-Identifier: Apache-2.0
"""The graph of a module for agpcs.torch.Job: what torch.export makes of it, and the stage of each of its nodes.

The plan's operators are those of the ONNX file that was made of the same graph. All operators of one node lie in one
stage. A node without operators (what ONNX does not need: a dropout of 0, a cast to the same type) lies with the last of
its inputs. What depends neither on other stages nor on parameters alone, such as masks and extents, is free: each stage
that reads it computes it. A region without gradients is one node.
"""

from __future__ import annotations

import bisect
import collections
import itertools
import operator
import re
import warnings

import torch

from agpcs._errors import PlanMismatch, UsageError

# Arguments that a node of these changes though its schema does not say so: running statistics, if the batch's are used.
_STATISTICS = {"aten::batch_norm": (3, 4), "aten::instance_norm": (3, 4)}
_CHECKS = {"aten::_assert_async", "aten::_assert_scalar", "aten::_assert_tensor_metadata",
           "aten::sym_constrain_range", "aten::sym_constrain_range_for_size"}


def where(node):
    """Names a node for messages: its operator, its module and its line, as far as they are known."""
    modules = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    text = f"'{node.name}' ({getattr(node.target, '__name__', node.target)})"
    if modules:
        text += f" in {modules[-1].replace('L__self___', '').replace('getattr_', '')}"
    if lines:
        text += " ({}:{})".format(lines[-1][0].rpartition("/")[2], lines[-1][1])
    return text


def extent(value):
    """(fixed, per sample) of a whole number of the graph, or None if it is not of that form."""
    if isinstance(value, int):
        return value, 0
    expression = value.node.expr
    if any(symbol.name.startswith("u") for symbol in expression.free_symbols):
        return None  # it depends on the data

    def at(samples):
        return expression.subs(dict.fromkeys(expression.free_symbols, samples))

    per_sample = at(3) - at(2)
    fixed = at(2) - 2 * per_sample
    if not all(at(n) == fixed + n * per_sample for n in (1, 7, 16)):
        return None
    return int(fixed), int(per_sample)


def extents(node):
    """The extents of a node's tensor, each as `extent` has them. Refuses those that depend on data."""
    value = node.meta["val"]
    found = [extent(size) for size in (value[0] if isinstance(value, (tuple, list)) else value).shape]
    if None in found:
        raise UsageError(f"{where(node)} has an extent that is not a number plus a multiple of the samples\n"
                         "  hint: a pipeline's micro-batches need extents that follow the number of samples")
    return found


def batched(node):
    """Whether axis 0 of a node's tensor is the sample."""
    return node.meta["val"].dim() > 0 and extents(node)[0] == (0, 1)


def is_number(node):
    """Whether a node is shape arithmetic: it gives no tensor."""
    return node.op == "call_function" and isinstance(
        node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def schema(node):
    """The schema of a node's operator, or None."""
    return getattr(node.target, "_schema", None)


def argument(node, name):
    """An argument by its name in the schema; None where there is none."""
    for i, one in enumerate(schema(node).arguments):
        if one.name == name:
            return node.kwargs.get(name, node.args[i] if i < len(node.args) else one.default_value)
    return None


def _is_random(node):
    if schema(node) is None:
        return False
    asked = (argument(node, name) for name in ("dropout_p", "p", "dropout"))  # the last is a recurrent network's
    probability = next((p for p in asked if p is not None), None)
    if schema(node).name == "aten::dropout":
        return bool(probability) and bool(argument(node, "train"))
    return torch.Tag.nondeterministic_seeded in node.target.tags and probability != 0


def _changed(node):
    """The nodes whose values a node changes."""
    of_node = schema(node)
    if of_node is None:
        return []
    if of_node.name in _STATISTICS:
        training = argument(node, "training") or argument(node, "use_input_stats")
        return [node.args[i] for i in _STATISTICS[of_node.name] if training and isinstance(node.args[i], torch.fx.Node)]
    return [argument(node, a.name) for a in of_node.arguments if a.alias_info is not None and a.alias_info.is_write]


def is_region(node):
    """Whether a node computes a graph of its own without gradients."""
    return (isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() == "wrap_with_set_grad_enabled"
            and node.args[0] is False)


def stops_gradients(node):
    return is_region(node) or schema(node) is not None and schema(node).name == "aten::detach"


def _is_check(node):
    return schema(node) is not None and schema(node).name in _CHECKS


def is_view(node):
    of_node = schema(node)
    return node.target is operator.getitem or of_node is not None and any(
        value.alias_info is not None and not value.alias_info.is_write for value in of_node.returns)


def origin_of(origins, output):
    """The name of the node that makes an operator's output; part 1 of the sequence 'split' is 'split/1'."""
    return origins.get(output) or origins.get(output.rpartition("/")[0])


class Graph:
    """The nodes of torch.export's program by stage. It changes the program's graph. `drawing_of(node)` says what is computed in
    the place of a node that draws random numbers; None: these nodes are, with a warning."""

    def __init__(self, module, program, drawing_of=None):
        self.nodes = program.graph.nodes
        self.program = program
        signature = program.graph_signature
        first = {}
        for name, value in module.named_parameters(remove_duplicate=False):
            first.setdefault(id(value), name)
        self.parameters = {place: first[id(module.get_parameter(name))]  # by placeholder: the module's first name
                           for place, name in signature.inputs_to_parameters.items()}
        self.buffers = dict(signature.inputs_to_buffers)
        self.constants = dict(signature.inputs_to_lifted_tensor_constants)
        self.module = module
        names = {node.name: node for node in self.nodes if node.op == "placeholder"}
        self.random = set()  # nodes that draw random numbers
        self.drawings = {}  # by node: what is computed in its place
        self.inputs = [names.get(name) if isinstance(name, str) else None for name in signature.user_inputs]
        self.output = next(node for node in self.nodes if node.op == "output")
        if len(signature.user_outputs) != len(self.output.args[0]):
            raise UsageError("the module's graph has outputs besides the module's, which agpcs.torch.Job does not know")
        self._refuse_what_is_unknown(drawing_of is not None)
        self.changed = {}  # placeholder of a buffer -> the node that changes it
        self._make_functional()
        if drawing_of is not None:
            self.drawings = {node: drawing_of(node) for node in self.nodes if node in self.random}
        self.differentiable = self._differentiable()
        self.of_samples = {node for node in self.inputs if node is not None and batched(node)}  # what depends on samples
        for node in self.nodes:
            if not is_number(node) and any(source in self.of_samples for source in self._sources(node)):
                self.of_samples.add(node)
        self.types = {}  # of tensors, where they are other ones than in the graph
        self.stage = {}  # by node; None: free
        self.segment = {}  # by name of a node that has operators, in its stage
        self.loss_stage = 0

    def _refuse_what_is_unknown(self, replaces):
        for node in self.nodes:
            if node.op == "placeholder" and node.name in self.program.graph_signature.inputs_to_lifted_custom_objs:
                raise UsageError(f"{where(node)} is an object that is no tensor, which agpcs.torch.Job does not split")
            for part in (node, *self._within(node)):
                if isinstance(part.target, torch._ops.HigherOrderOperator) and not (part is node and is_region(node)):
                    raise UsageError(f"{where(part)} is a graph within the graph (control flow), which agpcs.torch.Job does "
                                     "not split")
                if part is not node and part.op == "call_function" and _changed(part):
                    raise UsageError(f"{where(part)} changes a tensor in place in a region without gradients, which "
                                     "agpcs.torch.Job does not follow\n  hint: write it without the change in place")
                if part.op == "call_function" and _is_random(part):
                    self.random.add(node)
                    self._tell_of_random(node, part, replaces)

    def _tell_of_random(self, node, part, replaces):
        """Warns of `part` of a node, which draws random numbers, unless it is replaced."""
        if not replaces:
            warnings.warn(f"{where(part)} draws random numbers: other ones than one process, and other ones in each replica if "
                          "their seeds differ\n  hint: Job(..., dropout=\"by-sample\"), or a dropout of 0, makes steps those of "
                          "one process", stacklevel=5)
        elif part is not node:
            raise UsageError(f"{where(part)} draws random numbers in a region without gradients, where dropout=\"by-sample\" "
                             "replaces nothing\n  hint: draw them outside of torch.no_grad")

    def _within(self, node):
        """The nodes of a region. It loses its checks, which fail within an autocast that is not the module's."""
        if not is_region(node):
            return []
        region = self._region(node)
        for inner in list(region.graph.nodes):
            if inner.op == "call_function" and _is_check(inner):
                region.graph.erase_node(inner)
        region.recompile()
        return list(region.graph.nodes)

    def _region(self, node):
        """The graph of a region, as a module."""
        return self.program.graph_module.get_submodule(node.args[1].target)

    def _sources(self, node):
        """What a node reads; a part of what a region gives: what this part depends on."""
        if node.target is not operator.getitem or not is_region(node.args[0]):
            return node.all_input_nodes
        inner = self._region(node.args[0]).graph
        places = dict(zip(inner.find_nodes(op="placeholder"), node.args[0].args[2:]))
        found, more = set(), [inner.output_node().args[0][node.args[1]]]
        while more:
            one = more.pop()
            if one not in found:
                found.add(one)
                more += one.all_input_nodes
        return [places[one] for one in found if one in places]

    def _make_functional(self):
        """Lets nodes that change a value give a new one instead, so that a value is the same in all stages."""
        order = {node: i for i, node in enumerate(self.nodes)}
        for node in list(self.nodes):
            for changed in _changed(node) if node.op == "call_function" else ():
                if changed.op == "placeholder" and changed.name in self.buffers:
                    self.changed[changed] = node
                else:
                    self._replace(node, changed, order)

    def _replace(self, node, changed, order):
        aliases, more = {changed}, [changed]
        while more:
            one = more.pop()
            near = [user for user in one.users if is_view(user)] + (list(one.all_input_nodes) if is_view(one) else [])
            more += [other for other in near if other not in aliases]
            aliases.update(near)
        late = [other for other in aliases - {changed, node} if any(order[user] > order[node] for user in other.users)]
        packet, _, overload = str(node.target).removeprefix("aten.").partition(".")
        functional = getattr(getattr(torch.ops.aten, packet.removesuffix("_"), None), overload, None)
        types = {other.meta["val"].dtype for other in node.all_input_nodes if isinstance(other.meta["val"], torch.Tensor)}
        if late or functional is None or len(types) > 1 or any(other.op == "placeholder" for other in aliases):
            raise UsageError(f"{where(node)} changes a tensor in place that has other names, which agpcs.torch.Job does "
                             "not follow\n  hint: write it without the change in place")
        node.target = functional
        changed.replace_all_uses_with(node, delete_user_cb=lambda user: order[user] > order[node])

    def _differentiable(self):
        """The nodes to which gradients may flow: floating ones that depend on a parameter that trains."""
        found = set()
        for node in self.nodes:
            if node.op == "placeholder":
                trains = node.name in self.parameters and self.module.get_parameter(self.parameters[node.name]).requires_grad
            else:
                trains = not stops_gradients(node) and any(source in found for source in node.all_input_nodes)
            value = node.meta.get("val")
            tensors = value if isinstance(value, (list, tuple)) else [value]
            if trains and any(isinstance(t, torch.Tensor) and t.dtype.is_floating_point for t in tensors):
                found.add(node)
        return found

    def take_types(self, autocast):
        """Sets the types that the nodes' tensors have within `autocast`, a context: the graph was made without it."""
        types = self.types

        class Typed(torch.fx.Interpreter):
            def run_node(self, node):
                if _is_check(node):
                    return None  # types may be checked
                value = super().run_node(node)
                if isinstance(value, torch.Tensor):
                    types[node] = value.dtype
                return value

        examples = [node.meta["val"] for node in self.nodes if node.op == "placeholder"]
        mode = next(value.fake_mode for value in examples if isinstance(value, torch.Tensor))
        with mode, torch.no_grad(), autocast:
            Typed(self.program.graph_module).run(*examples)

    def place(self, origins, operators, stages):
        """Sets the stage of each node. `operators` are the plan's, `stages` the names of stages, in order."""
        placed = self._placed(origins, operators, stages)
        self.stage.clear()
        waiting = []  # nodes that change a buffer and read nothing else: with the next node that has operators
        for node in self.nodes:
            if node.op != "call_function" or is_number(node):
                continue
            if _is_check(node):
                self.stage[node] = None  # nobody reads it, so no stage gets it
                continue
            before = [self.stage[source] for source in node.all_input_nodes if self.stage.get(source) is not None]
            stage = placed.get(node.name, max(before, default=None))
            if stage is not None and max(before, default=0) > stage:
                raise PlanMismatch(f"{where(node)} is in stage {stages[stage]} of the plan, and reads what stage "
                                   f"{stages[max(before)]} computes")
            if stage is None and node in self.random and node not in self.drawings:
                raise UsageError(f"{where(node)} draws random numbers that are in no stage of the plan")
            self.stage[node] = stage
            if stage is None and node in self.changed.values():
                waiting.append(node)
            elif stage is not None:
                self.stage.update(dict.fromkeys(waiting, stage))
                waiting.clear()
        self.stage.update(dict.fromkeys(waiting, self.loss_stage))

    def take_segments(self, origins, operators, stages):
        """Sets the segment of each node that has operators. `stages` are the plan's, as its JSON has them; the operators after
        their recomputed segments are one segment more. A node whose operators lie in several is in the last one."""
        ends = {stage["name"]: list(itertools.accumulate(stage.get("segments", ()))) for stage in stages}
        before = collections.Counter()
        self.segment.clear()
        for op in operators:
            number = bisect.bisect_right(ends[op["stage"]], before[op["stage"]])
            before[op["stage"]] += 1
            for name in {origin_of(origins, output) for output in op["outputs"]}:
                self.segment[name] = max(number, self.segment.get(name, 0))

    def _placed(self, origins, operators, stages):
        """The stage of each node that has operators, by name. Operators of the loss come last, and are of no node."""
        names = {node.name for node in self.nodes}
        found = [{origin_of(origins, output) for output in op["outputs"]} & names for op in operators]
        known = [i for i, of_node in enumerate(found) if of_node]
        if not known:
            raise PlanMismatch("no operator of the plan leads back to a node of the module's graph")
        placed, by = {}, {}
        for op, of_node in zip(operators[:known[-1] + 1], found):
            stage = stages.index(op["stage"])
            if not of_node:
                raise PlanMismatch(f"the plan's operator '{op['name']}' does not lead back to a node of the module's graph")
            for name in of_node:
                if placed.setdefault(name, stage) != stage:
                    node = next(node for node in self.nodes if node.name == name)
                    raise PlanMismatch(
                        f"the plan cuts inside {where(node)}: its operator '{by[name]}' is in {stages[placed[name]]}, "
                        f"'{op['name']}' in {op['stage']}\n"
                        "  hint: agpcs.torch.Job cuts between the nodes of torch.export's graph, as do plans of what "
                        "agpcs.torch.export writes; plan that")
                by.setdefault(name, op["name"])
        loss = {op["stage"] for op in operators[known[-1] + 1:]}
        if loss != {stages[-1]}:
            raise PlanMismatch(f"the plan computes the loss in {', '.join(sorted(loss)) or 'no operator'}; agpcs.torch.Job "
                               f"computes it in the last stage, {stages[-1]}")
        self.loss_stage = len(stages) - 1
        return placed
