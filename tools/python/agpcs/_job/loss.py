# SPDX-License-Identifier: Apache-2.0
"""The loss of a step of agpcs.torch.Job: each range of the batch's rows adds its part, and the sum is the batch's mean."""

from __future__ import annotations

import warnings

import torch
from torch.utils import _pytree

from agpcs._errors import PlanMismatch, UsageError

_LEAF = _pytree.tree_flatten(0)[1]


class MeanLoss:
    """Of `loss_fn`, which gives the mean over the samples that it gets; where the plan's loss, `of_plan`, has an
    `ignore_index`, over the labels that differ from it. `spec` is how the module returns its outputs."""

    def __init__(self, loss_fn, spec, of_plan, batch, device):
        self._loss_fn, self._spec, self._batch, self._device = loss_fn, spec, batch, device
        self._ignored, self._shifted = of_plan.get("ignore_index"), "next_token" in of_plan
        self._checked = False

    def begin(self, targets):
        """Takes the targets of a step's batch. Refuses, on every rank, those of another form."""
        leaves, self._form = _pytree.tree_flatten(targets)
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor) or leaf.shape[:1] != (self._batch,):
                raise PlanMismatch(f"the targets have {described(leaf)}; the plan's batch has {self._batch} samples\n"
                                   "  hint: every rank gives the whole batch (drop_last=True)")
        self._targets = leaves
        self._weights = None if self._ignored is None else self._counts(leaves)  # of rows; None: 1
        self._total = self._weight(0, self._batch)

    def _weight(self, begin, end):
        return end - begin if self._weights is None else sum(self._weights[begin:end])

    def _counts(self, leaves):
        """The numbers of labels that count, by sample."""
        labels = [leaf for leaf in leaves if not leaf.is_floating_point()]
        if len(labels) != 1:
            raise UsageError(f"the plan's loss counts labels (ignore-index), and the targets have {len(labels)} tensors of "
                             "whole numbers\n  hint: one tensor of labels")
        counted = (labels[0] != self._ignored).reshape(self._batch, -1)
        if self._shifted and not counted.all():
            raise UsageError(f"the targets have labels of {self._ignored}, which do not count, and the plan's labels are the "
                             "tokens that follow\n  hint: targets that are shifted, and a plan without next_token")
        counts = counted.sum(1).tolist()
        if not any(counts):
            raise UsageError(f"all labels of the batch are {self._ignored}, and do not count: there is no mean loss")
        return counts

    def part(self, outputs, begin, end):
        """What the rows from `begin` to `end` add to the batch's loss; `outputs` are theirs."""
        weight = self._weight(begin, end)
        if weight == 0:  # the mean of no label is no number
            return sum(tensor.sum() * 0 for tensor in outputs if tensor.is_floating_point())
        loss = self._mean(outputs, begin, end)
        if not self._checked and end - begin > 1:
            self._checked = True
            self._check(loss.detach(), outputs, begin, end)
        if loss.dtype in (torch.float16, torch.bfloat16):
            loss = loss.float()
        return loss * (weight / self._total)

    def _mean(self, outputs, begin, end):
        part = [leaf[begin:end].to(self._device) for leaf in self._targets]
        loss = self._loss_fn(_tree(outputs, self._spec), _tree(part, self._form))
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise UsageError(f"loss_fn returned {described(loss)}, not one number\n"
                             "  hint: the mean loss over the samples that it gets")
        return loss.reshape(())

    @torch.no_grad()
    def _check(self, loss, outputs, begin, end):
        """Warns where the loss of rows is not the mean of their parts' losses: then a step is not that of the batch."""
        if any(tensor.shape[:1] != (end - begin,) for tensor in outputs):
            return
        middle, whole = (begin + end) // 2, 0.0
        for first, last in ((begin, middle), (middle, end)):
            weight = self._weight(first, last)
            if weight > 0:
                rows = [tensor[first - begin:last - begin] for tensor in outputs]
                whole = whole + self._mean(rows, first, last).float() * weight
        whole, loss = float(whole) / self._weight(begin, end), float(loss)
        coarse = any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in outputs)
        if abs(whole - loss) > (3e-2 if coarse else 1e-3) * max(abs(whole), abs(loss)):
            what = "samples" if self._ignored is None else f"labels that are not {self._ignored}"
            warnings.warn(f"loss_fn gives {loss:.6g} for {end - begin} samples, and {whole:.6g} is the mean of what it gives "
                          f"for their halves: steps are not those of one process\n  hint: the mean over the {what}", stacklevel=2)


def _tree(leaves, spec):
    return leaves[0] if spec == _LEAF else _pytree.tree_unflatten(list(leaves), spec)


def described(value):
    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} and shape {'x'.join(map(str, value.shape)) or 'scalar'}"
    return f"a {type(value).__name__}"
