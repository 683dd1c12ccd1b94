# SPDX-License-Identifier: Apache-2.0
"""A job on devices of which a test says how fast they are: time passes on each rank as the running plan expects, and longer where its
device is slower. So what a job decides does not depend on what else the machine does."""

import contextlib
import functools
import io
import math
import threading
from unittest import mock

from switching import Training

from agpcs import _agpcs, _torch_job, _torch_watch
from agpcs._job import idle
from agpcs._job.step import Player

CALM, MOST, PROBES = 60, 1000, 6  # steps before a rank becomes slower, and in all; probes of an idle rank before its device recovers
_THREAD = "agpcs-probe"  # of probes


class Devices:
    """The times of this rank, in the place of the modules `time` and of the class Clock. `job` is to be set before its first step."""

    def __init__(self, rank):
        self.job, self.slower = None, {}  #: by rank: how many times longer computing takes
        self.probes = 0  #: of the device, while its rank is idle
        self._rank, self._now, self._probed = rank, 0.0, 0.0

    def perf_counter(self):
        if threading.current_thread().name == _THREAD:
            return self._probed
        return self._now

    thread_time = mark = perf_counter

    def wait(self):
        pass

    def between(self, begin, end):
        return end - begin

    def _factor(self, rank):
        """How many times longer a device takes than the running plan expects."""
        return self.slower.get(rank, 1.0) / self.job._replanning._learned.get(self.job.plan.devices[rank], 1.0)

    def _begin(self, begin, player, *arguments):
        begin(player, *arguments)
        for stage in player._stages.values():
            stage.compute = functools.partial(self._pass, stage.compute, len(player._stages))

    def _pass(self, compute, stages, *values):
        plan = self.job.plan
        seconds = plan.estimates.step_seconds * plan.estimates.utilization[plan.devices[self._rank]]
        self._now += seconds * self._factor(self._rank) / plan.micro_batches / stages
        return compute(*values)

    def _step(self, step, player, inputs):
        begin, plan = self._now, self.job.plan
        loss = step(player, inputs)
        slowest = max(self._factor(rank) for rank in range(plan.ranks) if rank not in plan.idle_ranks)
        self._now = begin + plan.estimates.step_seconds * slowest
        search = self.job._replanning._search
        if search is not None:
            search.join()
        return loss

    def _compute(self, device, count):
        self._probed += 1e-4 * count * self.slower.get(self._rank, 1.0)

    def _add_probe(self, add_probe, drift, *probe):
        self.probes += 1
        add_probe(drift, *probe)

    @contextlib.contextmanager
    def patched(self):
        """Jobs that are made meanwhile are on these devices."""
        def wrapped(of, name, by):
            real = getattr(of, name)
            return of, name, lambda *arguments: by(real, *arguments)

        no_pauses = mock.Mock(perf_counter=lambda: self._probed if threading.current_thread().name == _THREAD else math.inf,
                              thread_time=self.thread_time)
        with contextlib.ExitStack() as patches:
            for of, name, new in ((_torch_watch, "time", self), (_torch_job, "time", self), (idle, "time", no_pauses),
                                  (_torch_watch, "Clock", lambda device: self), (idle, "compute", self._compute),
                                  wrapped(_agpcs.Drift, "add_probe", self._add_probe), wrapped(Player, "__init__", self._begin),
                                  wrapped(Player, "step", self._step)):
                patches.enter_context(mock.patch.object(of, name, new))
            yield


def drifting(rank, kind, plan, optimizer_of, cluster, slow_rank, times, count):
    """Losses of a job one of whose ranks computes so many times slower after CALM steps, until its device has been idle for some probes;
    the parameters that this rank has by each of `count` plans, the plans, and what was printed."""
    devices, plans = Devices(rank), [plan]
    with devices.patched(), contextlib.redirect_stderr(io.StringIO()) as said:
        training = Training(kind, plan, optimizer_of, replan=cluster)
        devices.job = training.job
        training.train(CALM)
        held = training.held[-1:]
        devices.slower[slow_rank] = times
        while len(training.losses) < MOST and len(plans) < count:
            training.train(1)
            if devices.probes == PROBES:
                devices.slower.clear()
            if training.job.plan != plans[-1]:
                plans.append(training.job.plan)
                training.train()
                held.append(training.held[-1])
    return training.losses, held, [one.text for one in plans], said.getvalue()
