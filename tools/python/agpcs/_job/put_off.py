# SPDX-License-Identifier: Apache-2.0
"""Products of a stage's module whose weights get their gradients in a weight pass of their own.

In the input pass, autograd goes back through such a product as through any operator, but gives its weight nothing. What the
weight's gradient is made of is kept until the weight pass: the product's other factor, and its gradient. Every other
parameter has its gradient after the input pass already.
"""

from __future__ import annotations

import collections
import operator

import torch

_aten = torch.ops.aten


class PutOff:
    """Computes the `module` of a Stage, which is a GraphModule. `products` is the list to which a forward pass adds what it puts
    off; it belongs to a micro-batch."""

    def __init__(self, module):
        self.products = None
        graph, copies, root = torch.fx.Graph(), {}, {}
        for node in module.graph.nodes:
            kind = _kind(node)
            if kind is None:
                copies[node] = graph.node_copy(node, copies.__getitem__)
                if node.op in ("get_attr", "call_module"):
                    root[node.target] = operator.attrgetter(node.target)(module)
                continue
            target = f"agpcs_product_{len(root)}"
            root[target] = _Product(kind, self)
            arguments = torch.fx.map_arg((node.args, node.kwargs), copies.__getitem__)
            copies[node] = graph.call_module(target, *arguments)
        self._compute = torch.fx.GraphModule(root, graph, type(module).__name__)

    def __call__(self, *arguments):
        return self._compute(*arguments)


def weights(products):
    """Those that `finish` gives gradients, each once."""
    return {product.weight for product in products if product.gradient is not None}


def finish(products):
    """Gives the weights their gradients, in the order in which the input pass went back. One of several products gets one."""
    left = collections.Counter(id(product.weight) for product in products if product.gradient is not None)
    sums = {}
    while products:
        product = products.pop()
        if product.gradient is None:
            continue
        weight, key = product.weight, id(product.weight)
        with torch.no_grad():
            made = product.of_weight().to(weight.dtype)
            sums[key] = made if key not in sums else sums[key] + made
        left[key] -= 1
        if left[key] == 0:
            torch.autograd.backward([weight], [sums.pop(key)])


class _Linear:
    """factor * weight.T + bias"""

    axis = -1  # of the bias

    def __init__(self, factor, weight):
        self.factor, self.held, self.gradient = factor, weight, None

    def make(self, factor, bias):
        return torch.nn.functional.linear(factor, self.held, bias)

    def of_factor(self):
        return self.gradient @ self.held

    def of_weight(self):
        return self.gradient.reshape(-1, self.held.shape[0]).t() @ self.factor.reshape(-1, self.held.shape[1])


class _Matmul(_Linear):
    """factor * weight"""

    def make(self, factor, _):
        return factor @ self.held

    def of_factor(self):
        return self.gradient @ self.held.t()

    def of_weight(self):
        return self.factor.reshape(-1, self.held.shape[0]).t() @ self.gradient.reshape(-1, self.held.shape[1])


class _Convolution(_Linear):
    axis = 1

    def __init__(self, factor, weight, stride=1, padding=0, dilation=1, groups=1):
        super().__init__(factor, weight)
        axes = weight.dim() - 2
        self._how = [self._extents(value, axes) for value in (stride, padding, dilation)]
        self._rest = (False, [0] * axes, groups)

    @staticmethod
    def _extents(value, axes):
        values = [value] if isinstance(value, int) else list(value)
        return values * axes if len(values) == 1 else values

    def make(self, factor, bias):
        return _aten.convolution(factor, self.held, bias, *self._how, *self._rest)

    def _back(self, mask):
        return _aten.convolution_backward(self.gradient, self.factor, self.held, None, *self._how, *self._rest, mask)

    def of_factor(self):
        return self._back([True, False, False])[0]

    def of_weight(self):
        return self._back([False, True, False])[1]


_KINDS = {_aten.linear.default: _Linear, _aten.matmul.default: _Matmul, _aten.mm.default: _Matmul,
          _aten.conv1d.default: _Convolution, _aten.conv2d.default: _Convolution, _aten.conv3d.default: _Convolution}


def _kind(node):
    """What computes a node of the graph whose second argument is a parameter; None: the node's own function."""
    if node.op != "call_function" or len(node.args) < 2:
        return None
    weight = node.args[1]
    return _KINDS.get(node.target) if isinstance(weight, torch.fx.Node) and weight.op == "get_attr" else None


class _Product(torch.nn.Module):
    def __init__(self, kind, owner):
        super().__init__()
        self._kind, self._owner = kind, [owner]  # in a list, so that it is no part of this module

    def forward(self, factor, weight, bias=None, *how, **named):
        products = self._owner[0].products
        kept, type_ = weight.detach(), _autocast_type(factor)
        if type_ is not None:
            factor, kept = factor.to(type_), kept.to(type_)
            bias = None if bias is None else bias.to(type_)
        if products is None or not weight.requires_grad or (self._kind is not _Convolution and kept.dim() != 2):
            return self._kind(factor, weight if type_ is None else weight.to(type_), *how, **named).make(factor, bias)
        product = self._kind(factor.detach(), kept, *how, **named)
        product.weight = weight
        products.append(product)
        return _Node.apply(factor, torch.empty(0, requires_grad=True), product, bias)


def _autocast_type(tensor):
    """The type in which torch.autocast computes products, or None."""
    kind = tensor.device.type
    if not tensor.is_floating_point() or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


class _Node(torch.autograd.Function):
    """Gives the factor and the bias their gradients, and keeps that of the product. The second argument requires gradients, so
    that the product does."""

    @staticmethod
    def forward(ctx, factor, _, product, bias):
        ctx.product = product
        with torch.autocast(factor.device.type, enabled=False):
            return product.make(factor, bias)

    @staticmethod
    def backward(ctx, gradient):
        product = ctx.product
        product.gradient = gradient
        others = [axis for axis in range(gradient.dim()) if axis != product.axis % gradient.dim()]
        return (product.of_factor() if ctx.needs_input_grad[0] else None, None, None,
                (gradient.sum(others) if others else gradient) if ctx.needs_input_grad[3] else None)
