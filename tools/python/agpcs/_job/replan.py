# SPDX-License-Identifier: Apache-2.0
"""Watches a job of agpcs.torch.Job, and gives it another plan when a rank is no longer as fast as it was."""

from __future__ import annotations

import collections
import itertools
import os
import statistics
import sys
import threading
import time

import torch.distributed as dist

from agpcs._errors import Infeasible, InvalidInput, UsageError
from agpcs._job.idle import IdleProbe
from agpcs._job.together import raised_on_all
from agpcs._plan import plan as make_plan
from agpcs._torch_autoplan import duration
from agpcs._torch_replan import LEAST_GAIN, SAME
from agpcs._torch_watch import Watch

WARM_UP, LEAST_CALM = 2, 4  # steps of a plan that do not count, and that have to be known, from before a rank changed
LATEST = 8  # steps that tell what a step takes now
BUDGET = 100  # evaluations of the search
FEW = 4  # devices that may be a stage each
LOWEST_PRIORITY = 19
MOST_MOVES, WINDOW = 2, 600.0  # moves to other plans, in seconds
# What ranks divide, the most first: what more they may divide, as options call it.
_MORE = {"parameters": (), "gradients": ("parameters",), "optimizer": ("gradients",)}


class JobWatch(Watch):
    """Measures what a rank computes in each step: the forward and backward passes of its micro-batches, and the update
    where it waits for nobody; of an idle rank, what probes of its device take. With their figures, the ranks share whether rank 0
    has another plan for them."""

    WORDS = 1

    def __init__(self, plan, device, tell, replanning):
        self._replanning = replanning
        super().__init__(plan, device, None, tell)
        self.mark = self._mark

    def computed(self, begin):
        """Notes that a pass which began at the mark `begin` is over."""
        self._marks.append((begin, self._mark()))

    def step(self, reductions):
        """Notes that all of a step is over."""
        self._end_step(reductions, True)

    def expect(self, plan):
        if self._sent is not None:
            self._sent[0].wait()  # of the plan before; nobody judges it
        super().expect(plan)
        self._idle = IdleProbe(self._device, plan.estimates.step_seconds) if self._rank in plan.idle_ranks else None

    def _send(self, reductions):
        taken = None if self._idle is None else self._idle.take()
        if taken is not None:
            self._drift.add_probe(self._rank, taken)
        super()._send(reductions)

    def _words(self):
        return [float(self._replanning is not None and self._replanning.has_plan())]

    def _heard(self, words):
        if words[0][0]:
            self._replanning.announce()


class _Search(threading.Thread):
    """Looks for the fastest plan for devices that are slower by `factors`. It may leave some of the running plan's devices idle.
    `near` are lists of stages, as `plan_on` has them."""

    def __init__(self, running, training, file, cluster, factors, near, without, teams):
        super().__init__(name="agpcs-replan")
        self.factors, self.plan, self.error = factors, None, None
        slower = {device: factor for device, factor in factors.items() if abs(factor - 1) > SAME}
        options = {"slower": slower, "batch": running.batch, "precision": training["precision"], "bound": False, "threads": 1,
                   "wire_type": running.wire_type, "loss": training["loss"]["kind"], "without": without, "teams": teams}
        self._find = lambda: plan_on(running.devices, file, cluster, near, _slowest(slower), idle_ranks=True, **options)
        self.start()

    def run(self):
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)  # of this thread, on Linux: training goes first
        try:
            self.plan = self._find()
        except Exception as error:  # of this thread; rank 0 says it
            self.error = error


def plan_on(devices, file, cluster, near=(), slow=(), *, idle_ranks=False, **options):
    """Returns the fastest plan found for the devices, and no other one. It computes with all of them; with `idle_ranks`, with those
    that are worth it. `near` are lists of stages, by replicas ("a/0", or of teams "a/0+a/1"), such as a plan has that is near; `slow`
    the devices that may not be worth it, the slowest first. `options` are those of agpcs.plan."""
    found, failed = [], None
    for way in _ways(devices, near, slow):
        try:
            found.append(make_plan(file, cluster, **way, devices=devices, idle_ranks=idle_ranks, **options))
        except (Infeasible, InvalidInput) as error:  # no memory, or too many stages; other ways may do
            failed = error
    of_all = [made for made in found if set(made.devices) == set(devices)]
    if not of_all:
        raise failed or Infeasible(f"no plan was found that computes with all of {', '.join(devices)}")
    if of_all[0].devices != tuple(devices):
        raise UsageError(f"the ranks are on {', '.join(devices)}, and plans number them by the cluster file: "
                         f"{', '.join(of_all[0].devices)}\n  hint: number ranks as the cluster file has their devices")
    return min(of_all, key=lambda made: made.estimates.step_seconds)


def stages_of(plan):
    """The stages of a plan, without one of idle ranks, by their replicas as layouts say them."""
    return list(dict.fromkeys(_replicas(stage) for stage in plan.stages if not stage.idle))  # ranks may have several


def _replicas(stage):
    """The replicas of a stage, as layouts say them."""
    further = stage.further_devices or ((),) * len(stage.devices)
    return tuple("+".join((first, *others)) for first, others in zip(stage.devices, further))


def _slowest(slower):
    """The devices that are slower by some factor, the slowest first: a few."""
    return [device for device in sorted(slower, key=slower.get, reverse=True) if slower[device] > 1][:FEW]


def _ways(devices, near, slow):
    """The options of plans: those of a search; and, with all devices and without the slowest ones, the stages of `near`, the hosts as
    stages, and the devices as stages if they are few, with new cuts and shares, each in any order of up to three; all devices in one
    stage."""
    hosts = {}
    for device in devices:
        hosts.setdefault(device.rpartition("/")[0], []).append(device)
    layouts = {}
    for count in range(min(len(slow) + 1, len(devices))):
        left = [device for device in devices if device not in slow[:count]]
        layouts[",".join(left)] = None
        for stages in (*near, hosts.values(), [[device] for device in left if len(left) <= FEW]):
            stages = [[[device for device in replica.split("+") if device in left] for replica in stage] for stage in stages]
            stages = [",".join("+".join(members) for members in stage if members) for stage in stages if any(stage)]
            orders = itertools.permutations(stages) if len(stages) <= 3 else (stages, stages[::-1])
            layouts.update(("|".join(order), None) for order in orders if order)
    return [{"budget": BUDGET}, *({"layout": layout} for layout in layouts)]


class Replanning:
    """Does what `Job(replan=...)` says. The job calls it on all ranks after the same steps."""

    def __init__(self, plan, data, file, cluster, tell):
        if plan.statistics_every == 0:
            raise UsageError("replan needs a plan whose ranks exchange what they measure, and its statistics-every is 0\n"
                             "  hint: training.statistics_every of the cluster file")
        self._file, self._cluster, self._tell = file, os.path.abspath(cluster), tell
        if dist.get_rank() == 0:
            plan._command("check", [plan, "--model", file, "--cluster", self._cluster])
        self._steps = 0
        self._least = {}  # by device: the least factor by which it was slower while it computed, if that is below 1
        self._teams = False  # whether a plan that ran has teams
        self._of_all = []
        self._moves, self._said_waiting = collections.deque(maxlen=MOST_MOVES), False  # when the last ones were; of rank 0
        self.announced = False  #: whether rank 0 has told of another plan
        self.may_divide = True  #: whether the optimizers of all ranks treat each element by itself
        self.runs(plan, data, {})

    def runs(self, plan, data, factors):
        """Notes that a plan begins to run, which was made for devices that are slower by `factors`."""
        self._running, self._training = plan, data["training"]
        if not plan.idle_ranks:
            self._of_all = stages_of(plan)  # of the last plan that computed with all devices
        self._teams = self._teams or any(stage.further for stage in plan.stages)
        self._learned, self._factors = dict(factors), dict(factors)  # by device: as the plan has it; now
        self._seconds = []  # of the plan's steps
        self._began, self._ratio, self._wanted = self._steps, None, False
        self._search = self._found = None

    def drifted(self, changes):
        """Looks for another plan, in the background, if a rank's computing changed."""
        if self._tell is not None:
            self._tell(changes)
        computing = [change for change in changes if change.quantity == "compute"]
        for change in computing:
            device = self._running.devices[change.rank]
            factor = self._learned.get(device, 1.0) * change.factor
            least = self._least.get(device, 1.0)
            # A probe may show more of what slowed a device down than passes did; not that it computes faster than it ever did.
            self._factors[device] = max(factor, least) if change.rank in self._running.idle_ranks else factor
            self._least[device] = min(self._factors[device], least)
        if computing:
            self._wanted = True
            # Steps do not depend on the device of an idle rank.
            since = min((change.since for change in computing if change.rank not in self._running.idle_ranks), default=self._steps)
            calm = self._seconds[WARM_UP:max(since - self._began, 0)]
            if self._ratio is None and len(calm) >= LEAST_CALM:
                self._ratio = statistics.median(calm) / self._running.estimates.step_seconds

    def step_ended(self, seconds):
        self._steps += 1
        self._seconds.append(seconds)

    def has_plan(self):
        """Whether rank 0 has found a better plan. It looks before each exchange."""
        if dist.get_rank() != 0 or self._found is not None:
            return False
        search, self._search = self._search, None
        if search is not None and search.is_alive():
            self._search = search
        elif search is not None and search.factors == self._factors:
            self._wanted, self._found = False, self._better(search)
        elif (search is not None or self._wanted) and not self._may_move():
            self._wanted = True  # it plans for what is still there when it may
        elif search is not None or self._wanted:
            self._wanted = False
            near = [stages_of(self._running), self._of_all]
            self._search = _Search(self._running, self._training, self._file, self._cluster, dict(self._factors), near,
                                   self._left_out(), self._teams)
        return self._found is not None

    def _may_move(self):
        """Whether a move is among the few that a job may make; says if not, once."""
        if len(self._moves) < MOST_MOVES or time.monotonic() - self._moves[0] >= WINDOW:
            self._said_waiting = False
            return True
        if not self._said_waiting:
            _say(f"the plan stays: there were {MOST_MOVES} moves within {WINDOW:.0f} s; the next one has to wait")
        self._said_waiting = True
        return False

    def _left_out(self):
        """The dimensions of the space of plans that a new plan leaves out: those that the running one did. Of a plan of a file
        that is not known: one whose ranks do not divide state, or have nothing in hosts, may have been made so that they do."""
        levels = {group.state for group in self._running.groups}
        unknown = next((more for level, more in _MORE.items() if level in levels), ("state",))
        if all(stage.activations_in == "device" for stage in self._running.stages):
            offloads = any(stage.state_in == "host" for stage in self._running.stages)
            unknown = (*unknown, "activations" if offloads else "offload")
        known = unknown if self._running.without is None else self._running.without
        return known if self.may_divide else (*known, "state", "offload")

    def _better(self, search):
        """The plan that a search has found, if it is better. What a step takes now is measured, and so is by how much the
        steps of the running plan differed from what it expects, before a rank changed."""
        if search.plan is None or self._ratio is None:
            why = "what its steps took before is not known" if self._ratio is None else search.error
            _say(f"the plan stays: {why}")
            return None
        self._now = statistics.median(self._seconds[-LATEST:])
        self._then = self._ratio * search.plan.estimates.step_seconds
        if search.plan.text == self._running.text or self._then > (1 - LEAST_GAIN) * self._now:
            _say(f"the plan stays: a step takes {duration(self._now)}, with the best one {duration(self._then)}")
            return None
        return search.plan

    def announce(self):
        """Notes that rank 0 has told of a plan, which it has made for the factors as they are."""
        self.announced, self._planned = True, dict(self._factors)

    def switch(self, switch):
        """Lets the job `switch` to the plan that rank 0 has told of. All ranks call it."""
        plan, self._found, self.announced = self._found, None, False
        try:
            switch(plan, self._planned)
        except Exception as error:
            if not raised_on_all(error):
                raise
            if dist.get_rank() == 0:
                _say(f"the plan stays: {error}")
            return
        if plan is not None:
            self._moves.append(time.monotonic())
            stages = " | ".join(", ".join(f"{device} {samples}" for device, samples in zip(_replicas(stage), stage.samples))
                                for stage in plan.stages if not stage.idle)
            idle = [plan.devices[rank] for rank in plan.idle_ranks]
            without = f", without {', '.join(idle)}" if idle else ""
            _say(f"from step {self._steps + 1} on stages are {stages}{without}: a step takes {duration(self._then)}, with those before "
                 f"{duration(self._now)}")


def _say(text):
    print(f"agpcs: {text}", file=sys.stderr, flush=True)
