# SPDX-License-Identifier: Apache-2.0
"""A communication hook for DistributedDataParallel (DDP) that reduces gradients in a plan's groups.

DDP calls the hook once for each of its buckets, in the same order on every rank. Its buckets differ from the plan's
groups: a group may be part of a bucket or span several. So the hook notes where each gradient lies in which bucket. It
begins the all-reduces of a group once the group is complete and all groups before it have begun. At the last bucket it
waits for all of them.
"""

from __future__ import annotations

import collections
import gc
import hashlib
import statistics
import time
import typing
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from agpcs._errors import PlanMismatch, UsageError
from agpcs._plan import refuse_idle
from agpcs._torch_keeper import Keeper, keeper_of
from agpcs._torch_links import Links
from agpcs._torch_watch import Watch

if typing.TYPE_CHECKING:  # some of them import this file
    from agpcs._plan import Plan
    from agpcs._torch_replan import Replanning
    from agpcs._torch_sampler import PlanSampler
    from agpcs._torch_watch import Change

WIRE_TYPES = {None: None, "fp16": torch.float16, "bf16": torch.bfloat16,
              torch.float16: torch.float16, torch.bfloat16: torch.bfloat16}
LARGE_RUN = {"cpu": 1 << 20, "cuda": 1 << 25}  # bytes; copying them takes longer than one more all-reduce's latency
FIRST_STEPS, KEPT_STEPS = 5, 50  # a job's first steps are slower; PlanState keeps the times of the last ones


class BoundGroup(typing.NamedTuple):
    name: str  #: the plan's name of the group, or "unplanned"
    parameters: tuple[str, ...]  #: the module's names; all have one type and one device


class Reduction(typing.NamedTuple):
    """One all-reduce of the last step."""

    group: str
    elements: int
    copied: bool  #: True: reduced in a buffer of its own; False: reduced in place, in DDP's bucket


class Run(typing.NamedTuple):
    """The range of adjacent gradients in the flat buffer of a DDP bucket."""

    bucket: int
    begin: int
    end: int


def reduce_by_plan(state, bucket):  # an agpcs.torch.Hook; DDP takes none whose types are written as texts
    return state.reduce(bucket)


class PlanState:
    """The state of the hook. After the first step, `groups` and `step` show what it does."""

    def __init__(self, plan: Plan, module: torch.nn.Module | None, process_group: dist.ProcessGroup | None,
                 wire_type: str | torch.dtype | None, unplanned: str, missing: str, rename: Callable[[str], str] | None,
                 on_drift: Callable[[list[Change]], object] | None = None, sampler: PlanSampler | None = None,
                 replanning: Replanning | None = None, averaged: bool = False) -> None:
        refuse_idle(plan)
        if len(plan.stages) != 1:
            raise PlanMismatch(
                f"the plan of {plan.model} has {len(plan.stages)} pipeline stages; DistributedDataParallel trains one\n"
                "  hint: agpcs.plan(..., data_parallel=True), or agpcs.torch.Job for pipelines")
        if plan.stages[0].further:
            raise PlanMismatch(
                f"the replicas of the plan of {plan.model} are teams; DistributedDataParallel trains replicas of one device each\n"
                "  hint: agpcs.plan(..., data_parallel=True), or agpcs.torch.Job for teams")
        if plan.stages[0].state_in != "device":
            raise PlanMismatch(
                f"the plan of {plan.model} has the optimizer's state in the memory of hosts; DistributedDataParallel keeps it on "
                "the devices\n  hint: agpcs.plan(..., data_parallel=True), or agpcs-compile --without offload")
        if plan.stages[0].activations_in != "device":
            raise PlanMismatch(
                f"the plan of {plan.model} has activations in the memory of hosts; DistributedDataParallel keeps them on the "
                "devices\n  hint: agpcs.plan(..., data_parallel=True), or agpcs-compile --without activations")
        divided = next((group.name for group in plan.groups if group.parts), None)
        if divided is not None:
            raise PlanMismatch(
                f"the ranks of bucket {divided} divide its optimizer state; DistributedDataParallel keeps it whole\n"
                "  hint: agpcs.plan(..., data_parallel=True), or without=['state']")
        if wire_type not in WIRE_TYPES:
            raise UsageError(f"wire_type is {wire_type!r}; it is None, 'fp16' or 'bf16'")
        if unplanned not in ("error", "last"):
            raise UsageError(f"unplanned is {unplanned!r}; it is 'error' or 'last'")
        if missing not in ("error", "skip"):
            raise UsageError(f"missing is {missing!r}; it is 'error' or 'skip'")
        if rename is not None and not callable(rename):
            raise UsageError(f"rename is {rename!r}; it is None or a function from the plan's names to the module's")
        self.plan = plan
        self.groups: tuple[BoundGroup, ...] = ()  #: BoundGroup, in the order of reduction
        self.step: list[Reduction] = []  #: Reduction, in the order in which they began
        #: of the last steps, from one to the next
        self.step_seconds: collections.deque[float] = collections.deque(maxlen=KEPT_STEPS)
        self.process_group = process_group
        self._wire_type = WIRE_TYPES[wire_type or plan.wire_type]
        #: whether DDP's own buckets are reduced, not the plan's groups: autoplan found nothing faster than plain DDP
        self.in_ddp_buckets = getattr(plan, "in_ddp_buckets", False) and self._wire_type is None
        self._unplanned, self._missing = unplanned, missing
        self._rename = rename or (lambda name: name)
        self._averaged = averaged if sampler is None else sampler.averaged
        self._names = {}  # id of a parameter -> name
        self._group_of = {}  # name -> index in groups
        self._layout = _Layout()
        self._buffers = {}  # group index -> flat tensor
        self._agreed = False
        self.keeper: Keeper | None = None  #: Keeper, from the first step on
        self._on_drift = on_drift
        self._sampler = sampler  # weights losses; None: the hook weights gradients
        if sampler is not None and not self._averaged:
            sampler.summed = True
        self._weighed = -1  # the sampler's step whose gradients came last
        self._reduced = False  # whether the last backward pass reduced gradients
        self.replanning = replanning  #: Replanning; None: shares stay
        self.watch: Watch | None = None  #: Watch, from the first step on; None: nobody asked for it
        self._begun = None  # when the last step's first gradients came
        self._steps = 0
        if module is not None:
            self._bind(module)

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Handles a bucket: returns a future of its reduced buffer."""
        try:
            return self._reduce(bucket)
        except RuntimeError as error:
            if self.keeper is not None:
                self.keeper.waiting = False
                self.keeper.explain(error)
            raise

    def _reduce(self, bucket):
        if not self._agreed:
            self._begin_job(bucket)
        if bucket.index() == 0:
            self.keeper.check()
            self._step = _Step(self)
            self.step = []
            self._count()
        if bucket.buffer().is_sparse:
            names = _listed([self.name_of(p) for p in bucket.parameters()])
            raise PlanMismatch(f"the gradient of {names} is sparse; a plan reduces dense ones\n"
                               "  hint: torch.nn.Embedding(sparse=False)")
        return self._step.take(bucket)

    def _count(self):
        now = time.perf_counter()
        if self._begun is not None:
            self.step_seconds.append(now - self._begun)
        self._begun, self._steps = now, self._steps + 1
        if self._steps == FIRST_STEPS + KEPT_STEPS and hasattr(self.plan, "say_measured"):
            self.plan.say_measured(statistics.median(self.step_seconds), KEPT_STEPS)

    def _bind(self, module):
        """Matches the plan's parameters with those of `module` by name."""
        ignored = getattr(module, "parameters_to_ignore", ())
        if isinstance(module, DistributedDataParallel):
            if self.process_group is None:
                self.process_group = module.process_group
            module = module.module
        else:
            ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
        parameters = _Parameters(module, ignored)
        planned, frozen, missing = {}, [], []
        for group in self.plan.groups:
            for name, elements in zip(map(self._rename, group.parameters), group.elements):
                parameter = parameters.named.get(name)
                if parameter is None:
                    missing.append(name)
                elif id(parameter) not in parameters.trained:
                    frozen.append(name)
                elif parameter.numel() != elements:
                    raise PlanMismatch(
                        f"'{name}' has {elements} elements in the plan and {parameter.numel()} in the module\n"
                        "  hint: plan the module that is trained")
                else:
                    planned[id(parameter)] = (name, group.name, parameter)
        unplanned = {key: entry for key, entry in parameters.trained.items() if key not in planned}
        self._refuse(missing if self._missing == "error" else [],
                     [name for name, _ in unplanned.values()] if self._unplanned == "error" else [])
        if frozen:
            warnings.warn(f"the plan reduces gradients of {_listed(frozen)}, which the module does not train: left out")
        rest = {key: (name, "unplanned", parameter) for key, (name, parameter) in unplanned.items()}
        self._set_groups({**planned, **rest})

    def _refuse(self, missing, unplanned):
        said = []
        if missing:
            said.append(f"the module lacks {_listed(missing)} of the plan\n"
                        "  hint: agpcs.torch.export keeps the module's names; rename= maps other ones, missing='skip' leaves them out")
        if unplanned:
            said.append(f"the plan lacks {_listed(unplanned)} of the module\n"
                        "  hint: plan the module that is trained; unplanned='last' reduces them after the plan's groups")
        if said:
            raise PlanMismatch("\n".join(said))

    def _set_groups(self, entries):
        """Forms the groups. `entries` maps a parameter's id to its name, its group's name and the parameter, in
        the plan's order."""
        members = {}  # a group has one type and device; other parameters form groups of their own
        for key, (name, group, parameter) in entries.items():
            self._names[key] = name
            members.setdefault((group, parameter.dtype, parameter.device), []).append(name)
        self.groups = tuple(BoundGroup(group, tuple(names)) for (group, _, _), names in members.items())
        self._group_of = {name: i for i, group in enumerate(self.groups) for name in group.parameters}

    def _begin_job(self, bucket):
        """Binds the module, if necessary, and compares the plan with that of the other ranks, so that either all
        ranks go on or none. Called once, at the first bucket."""
        refusal = None
        try:
            if not self.groups:
                self._bind(_wrapper_of(bucket.parameters()[0]))
            ranks = dist.get_world_size(self.process_group)
            if ranks != self.plan.ranks:
                raise PlanMismatch(f"the plan is for {self.plan.ranks} ranks and the process group has {ranks}\n"
                                   "  hint: agpcs.plan(..., layout='host/0,host/1') names the devices to plan for")
        except PlanMismatch as error:
            refusal = error
        device = bucket.buffer().device
        self.keeper = keeper_of(Links(self.process_group, device))
        others = self._exchange(device, refusal is None)
        if refusal is not None:
            raise refusal
        for rank, theirs in enumerate(others):
            if theirs[0] == 0:
                raise PlanMismatch(f"rank {rank} refuses the plan\n  hint: its own error says why")
            if theirs != others[0]:
                raise PlanMismatch(f"rank {rank} has another plan, or other options of plan_hook, than rank 0\n"
                                   "  hint: give all ranks one file")
        if self._wire_type is not None:
            self._try_wire_type(device)
        if self._averaged:
            self._scale = 1 / ranks
        elif self._sampler is not None:
            self._scale = 1.0
            self._refuse_sums_of_sums(min(bucket.parameters(), key=torch.Tensor.numel))
        else:
            self._scale = self.plan.shares[dist.get_rank(self.process_group)] / self.plan.batch
        several = dist.get_world_size(self.process_group) > 1
        tell = self._on_drift
        if self.replanning is not None:
            def tell(changes):
                self.replanning.drifted(changes, self.process_group, device)
        if several and tell is not None and self.plan.statistics_every > 0:
            self.watch = Watch(self.plan, device, self.process_group, tell)
        self._agreed = True

    def _refuse_sums_of_sums(self, parameter):
        """Refuses gradients that are added to reduced ones. All ranks have the same of those, and would add them up again.
        (A mean over ranks would leave them as they are.) `parameter`: one that is trained in each step."""
        def check(_):
            if self._reduced and parameter.grad is not None and parameter.grad.any():
                raise PlanMismatch("gradients are added to those of another step, which all ranks have reduced already\n"
                                   "  hint: optimizer.zero_grad() after each step; accumulate within sampler.sync(ddp, i) or "
                                   "ddp.no_sync(), or by plan_hook without sampler")
            self._reduced = False
        parameter.register_hook(check)

    def _try_wire_type(self, device):
        try:
            dist.all_reduce(torch.zeros(1, dtype=self._wire_type, device=device), group=self.process_group)
        except RuntimeError as error:
            backend = dist.get_backend(self.process_group)
            raise PlanMismatch(f"{backend} of PyTorch {torch.__version__} does not sum {self._wire_type}: {error}\n"
                               "  hint: wire_type='fp16', or None") from error

    def _exchange(self, device, fine):
        """Returns bytes for each rank: whether it accepts the plan, and a digest of what it reduces."""
        options = self.groups, str(self._wire_type), self._averaged, self.in_ddp_buckets
        what = hashlib.sha256(repr((self.plan.text, *options)).encode()).digest()
        mine = torch.tensor([int(fine), *what], dtype=torch.uint8, device=device)
        all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.process_group))]
        dist.all_gather(all_of_them, mine, group=self.process_group)
        return [tensor.tolist() for tensor in all_of_them]

    def name_of(self, parameter: torch.Tensor) -> str:
        name = self._names.get(id(parameter))
        if name is None:
            raise PlanMismatch(f"a gradient of shape {tuple(parameter.shape)} came that is not of the hook's module\n"
                               "  hint: each DistributedDataParallel needs a plan_hook of its own")
        return name

    def flat(self, index: int, views: list[torch.Tensor]) -> torch.Tensor:
        """Returns the buffer of group `index`, filled with the weighted gradients of `views`."""
        size = sum(view.numel() for view in views)
        kind = self._wire_type or views[0].dtype
        flat = self._buffers.get(index)
        if flat is None or flat.numel() != size or flat.dtype != kind:
            flat = self._buffers[index] = torch.empty(size, dtype=kind, device=views[0].device)
        for part, view in zip(flat.split([view.numel() for view in views]), views):
            torch.mul(view, self._scale, out=part)
        return flat

    def parts(self, views: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Parts the gradients of a group into those that are reduced in place, each by itself, and those that are
        reduced together in a flat buffer."""
        if self._wire_type not in (None, views[0].dtype):
            return [], views
        least = LARGE_RUN[views[0].device.type]
        large = [view for view in views if view.numel() * view.element_size() >= least]
        small = [view for view in views if view.numel() * view.element_size() < least]
        return (large + small, []) if len(small) == 1 else (large, small)

    def weighted(self, view: torch.Tensor) -> torch.Tensor:
        """Weights gradients in place."""
        return view if self._scale == 1.0 else view.mul_(self._scale)

    def step_ended(self) -> None:
        """Notes that all gradients of a step are reduced."""
        self._reduced = True
        if self._sampler is not None:
            if self._sampler.weighed == self._weighed:
                raise PlanMismatch("no loss was weighed in this step\n"
                                   "  hint: sampler.weigh(loss, i) before each backward pass, by the sampler that the hook knows; "
                                   "sampler.sync reduces micro-batches once")
            self._weighed = self._sampler.weighed
        if self.replanning is not None:
            self.replanning.step_ended(self.watch)


class _Step:
    """The buckets and groups of one backward pass."""

    def __init__(self, state):
        self._state = state
        self._buffers, self._futures = {}, {}  # by index of the bucket
        self._left = [len(group.parameters) for group in state.groups]  # gradients missing, by group
        self._next = 0  # the group to begin next
        self._begun = []  # of each all-reduce: work, tensor, the gradients that the tensor is a copy of
        self._watched = []  # of each all-reduce, what the watch noted

    def take(self, bucket):
        state, index, buffer = self._state, bucket.index(), bucket.buffer()
        self._buffers[index] = buffer
        self._futures[index] = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
        for name in state._layout.take(bucket, state.name_of):
            self._left[state._group_of[name]] -= 1
        if state.in_ddp_buckets:
            self._reduce(f"bucket {index}", state.weighted(buffer), [])
        while not state.in_ddp_buckets and self._next < len(self._left) and self._left[self._next] == 0:
            self._begin(self._next)
            self._next += 1
        if bucket.is_last():
            self._end()
        return self._futures[index]

    def _begin(self, index):
        """Begins the all-reduces of a group."""
        state = self._state
        runs = state._layout.runs(index, state.groups[index].parameters)
        alone, together = state.parts([self._buffers[run.bucket][run.begin:run.end] for run in runs])
        name = state.groups[index].name
        for view in alone:
            self._reduce(name, state.weighted(view), [])
        if together:
            self._reduce(name, state.flat(index, together), together)

    def _reduce(self, name, sums, copied):
        """Begins one all-reduce of a group. `copied`: the gradients that `sums` is a copy of."""
        state = self._state
        state.step.append(Reduction(name, sums.numel(), bool(copied)))
        work = dist.all_reduce(sums, group=state.process_group, async_op=True)
        self._begun.append((work, sums, copied))
        if state.watch is not None and state.watch.notes_reductions:
            self._watched.append(state.watch.begun(work))

    def _end(self):
        """Waits for all groups. The last bucket comes when the backward pass is over, so waiting here delays nothing
        else. No other thread has to run Python later, when the interpreter may be gone."""
        if any(self._left):
            late = [g.name for g, left in zip(self._state.groups, self._left) if left > 0]
            raise PlanMismatch(f"gradients of group {late[0]} never came; {len(late)} groups wait\n"
                               "  hint: give plan_hook the module that DistributedDataParallel wraps")
        watch = self._state.watch
        if watch is not None:
            watch.gradients_ready()
        keeper = self._state.keeper
        keeper.waiting = True
        for work, sums, copied in self._begun:
            work.wait()
            if copied:
                for part, view in zip(sums.split([view.numel() for view in copied]), copied):
                    view.copy_(part)
        self._begun.clear()
        if watch is not None:
            watch.step(self._watched)
        self._state.step_ended()
        keeper.waiting = False
        for index, future in self._futures.items():
            future.set_result(self._buffers[index])


class _Layout:
    """The places of gradients in DDP's buckets. DDP forms its buckets anew after the first step."""

    def __init__(self):
        self._buckets = {}  # index -> (ids of parameters, their names)
        self._place = {}  # name -> Run
        self._runs = {}  # group -> runs in the current buckets

    def take(self, bucket, name_of):
        """Notes the places of a bucket's gradients, and returns the names of its parameters."""
        parameters = bucket.parameters()
        ids = tuple(map(id, parameters))
        known = self._buckets.get(bucket.index())
        if known is not None and known[0] == ids:
            return known[1]
        first = bucket.buffer().storage_offset()
        of_bucket = []
        for parameter, gradient in zip(parameters, bucket.gradients()):
            begin = gradient.storage_offset() - first
            of_bucket.append(name_of(parameter))
            self._place[of_bucket[-1]] = Run(bucket.index(), begin, begin + gradient.numel())
        self._buckets[bucket.index()] = (ids, of_bucket)
        self._runs.clear()
        return of_bucket

    def runs(self, group, names):
        """Returns the gradients `names`, whose places are all known, as runs of adjacent ones. The runs are the same on
        every rank."""
        runs = self._runs.get(group)
        if runs is None:
            runs = []
            for place in sorted(self._place[name] for name in names):
                if runs and runs[-1].bucket == place.bucket and runs[-1].end == place.begin:
                    runs[-1] = Run(place.bucket, runs[-1].begin, place.end)
                else:
                    runs.append(place)
            self._runs[group] = runs
        return runs


class _Parameters:
    """The parameters of a module by all of their names. A shared parameter has several names."""

    def __init__(self, module, ignored):
        self.named = {}  # name -> parameter
        self.trained = {}  # id -> (first name, parameter)
        for prefix, part in module.named_modules(remove_duplicate=False):
            for key, parameter in part._parameters.items():
                own = f"{prefix}.{key}" if prefix else key
                name = plain_name(own)
                if parameter is None:
                    continue
                self.named[name] = parameter
                if parameter.requires_grad and own not in ignored:
                    self.trained.setdefault(id(parameter), (name, parameter))


def plain_name(name):
    """Returns a parameter's name without what torch.compile puts before it."""
    return name.replace("_orig_mod.", "")


def _listed(names):
    shown = ", ".join(f"'{name}'" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _wrapper_of(parameter):
    """Returns the DDP module that has `parameter`. DDP does not tell a hook whose gradients it gets."""
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), DistributedDataParallel) and
             any(p is parameter for p in thing.parameters())]
    if len(found) != 1:
        raise PlanMismatch(f"{len(found)} DistributedDataParallel modules have the gradients that came\n"
                           "  hint: plan_hook(plan, module) names it")
    return found[0]
