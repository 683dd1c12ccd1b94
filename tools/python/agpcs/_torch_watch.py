# SPDX-License-Identifier: Apache-2.0
"""Watches a job's steps: tells when a rank, or the ranks' communication, is no longer as fast as it was."""

import sys
import typing

import torch
import torch.distributed as dist

from agpcs import _agpcs
from agpcs._torch_clock import Clock


class Change(typing.NamedTuple):
    """Something that changed, as all ranks see it."""

    text: str  #: "b/0 computes 2.4 times slower than expected since step 120"
    quantity: str  #: "compute" or "all-reduce"
    rank: int  #: the rank that computes; of an all-reduce: the plan's first rank
    factor: float  #: seconds now / normal seconds, relative to the other ranks; about 1: normal again
    since: int  #: the step at which it began, as far as is known


class Watch:
    """Measures a rank's steps for the plan's drift detector (docs/design/reliability.md).

    Computing is the time from the end of a step's reductions to the last gradient of the next step: update, data,
    forward and backward pass. Every `plan.statistics_every` steps the ranks exchange their figures, 24 bytes each, and
    so draw the same verdict in the same step.
    """

    def __init__(self, plan, device, group, tell):
        self._drift, self._every, self._tell = _agpcs.Drift(plan.text), plan.statistics_every, tell
        self._clock, self._device, self._group = Clock(device), device, group
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._steps, self._marks, self._ended = 0, [], None
        self.changes = []  #: Change, all that were told

    def expect(self, plan):
        """Compares with another plan from now on."""
        self._drift = _agpcs.Drift(plan.text)
        self._marks.clear()

    def begun(self, work):
        """Notes an all-reduce that has just begun. Returns what `step` wants of it."""
        begin = self._clock.mark()
        return begin, work.get_future().then(lambda _: self._clock.mark())

    def gradients_ready(self):
        """Notes that the backward pass is over."""
        self._ready = self._clock.mark()

    def step(self, reductions):
        """Notes that all of a step's reductions are over."""
        ends = [(begin, end.wait()) for begin, end in reductions]
        if self._ended is not None:
            self._marks.append((self._ended, self._ready, ends))
        self._ended = self._clock.mark()
        self._steps += 1
        if len(self._marks) == self._every:
            self._exchange()

    def _exchange(self):
        """Shares the means of the last steps, and tells what changed."""
        self._clock.wait()
        computing = reducing = 0.0
        for ended, ready, reductions in self._marks:
            computing += self._clock.between(ended, ready)
            last = None
            for begin, end in reductions:  # one after another: an all-reduce has its turn when those before have ended
                taken = self._clock.between(begin, end)
                reducing += max(taken if last is None else min(taken, self._clock.between(last, end)), 0.0)
                last = end
        means = [computing / len(self._marks), reducing / len(self._marks), 0.0]
        self._marks.clear()
        mine = torch.tensor(self._drift.statistics(self._rank, means), dtype=torch.float64, device=self._device)
        every = [torch.empty_like(mine) for _ in range(self._ranks)]
        dist.all_gather(every, mine, group=self._group)
        told = [Change(*change) for change in self._drift.add(self._steps, [each.tolist() for each in every])]
        self.changes += told
        if told:
            self._tell(told)


def say(changes):
    """Prints changes, on rank 0."""
    if dist.get_rank() == 0:
        for change in changes:
            print(f"agpcs: drift: {change.text}", file=sys.stderr, flush=True)
