# SPDX-License-Identifier: Apache-2.0
"""The operators of torch that a member of a team computes on parts and summands, and the numbers that it has in place of the
whole operator's.

That a division of an operator is right is the body's business (the table of splits). Here it is which operators of torch compute
on a part what they compute on the whole, as the ONNX operators do that they become. All others are refused by name.
"""

from __future__ import annotations

import torch

from agpcs._errors import UsageError
from agpcs._job.graph import argument, schema, where

# They compute on what they get, whatever extents that has: their arguments have none of the tensors' extents.
_AS_IT_IS = {f"aten::{name}" for name in """
    abs add add_ addmm alias argmax baddbmm batch_norm bmm cat ceil clamp clone contiguous copy cos detach
    div dropout einsum elu eq erf exp expm1 feature_dropout flatten floor gelu ge gt hardsigmoid hardswish hardtanh layer_norm le
    leaky_relu lift_fresh_copy linear log log1p log_softmax logical_and logical_not logical_or lt masked_fill matmul
    maximum minimum mish mm movedim mul ne neg one_hot permute pow prelu reciprocal relu relu6 rms_norm rsqrt rsub selu sigmoid sign silu
    sin softmax softplus sqrt square sub t tanh to transpose type_as unsqueeze where _to_copy _softmax _log_softmax amax amin sum
    cumsum""".split()}
# Along these axes, no tensor of theirs is divided by any split.
_ALONG = {"aten::softmax": "dim", "aten::_softmax": "dim", "aten::log_softmax": "dim", "aten::_log_softmax": "dim",
          "aten::cumsum": "dim", "aten::argmax": "dim"}


class Call:
    """A call of a node's operator by a member. `operands` has the forms of its arguments that are nodes, by node, None for what
    is whole; `results` the form of each tensor that it gives."""

    def __init__(self, node, arguments, options, operands, results, operators, member):
        self.node, self.target, self.arguments, self.options = node, node.target, list(arguments), dict(options)
        self.results, self.operators, self.member, self._operands = results, operators, member, operands

    def given(self, name):
        """An argument of the whole operator."""
        return argument(self.node, name)

    def form(self, name):
        """The form of an argument; None: it is whole, or absent."""
        given = self.given(name)
        return self._operands.get(given) if isinstance(given, torch.fx.Node) else None

    def put(self, name, value):
        """Gives an argument another value."""
        for i, one in enumerate(schema(self.node).arguments):
            if one.name == name and i < len(self.arguments):
                self.arguments[i] = value
                return
        self.options[name] = value

    def axis_of(self, name):
        """The axis along which an argument is in parts; None: it is not."""
        form = self.form(name)
        return form.lying.axis if form is not None and form.lying.kind == "part" else None

    def extents(self, form):
        """(the whole extent of the axis along which a form is in parts, the member's)."""
        return sum(map(form.lying.extent, range(len(form.lying.ranges)))), form.lying.extent(self.member)

    def refuse(self, why):
        raise UsageError(f"{where(self.node)}: a member of a team does not compute {why} in torch\n"
                         "  hint: a layout without a team for this part of the module")


def member_call(call):
    """Gives a Call the arguments of the member. Refuses, by name, what it does not know."""
    name = schema(call.node).name if schema(call.node) is not None else str(call.node.target)
    rule = _RULES.get(name)
    if rule is not None:
        rule(call)
    elif name not in _AS_IT_IS:
        call.refuse(f"parts of {name.replace('::', '.')}")
    if name in _ALONG:
        rank, axis, along = call.given("self").meta["val"].dim(), call.axis_of("self"), call.given(_ALONG[name])
        if axis is not None and (along is None or axis == along % rank):
            call.refuse("an operator along the axis that is divided")


def _sized(call):
    """One that is told the extents of what it gives."""
    result = call.results[0]
    if result is None or result.lying.kind != "part":
        return
    name = "size" if any(one.name == "size" for one in schema(call.node).arguments) else "shape"
    sizes = list(call.given(name))
    axis = result.lying.axis
    if sizes[axis] != -1:
        sizes[axis] = result.lying.extent(call.member)
    call.put(name, sizes)


def _unflatten(call):
    result = call.results[0]
    if result is None or result.lying.kind != "part":
        return
    sizes, rank = list(call.given("sizes")), call.given("self").meta["val"].dim()
    axis = result.lying.axis - call.given("dim") % rank
    if 0 <= axis < len(sizes) and sizes[axis] != -1:
        sizes[axis] = result.lying.extent(call.member)
    call.put("sizes", sizes)


def _split(call):
    """A split of the divided axis into tensors of which the member has a part each."""
    whole = call.given("self")
    dim = call.given("dim") % whole.meta["val"].dim()
    if call.axis_of("self") != dim:
        return
    if any(result is None or result.lying.kind != "part" for result in call.results):
        call.refuse("a split of the divided axis of which parts are not parts of each")
    sizes = [result.lying.extent(call.member) for result in call.results]
    call.target = torch.ops.aten.split_with_sizes.default
    call.arguments, call.options = [call.arguments[0], sizes, dim], {}


def _unbind(call):
    if call.axis_of("self") == call.given("dim") % call.given("self").meta["val"].dim():
        call.refuse("single elements of the divided axis")


def _select(call):
    """An element of the divided axis: the member that has it gives it, the others zeros."""
    dim = call.given("dim") % call.given("self").meta["val"].dim()
    if call.axis_of("self") != dim:
        return
    if call.results[0] is None or call.results[0].lying.kind != "sum":
        call.refuse("single elements of the divided axis that are no summands")
    form = call.form("self")
    whole, _ = call.extents(form)
    index, own, at = call.given("index") % whole, None, 0
    for begin, end in form.lying.ranges[call.member]:
        if begin <= index < end:
            own = at + index - begin
        at += end - begin
    call.target, call.arguments, call.options = _element_of_part, [call.arguments[0], dim, own], {}


def _element_of_part(x, dim, own):
    """The element `own` of the part; None: another member has it."""
    if own is not None:
        return x.select(dim, own)
    other = x.select(dim, 0)  # gets a gradient of zeros
    return torch.where(torch.zeros((), dtype=torch.bool, device=x.device), other, 0)


def _slice(call):
    whole = call.given("self").meta["val"]
    dim = call.given("dim") % whole.dim()
    if call.axis_of("self") != dim:
        return
    all_of_it = (call.given("start") in (None, 0) and (call.given("end") is None or call.given("end") >= whole.shape[dim])
                 and call.given("step") in (None, 1))
    if not all_of_it:
        call.refuse("some elements of the divided axis")


def _squeeze(call):
    dims = call.given("dim")
    if dims is None:
        call.refuse("a squeeze without an axis")
    whole = call.given("self").meta["val"]
    if call.axis_of("self") in [dim % whole.dim() for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]:
        call.refuse("a squeeze of the divided axis")


def _mean(call):
    for operator in call.operators:
        if "mean" in operator:
            call.factor = operator["mean"][call.member]


def _conv(call):
    """Groups go to members as channels do."""
    of_input = call.form("input")
    if call.given("groups") == 1 or of_input is None or of_input.lying.kind != "part":
        return
    whole, own = call.extents(of_input)
    if call.given("groups") * own % whole:
        call.refuse("parts of a group of channels")
    call.put("groups", call.given("groups") * own // whole)


def _of_images(call):
    """Images are whole at each member."""
    axis = call.axis_of("self" if any(one.name == "self" for one in schema(call.node).arguments) else "input")
    if axis is not None and axis > 1:
        call.refuse("a part of an image")


def _attention(call):
    """Members have heads or queries. Which keys a query sees in a causal attention depends on its place among all."""
    rank = call.given("query").meta["val"].dim()
    for name in ("query", "key", "value"):
        axis = call.axis_of(name)
        if axis == rank - 1 and name != "value" or name != "query" and axis == rank - 2:
            call.refuse("an attention whose scores are not whole")
    for name in ("query", "key", "value"):
        if call.form(name) is not None and call.form(name).lying.kind == "sum" and name != "value":
            call.refuse("an attention of summands")
    if call.axis_of("query") == rank - 2 and call.given("is_causal"):
        call.target = _some_causal_queries
        call.arguments = [*call.arguments[:3], call.form("query").lying.ranges[call.member],
                          call.given("scale"), call.given("enable_gqa")]
        call.options = {}


def _some_causal_queries(query, key, value, places, scale, grouped):
    """`places` has the [begin, end) ranges of the queries' places. The query of place i sees the keys of places 0 to i."""
    places = torch.cat([torch.arange(begin, end, device=query.device) for begin, end in places])
    visible = places.unsqueeze(-1) >= torch.arange(key.shape[-2], device=query.device)
    options = {"enable_gqa": True} if grouped else {}  # PyTorch before 2.5 does not know it
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, visible, scale=scale, **options)


def _embedding(call):
    """Of a table in parts by rows, the rows of others are 0."""
    if call.axis_of("weight") != 0:
        return
    if call.given("scale_grad_by_freq") or call.given("sparse"):
        call.refuse("a part of a table with scale_grad_by_freq or sparse gradients")
    begin, end = next(operator["units"] for operator in call.operators if "units" in operator)[call.member]
    weight, indices = call.arguments[:2]
    call.target, call.options = _rows_of_part, {}
    call.arguments = [weight, indices, begin, end, call.given("padding_idx")]


def _rows_of_part(weight, indices, begin, end, padding):
    own = (indices >= begin) & (indices < end)
    local = torch.where(own, indices - begin, 0)
    padding = padding - begin if begin <= padding < end else -1
    found = torch.nn.functional.embedding(local, weight, padding if padding >= 0 else None)
    return torch.where(own.unsqueeze(-1), found, 0)


_RULES = {
    **dict.fromkeys(("aten::reshape", "aten::view", "aten::_unsafe_view", "aten::expand"), _sized),
    **dict.fromkeys(("aten::split", "aten::chunk", "aten::split_with_sizes"), _split),
    **dict.fromkeys(("aten::conv1d", "aten::conv2d", "aten::conv3d"), _conv),
    **dict.fromkeys((f"aten::{name}" for name in ("avg_pool2d", "adaptive_avg_pool2d", "max_pool2d", "upsample_nearest2d",
                                                  "upsample_bilinear2d")), _of_images),
    "aten::squeeze": _squeeze, "aten::unflatten": _unflatten, "aten::unbind": _unbind,
    "aten::select": _select, "aten::slice": _slice, "aten::mean": _mean,
    "aten::scaled_dot_product_attention": _attention, "aten::embedding": _embedding,
}


def keeps_shape(node):
    """Whether a node that is told extents gives what it gets."""
    rule = _RULES.get(schema(node).name if schema(node) is not None else "")
    source = next(iter(node.all_input_nodes), None)
    return (rule in (_sized, _unflatten) and isinstance(source.meta.get("val"), torch.Tensor)
            and tuple(source.meta["val"].shape) == tuple(node.meta["val"].shape))
