# SPDX-License-Identifier: Apache-2.0
"""Dropout of agpcs.torch.Job by the sample: whether an element is kept depends on the seed, the step, the name of the node of
the module's graph, the sample in the whole batch and the element's position in the sample, and on nothing else. So any plan,
and a pass that is computed again, drops the same elements.

Words are 32 bits wide, in tensors of int64. No product of them overflows, so they are the same on every device. The first
eight bytes of the SHA-256 of "SEED:STEP:NODE" are the two words of a node, and `_mixed` of each of them xor the sample is a
word of that sample there. An element's word is a hash of its position and these two; it is kept if that is not less than
p times 2^32.
"""

from __future__ import annotations

import functools
import hashlib
import math
import typing
import warnings

import torch

from agpcs._errors import PlanMismatch, UsageError
from agpcs._job.graph import extents, schema, where

_WORDS = 1 << 32
_NO_SAMPLE = _WORDS - 1  # in the place of a sample, where a value does not depend on samples
# lowbias32, a hash by Chris Wellons (https://nullprogram.com/blog/2018/07/31/). The second factor, less 2^32, has the same
# lower 32 bits of a product.
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B - _WORDS
_AT_A_TIME, _ON_CPU = 1 << 24, 1 << 16  # elements whose words are in memory: those of a CPU fit into its cache
_CAST = (torch.float32, torch.float16, torch.bfloat16)  # what torch.autocast casts


def _mixed(x):
    """Each word as another one, without a pattern."""
    x = x ^ x >> 16
    x = x * _FIRST & _WORDS - 1
    x = x ^ x >> 15
    x = x * _SECOND & _WORDS - 1
    return x ^ x >> 16


class Masks:
    """The masks of a job on this rank: its seed, and the number of steps that it has made."""

    def __init__(self, seed, device):
        self._seed, self._device, self._steps = seed, device, 0
        self._known = None  # ((step, names), the words of the nodes)
        _quiet()

    def step_ended(self):
        self._steps += 1

    def state_dict(self):
        return {"seed": self._seed, "steps": self._steps}

    def check(self, state):
        """Refuses the state of a job with another seed, which drew other masks."""
        if state and state["seed"] != self._seed:
            raise PlanMismatch(f"the checkpoint's dropout has the seed {state['seed']}, and the job's is {self._seed}\n"
                               f"  hint: Job(..., seed={state['seed']}) goes on with the masks of the checkpoint")

    def load_state_dict(self, state):
        """Goes on from a checkpoint's state; without one, masks are those of the steps that this job has made."""
        if state:
            self._steps = state["steps"]
        else:
            warnings.warn("the checkpoint is of a job without dropout=\"by-sample\" and does not say how many steps it made: "
                          f"masks go on with those of step {self._steps}", stacklevel=2)

    def rows(self, names, begin, end):
        """Two words of each node in `names` for each sample from `begin` to `end`, and last those without a sample."""
        if self._known is None or self._known[0] != (self._steps, names):
            words = [int.from_bytes(hashlib.sha256(f"{self._seed}:{self._steps}:{name}".encode()).digest()[i:i + 4], "big")
                     for name in names for i in (0, 4)]
            self._known = (self._steps, names), torch.tensor(words, device=self._device).view(1, len(names), 2)
        samples = torch.tensor([*range(begin, end), _NO_SAMPLE], device=self._device)
        return _mixed(samples.view(-1, 1, 1) ^ self._known[1])


@functools.cache
def _quiet():
    """Lets torch say once, unheard, that a mask of attention is for tests."""
    one = torch.ones(1, 1, 1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.ops.aten._scaled_dot_product_attention_math(one, one, one, None, 0.5, dropout_mask=one.bool())


def _kept(rows, positions, p):
    """Which elements are kept: for each row's two words, `positions` of them."""
    if positions > _WORDS:
        raise UsageError(f"a dropout of {positions} elements a sample; dropout=\"by-sample\" takes {_WORDS} at most")
    if torch.compiler.is_compiling():  # the compiler keeps no words in memory
        return _at(rows, 0, positions, p)
    kept = torch.empty(rows.shape[0], positions, dtype=torch.bool, device=rows.device)
    most = _ON_CPU if rows.device.type == "cpu" else _AT_A_TIME
    height = max(most // max(positions, 1), 1)
    for begin in range(0, positions, most):
        end = min(begin + most, positions)
        for row in range(0, rows.shape[0], height):
            kept[row:row + height, begin:end] = _at(rows[row:row + height], begin, end, p)
    return kept


def _at(rows, begin, end, p):
    first, second = rows.unsqueeze(2).unbind(1)
    x = torch.arange(begin, end, device=rows.device) ^ first
    x = (x ^ x >> 16) * _FIRST & _WORDS - 1
    x = x ^ second
    x = (x ^ x >> 15) * _SECOND & _WORDS - 1
    return x >= round(p * _WORDS)


def _mask(rows, axis, shape, p):
    """Which elements of a tensor of `shape` are kept. `axis` has the samples, or as many parts of each, one sample after the
    other; None: there are none."""
    rest = [size for i, size in enumerate(shape) if i != axis]
    rows = rows[-1:] if axis is None else rows[:-1]
    kept = _kept(rows, math.prod(shape) // max(rows.shape[0], 1), p)
    return kept.view(rest) if axis is None else kept.view(shape[axis], *rest).movedim(0, axis)


def _channels(rows, axis, x, p):
    """The mask of a dropout of whole channels."""
    return _mask(rows, axis, x.shape[:2], p).view(*x.shape[:2], *[1] * (x.dim() - 2))


def _times(x, mask, p):
    return x * mask.to(x.dtype).mul_(1 / (1 - p) if p < 1 else 0)


def _alpha(x, mask, p):
    """Dropout that leaves the mean and the variance of a SELU's values, as torch computes it."""
    alpha = 1.7580993408473766
    a = ((alpha * alpha * p + 1) * (1 - p)) ** -0.5 if p < 1 else 0
    kept = mask.to(x.dtype)
    return x * (kept * a) + ((kept - 1) * (alpha * a) + alpha * a * p)


def dropout(rows, axis, x, p, train):
    return _times(x, _mask(rows, axis, x.shape, p), p)


def native_dropout(rows, axis, x, p, train):
    mask = _mask(rows, axis, x.shape, p)
    return _times(x, mask, p), mask


def feature_dropout(rows, axis, x, p, train):
    return _times(x, _channels(rows, axis, x, p), p)


def alpha_dropout(rows, axis, x, p, train):
    return _alpha(x, _mask(rows, axis, x.shape, p), p)


def feature_alpha_dropout(rows, axis, x, p, train):
    return _alpha(x, _channels(rows, axis, x, p), p)


def attention(rows, axis, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """By torch's own steps: scores, softmax, the mask, the product."""
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # torch casts what attention gets, and computes the steps in that type
        half = torch.get_autocast_dtype(kind)
        query, key, value, attn_mask = (x.to(half) if x is not None and x.dtype in _CAST else x
                                        for x in (query, key, value, attn_mask))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -math.inf)
    around = query.shape[:-2] if enable_gqa else torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    kept = _mask(rows, axis, (*around, query.shape[-2], key.shape[-2]), dropout_p)
    with torch.autocast(kind, enabled=False):
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, kept, scale=scale, enable_gqa=enable_gqa)[0]


_FUNCTIONS = {"aten::dropout": dropout, "aten::native_dropout": native_dropout, "aten::feature_dropout": feature_dropout,
              "aten::alpha_dropout": alpha_dropout, "aten::feature_alpha_dropout": feature_alpha_dropout,
              "aten::scaled_dot_product_attention": attention}


# Operators whose value has the samples in the places where what they read has them.
_ELEMENTWISE = {f"aten::{name}" for name in (
    "add", "sub", "mul", "div", "neg", "where", "masked_fill", "softmax", "relu", "gelu", "silu", "tanh", "sigmoid", "to", "clone",
    "contiguous", "dropout", "layer_norm")}
_PRODUCTS = {"aten::bmm": 0, "aten::baddbmm": 1}  # by the argument whose axis 0 is the value's
_VIEWS = ("aten::view", "aten::reshape")


class Drawing(typing.NamedTuple):
    """What computes a node by masks that follow the sample: `function(rows, axis, ...)` of the node's own arguments."""

    function: typing.Callable[..., typing.Any]
    axis: int | None


def drawing_of(node):
    """The Drawing of a node that draws random numbers. Refuses, by name, one that is no dropout, or whose samples it does not
    find."""
    function = _FUNCTIONS.get(schema(node).name)
    if function is None:
        raise UsageError(f"{where(node)} draws random numbers, and is no dropout: dropout=\"by-sample\" does not know it\n"
                         "  hint: a dropout of 0 in it, or a Job without dropout=\"by-sample\", whose ranks draw numbers of "
                         "their own")
    sizes = extents(node)
    axes = [i for i, size in enumerate(sizes) if size[1] != 0]
    before = {attention: len(sizes) - 2, feature_dropout: 2, feature_alpha_dropout: 2}.get(function, len(sizes))
    if len(axes) > 1 or any(i >= before or not _samples_lead(node, i) for i in axes):
        shape = "x".join(str(size) for size in _value(node).shape)
        raise UsageError(f"{where(node)} of shape {shape} has no axis of samples that dropout=\"by-sample\" can follow\n"
                         "  hint: dropout where an axis is the samples, as in batch x words x width")
    return Drawing(function, axes[0] if axes else None)


def _samples_lead(node, axis):
    """Whether an axis is the samples, or has as many parts of each sample, one sample after the other."""
    sizes = extents(node)
    if sizes[axis][0] != 0 or sizes[axis] == (0, 1):
        return sizes[axis] == (0, 1)
    name = schema(node).name if node.op == "call_function" and schema(node) is not None else None
    sources = [node.args[0]] if name in _VIEWS or name in ("aten::transpose", "aten::permute") else node.all_input_nodes
    if name in _ELEMENTWISE:
        same = [source for source in sources if isinstance(_value(source), torch.Tensor) and extents(source) == sizes]
        return bool(same) and all(_samples_lead(source, axis) for source in same)
    if name in _PRODUCTS:
        return axis == 0 and _samples_lead(node.args[_PRODUCTS[name]], 0)
    if name == "aten::transpose":
        order = list(range(len(sizes)))
        a, b = node.args[1], node.args[2]
        order[a], order[b] = order[b], order[a]
        return _samples_lead(node.args[0], order[axis])
    if name == "aten::permute":
        return _samples_lead(node.args[0], node.args[1][axis] % len(sizes))
    if name in _VIEWS:
        return any(_size(extents(node.args[0])[:i]) == _size(sizes[:axis]) and size[1] != 0 and _samples_lead(node.args[0], i)
                   for i, size in enumerate(extents(node.args[0])))
    return False


def _size(sizes):
    """The product of extents, for two numbers of samples."""
    return [math.prod(fixed + per_sample * samples for fixed, per_sample in sizes) for samples in (3, 7)]


def _value(node):
    value = node.meta["val"]
    return value[0] if isinstance(value, (tuple, list)) else value
