# SPDX-License-Identifier: Apache-2.0
"""Watches a job's steps: tells when a rank, or the ranks' communication, is no longer as fast as it was."""

import sys
import threading
import time
import typing

import torch
import torch.distributed as dist

from agpcs import _agpcs
from agpcs._errors import UsageError
from agpcs._torch_clock import Clock


# The tensors of the last exchange. Gloo's thread may be the last to let go of an exchange, and needs Python to free a tensor
# that Python has forgotten. Where the job is at its end, that aborts the process.
_last_exchange = []


class Change(typing.NamedTuple):
    """Something that changed, as all ranks see it."""

    text: str  #: "b/0 computes 2.4 times slower than expected since step 120"
    quantity: str  #: "compute", "all-reduce" or "link"
    rank: int  #: the rank that computes; of an all-reduce: the plan's first rank; of a link: the rank that sends
    factor: float  #: seconds now / normal seconds; of computing, relative to the other ranks; about 1: normal again
    since: int  #: the step at which it began, as far as is known


class Watch:
    """Measures a rank's steps for the plan's drift detector (docs/design/reliability.md).

    Computing is the time from the end of a step's reductions to the last gradient of the next step: update, data,
    forward and backward pass. It is measured in every step, on a CPU also by the processor time of the thread that
    computes (on a GPU events are the clock, and no thread's time says anything); reductions are in the last step before
    an exchange. Every `plan.statistics_every` steps the ranks send their figures, 24 bytes each. They judge them after the
    next step, so that no rank waits for them, and draw the same verdict in the same step.
    """

    WORDS = 0  # numbers that a rank shares beside its figures
    _sent = None

    def __init__(self, plan, device, group, tell):
        self._every, self._tell = plan.statistics_every, tell
        self._clock, self._device, self._group = Clock(device), device, group
        self._mark = self._of_thread if device.type == "cpu" else self._of_device
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._steps, self._ended = 0, None
        self._probe, self._links = LinkProbe(plan.devices, device, group), None
        self.changes = []  #: Change, all that were told
        self.expect(plan)

    def expect(self, plan):
        """Compares with another plan from now on."""
        self._drift = _agpcs.Drift(plan.text)
        self._marks, self._noted = [], 0  # since the last exchange: when computing began and ended; steps
        self._sent = None  # figures on their way: work, tensors by rank, step

    def _of_thread(self):
        return self._clock.mark(), threading.get_ident(), time.thread_time()

    def _of_device(self):
        return self._clock.mark(), None, 0.0

    @property
    def notes_reductions(self):
        """Whether `begun` is wanted for this step's all-reduces."""
        return self._noted == self._every - 1

    def begun(self, work):
        """Notes an all-reduce that has just begun. Returns what `step` wants of it."""
        begin = self._clock.mark()
        return begin, work.get_future().then(lambda _: self._clock.mark())

    def gradients_ready(self):
        """Notes that the backward pass is over."""
        self._ready = self._mark()

    def step(self, reductions):
        """Notes that all of a step's reductions are over."""
        if self._ended is not None:
            self._marks.append((self._ended, self._ready))
        self._end_step(reductions, self._ended is not None)
        self._ended = self._mark()

    def _end_step(self, reductions, measured):
        ends = [(begin, end.wait()) for begin, end in reductions]
        self._judge()
        self._noted += measured
        self._steps += 1
        if self._noted == self._every:
            self._send(ends)

    def _words(self):
        """What this rank shares beside its figures."""
        return []

    def _heard(self, words):
        """Takes what all ranks have shared beside their figures."""

    def _send(self, reductions):
        """Begins to share the figures of the last steps."""
        self._clock.wait()
        computing = sum(self._clock.between(begin[0], end[0]) for begin, end in self._marks) / self._noted
        known = all(begin[1] == end[1] is not None for begin, end in self._marks)
        processor = sum(end[2] - begin[2] for begin, end in self._marks) / self._noted if known else 0.0
        steps, self._marks, self._noted = self._noted, [], 0
        reducing, last = 0.0, None
        for begin, end in reductions:  # one after another: an all-reduce has its turn when those before have ended
            taken = self._clock.between(begin, end)
            reducing += max(taken if last is None else min(taken, self._clock.between(last, end)), 0.0)
            last = end
        figures = self._drift.statistics(self._rank, [computing, reducing, 0.0], processor, steps) + self._words()
        mine = torch.tensor(figures, dtype=torch.float64, device=self._device)
        every = [torch.empty_like(mine) for _ in range(self._ranks)]
        self._sent = dist.all_gather(every, mine, group=self._group, async_op=True), every, self._steps
        _last_exchange[:] = self._sent, mine

    def _judge(self):
        """Tells what changed, by the figures that the ranks have shared since the last step."""
        if self._sent is None:
            return
        work, every, step = self._sent
        self._sent = None
        work.wait()
        every = [each.tolist() for each in every]
        figures = len(every[0]) - self.WORDS
        self._heard([each[figures:] for each in every])
        told = [Change(*change) for change in self._drift.add(step, [each[:figures] for each in every])]
        if self._links is None:  # the steps before were warm-up
            self._links = self._probe.seconds()
        elif any(change.quantity == "all-reduce" for change in told):
            told += self._probe.changes(self._links, min(change.since for change in told))
        self.changes += told
        if told:
            self._tell(told)


class LinkProbe:
    """Times messages from each rank to the next one, to name the link that made all-reduces slow."""

    ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 22}  # of 4 bytes, in a message
    REPETITIONS = 6  # the fastest counts
    FACTOR, LEAST = 1.5, 2e-4  # a link changed if its message takes this factor longer or shorter, and these seconds

    def __init__(self, devices, device, group):
        self._devices, self._group, self._device = devices, group, device
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._clock = Clock(device)

    def seconds(self):
        """Returns, by rank, the seconds of a message to the next rank. All ranks call it, and send in turn."""
        buffer = torch.zeros(self.ELEMENTS[self._device.type], device=self._device)
        answer = torch.zeros(1, device=self._device)
        mine = torch.zeros(1, dtype=torch.float64, device=self._device)
        for sender in range(self._ranks if self._ranks > 2 else 1):  # two ranks have one link
            receiver = (sender + 1) % self._ranks
            taken = []
            for _ in range(self.REPETITIONS):
                begin = time.perf_counter()
                if self._rank == sender:
                    self._pass(dist.isend, buffer, receiver)
                    self._pass(dist.irecv, answer, receiver)
                elif self._rank == receiver:
                    self._pass(dist.irecv, buffer, sender)
                    self._pass(dist.isend, answer, sender)
                self._clock.wait()
                taken.append(time.perf_counter() - begin)
            if self._rank == sender:
                mine.fill_(min(taken))
        every = [torch.empty_like(mine) for _ in range(self._ranks)]
        dist.all_gather(every, mine, group=self._group)
        return [each.item() for each in every]

    def changes(self, before, since):
        """Returns the Changes of links whose messages took `before` when the job began."""
        told = []
        for sender, (then, now) in enumerate(zip(before, self.seconds())):
            if abs(now - then) < self.LEAST or max(now, then) < self.FACTOR * min(now, then):
                continue
            receiver = (sender + 1) % self._ranks
            times, how = (now / then, "longer") if now > then else (then / now, "shorter")
            text = (f"link {self._devices[sender]} -> {self._devices[receiver]}: messages take {times:.3g} times {how} "
                    "than when the job began")
            told.append(Change(text, "link", sender, now / then, since))
        return told

    def _pass(self, operation, tensor, rank):
        peer = rank if self._group is None else dist.get_global_rank(self._group, rank)
        # In a batch, so that NCCL takes the group's communicator instead of making one for the pair.
        for work in dist.batch_isend_irecv([dist.P2POp(operation, tensor, peer, group=self._group)]):
            work.wait()


def teller_of(on_drift):
    """Returns what is called with changes, or None. `on_drift`: "say", None or such a function."""
    if on_drift is not None and on_drift != "say" and not callable(on_drift):
        raise UsageError(f"on_drift is {on_drift!r}; it is 'say', None or a function of the changes")
    return say if on_drift == "say" else on_drift


def say(changes):
    """Prints changes, on rank 0."""
    if dist.get_rank() == 0:
        for change in changes:
            print(f"agpcs: drift: {change.text}", file=sys.stderr, flush=True)
