# SPDX-License-Identifier: Apache-2.0
"""The loss of a step of agpcs.torch.Job: each range of the batch's rows adds its part, and the sum is the batch's mean."""

from __future__ import annotations

import warnings

import torch

from agpcs._errors import UsageError


class MeanLoss:
    """Of `loss_fn`, which gives the mean over the samples that it gets; where the plan's loss, `of_plan`, has an
    `ignore_index`, over the labels that differ from it. `spec` is how the module returns its outputs."""

    def __init__(self, loss_fn, spec, of_plan, batch, device):
        self._loss_fn, self._spec, self._batch, self._device = loss_fn, spec, batch, device
        self._ignored, self._shifted = of_plan.get("ignore_index"), "next_token" in of_plan
        self._checked = False

    def part(self, outputs, targets, begin, end):
        """What the rows from `begin` to `end` add to the loss of `targets`, the whole batch's; `outputs` are theirs."""
        mine = self._weight(targets, begin, end)
        if mine == 0:  # the mean of no label is no number
            return sum(tensor.sum() * 0 for tensor in outputs if _is_floating(tensor))
        loss = self._mean(outputs, targets, begin, end)
        if not self._checked and end - begin > 1:
            self._checked = True
            self._check(loss.detach(), outputs, targets, begin, end)
        return loss.to(torch.promote_types(loss.dtype, torch.float32)) * (mine / self._weight(targets, 0, self._batch))

    def _mean(self, outputs, targets, begin, end):
        from torch.utils import _pytree
        part = _pytree.tree_map(lambda x: x[begin:end].to(self._device) if isinstance(x, torch.Tensor) else x, targets)
        loss = self._loss_fn(_pytree.tree_unflatten(list(outputs), self._spec), part)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise UsageError(f"loss_fn returned {described(loss)}, not one number\n"
                             "  hint: the mean loss over the samples that it gets")
        return loss.reshape(())

    def _weight(self, targets, begin, end):
        """The number of samples, or of labels that count, in these rows."""
        if self._ignored is None:
            return end - begin
        from torch.utils import _pytree
        labels = [leaf for leaf in _pytree.tree_leaves(targets) if not _is_floating(leaf)]
        if len(labels) != 1:
            raise UsageError(f"the plan's loss counts labels (ignore-index), and the targets have {len(labels)} tensors of "
                             "whole numbers\n  hint: one tensor of labels")
        counts = labels[0] != self._ignored
        if self._shifted and not counts.all():
            raise UsageError(f"the targets have labels of {self._ignored}, which do not count, and the plan's labels are the "
                             "tokens that follow\n  hint: targets that are shifted, and a plan without next_token")
        return int(counts[begin:end].sum())

    @torch.no_grad()
    def _check(self, loss, outputs, targets, begin, end):
        """Warns where the loss of rows is not the mean of their parts' losses: then a step is not that of the batch."""
        if any(tensor.shape[:1] != (end - begin,) for tensor in outputs):
            return
        middle, whole = (begin + end) // 2, 0.0
        for first, last in ((begin, middle), (middle, end)):
            weight = self._weight(targets, first, last)
            if weight > 0:
                rows = [tensor[first - begin:last - begin] for tensor in outputs]
                whole = whole + self._mean(rows, targets, first, last).float() * weight
        whole, loss = float(whole) / self._weight(targets, begin, end), float(loss)
        coarse = any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in outputs)
        if abs(whole - loss) > (3e-2 if coarse else 1e-3) * max(abs(whole), abs(loss)):
            what = "samples" if self._ignored is None else f"labels that are not {self._ignored}"
            warnings.warn(f"loss_fn gives {loss:.6g} for {end - begin} samples, and {whole:.6g} is the mean of what it gives "
                          f"for their halves: steps are not those of one process\n  hint: the mean over the {what}", stacklevel=2)


def _is_floating(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def described(value):
    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} and shape {'x'.join(map(str, value.shape)) or 'scalar'}"
    return f"a {type(value).__name__}"
