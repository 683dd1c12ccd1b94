# SPDX-License-Identifier: Apache-2.0
"""Replanning: new shares for a running job whose ranks are no longer as fast as they were."""

import sys

from agpcs._errors import Error, UsageError
from agpcs._plan import Plan, plan as make_plan
from agpcs._torch_autoplan import AutoPlan, duration, fewest_samples, plan_on_all
from agpcs._torch_links import Links, by_rank_0

LEAST_GAIN = 0.03  # part of a step that new shares must save
SAME = 0.05  # factors this near to 1 are 1


class Replanning:
    """Does what `plan_hook(replan=True)` says. The hook calls it on all ranks after the same steps."""

    def __init__(self, plan, sampler, tell):
        if not isinstance(plan, AutoPlan) or not plan.files:
            raise UsageError("replan needs a plan that autoplan made, with its files\n"
                             "  hint: plan = agpcs.torch.autoplan(..., cache='.agpcs')")
        self.plans = [plan]  #: the plans of this job
        self._sampler, self._tell = sampler, tell
        self._factors, self._learned = {}, {}  # by device: now; as the plan has it to which the watch compares
        self._coming = None  # the first step of the last plan and its `_learned`, until it comes

    @property
    def settled(self):
        """Whether the shares of the last plan are in use."""
        return self._coming is None

    def drifted(self, changes, group, device):
        """Makes a new plan, if it is better, for ranks that changed."""
        if self._tell is not None:
            self._tell(changes)
        devices = self.plans[0].devices
        for change in changes:
            if change.quantity == "compute":
                self._factors[devices[change.rank]] = self._learned.get(devices[change.rank], 1.0) * change.factor
        if self._coming is not None or not any(change.quantity == "compute" for change in changes):
            return
        links = Links(group, device)
        try:
            text, running, step = by_rank_0(links, self._better)
            if text is not None:
                plan = Plan(text)
                first = self._sampler.take(plan)
        except Error as error:  # on all ranks; the job goes on
            self._say(links, f"the shares stay: {error}")
            return
        if text is None:
            self._say(links, f"the shares stay: a step takes {duration(running)}, with the best ones {duration(step)}")
            return
        self._coming = first, dict(self._factors)
        self.plans.append(plan)
        shares = ", ".join(f"{name} {share}" for name, share in zip(plan.devices[:16], plan.shares))
        self._say(links, f"from step {first} on shares are {shares}: a step takes {duration(step)}, with those "
                         f"before {duration(running)}")

    def step_ended(self, watch):
        """Notes the end of a step."""
        if self._coming is not None and self._sampler.weighed >= self._coming[0]:
            watch.expect(self.plans[-1])
            self._learned = self._coming[1]
            self._coming = None

    def _better(self):
        """Returns the text of a better plan, or None; what a step takes by the running plan; and by the better one."""
        first, running = self.plans[0], self.plans[-1]
        slower = {name: factor for name, factor in self._factors.items() if abs(factor - 1) > SAME}
        options = {"slower": slower, "micro_batches": first.micro_batches}
        best = plan_on_all(first.files, fewest_samples(first.files), [], first.devices, **options)
        layout = ",".join(f"{name}:{share}" for name, share in zip(running.devices, running.shares))
        now = make_plan(first.files[3], first.files[1], all_reduce="ring", layout=layout, without=["state", "offload"], **options)
        seconds = now.estimates.step_seconds, best.estimates.step_seconds
        better = best.ranks == first.ranks and seconds[1] < (1 - LEAST_GAIN) * seconds[0]
        return best.text if better else None, *seconds

    @staticmethod
    def _say(links, text):
        if links.rank == 0:
            print(f"agpcs: {text}", file=sys.stderr, flush=True)
