# SPDX-License-Identifier: Apache-2.0
"""The update of agpcs.torch.Job: what all ranks agree on before their optimizers' steps. Gradients that were scaled are
unscaled, gradients that are not finite on any rank make all ranks leave the step out, and clipping is by the norm over
all stages."""

from __future__ import annotations

import numbers

import torch
import torch.distributed as dist

from agpcs._errors import UsageError
from agpcs._job.owned import parameters_of


class Update:
    """An optimizer's step with what comes before it, in torch's order. Needs all ranks to make one and to call `step` alike."""

    def __init__(self, max_norm, norm_type, scaler, device):
        self._device = device
        self._max_norm, self._norm_type = max_norm, norm_type
        self.scaler = scaler  #: a torch.amp.GradScaler, the same on every rank; None: losses are not scaled
        self._group = None if max_norm is None and scaler is None else dist.new_group()
        # Its gradient is what all ranks found, so that the scaler of a rank without an optimizer hears of it, too.
        self._witness = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, device=device))], lr=0)
        self.norm = None  #: of the last step's gradients, before they were clipped
        self._finite = None  # whether the step's gradients are; None: nobody has looked at them yet

    def take(self, optimizer, host, counted):
        """Steps `optimizer` from now on, which is that of this rank's parameters, or None; `host` is its HostState, or None. Of the
        parameters, this rank counts those in `counted`: over all ranks, each is counted once."""
        self._optimizer, self._host, self._counted = optimizer, host, counted

    @property
    def waits(self):
        """Whether a step waits for other ranks."""
        return self._group is not None

    def scaled(self, loss):
        return loss if self.scaler is None else self.scaler.scale(loss)

    def agree(self):
        """What waits for other ranks. A plan with the line `norm` has it there, and else `step` does it."""
        self._finite = self.scaler is None or self._unscaled()
        if self._max_norm is not None:
            self._clip()

    def step(self):
        if self._finite is None:
            self.agree()
        finite, self._finite = self._finite, None
        if finite and self._optimizer is not None:
            (self._optimizer if self._host is None else self._host).step()
        if self.scaler is not None:
            self.scaler.update()

    def _unscaled(self):
        """Unscales gradients. Returns whether those of all ranks are finite."""
        self.scaled(torch.zeros(1, device=self._device))  # a scaler has its scale from the first loss on
        largest = torch.zeros((), device=self._device)
        if self._optimizer is not None:
            self.scaler.unscale_(self._optimizer)
            largest = torch.nn.utils.get_total_norm(_gradients(parameters_of(self._optimizer)), torch.inf)
        finite = bool(self._of_all(largest).isfinite().all())
        witness, = parameters_of(self._witness)
        witness.grad = torch.full_like(witness, 0 if finite else torch.inf)
        self.scaler.unscale_(self._witness)
        return finite

    def _clip(self):
        own = torch.nn.utils.get_total_norm(_gradients(self._counted), self._norm_type)
        self.norm = torch.linalg.vector_norm(self._of_all(own), self._norm_type)
        if self._optimizer is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters_of(self._optimizer), self._max_norm, self.norm)

    def _of_all(self, number):
        """A number of each rank, by rank."""
        number = number.to(self._device, torch.float32).reshape(1)
        every = [torch.empty_like(number) for _ in range(dist.get_world_size())]
        dist.all_gather(every, number, group=self._group)
        return torch.cat(every)


def check_clipping(max_norm, norm_type):
    for name, value in (("max_norm", max_norm), ("norm_type", norm_type)):
        known = isinstance(value, numbers.Real) and not isinstance(value, bool) and value > 0
        if not known and not (name == "max_norm" and value is None):
            raise UsageError(f"{name} is {value!r}\n  hint: it is a number above 0, as torch.nn.utils.clip_grad_norm_ takes it")


def _gradients(parameters):
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
