# SPDX-License-Identifier: Apache-2.0
"""autoplan: measures the ranks of a job, and plans how they share each batch."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import sys
import tempfile
import time
import typing
import warnings
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from agpcs import _agpcs, _new_file
from agpcs import _torch_cache as kept_files
from agpcs import _torch_files as files
from agpcs._errors import Infeasible, InvalidInput, UsageError
from agpcs._plan import Path, Plan, plan as make_plan
from agpcs._torch_curves import kinds_of
from agpcs._torch_keeper import keeper_of
from agpcs._torch_links import Links, by_rank_0, on_every_rank
from agpcs._torch_measure import Rehearsed, measure, rehearse
from agpcs._torch_steps import Steps, device_name, signature_of

LOST = 1e6  # times slower than it was: no plan takes such a device
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the text of an object: another one in each process
EXCHANGE_SECONDS, MOST_STEPS = 0.2, 5  # the watch's figures are exchanged so often, or after so many steps


Module = typing.TypeVar("Module", bound=torch.nn.Module)
Batch = typing.TypeVar("Batch")


class AutoPlan(Plan):
    """The plan of a job, on each of its ranks, and what is known of it beside the plan."""

    def __init__(self, text: str, facts: Mapping[str, typing.Any], process_group: dist.ProcessGroup | None,
                 rank: int | None, quiet: bool) -> None:
        kept = facts["files"]
        super().__init__(text, made_from=(kept[3], kept[1]) if kept else None)
        #: what a step with equal shares on all ranks takes: in plain DDP, where it was tried; else by a plan with equal
        #: shares; None: those do not fit into memory at once
        self.equal_step_seconds: float | None = facts["equal"]
        #: plain DDP with equal shares was no slower than other shares, so that is the plan: plan_hook reduces DDP's own
        #: buckets
        self.in_ddp_buckets: bool = facts["in_ddp_buckets"]
        #: the devices of the fastest plan; those of this one, or fewer
        self.best_devices: tuple[str, ...] = tuple(facts["best"])
        self.best_step_seconds: float = facts["best_seconds"]  #: what that plan expects of a step
        self.measuring_seconds: float | None = facts["measuring"]  #: None: the plan came from the cache
        self.copied_bytes: int | None = facts["copied"]  #: memory that measuring took for copies, on the rank with most
        #: plan (on rank 0), cluster, profile and model; empty without a cache
        self.files: tuple[str, ...] = tuple(kept)
        self.process_group = process_group  #: of the plan's ranks; None: the job's
        self.measured_ranks: int = facts["measured_ranks"]  #: ranks of the job that measured: these, and perhaps others
        self.rank = rank  #: this process's rank in the plan; None: it was left out
        self.quiet = quiet

    def say_measured(self, seconds: float, steps: int) -> None:
        """Prints what a step of the job took, on rank 0."""
        if self.quiet or self.rank != 0:
            return
        expected = self.estimates.step_seconds
        equal = "" if self.equal_step_seconds is None else f", with equal shares {duration(self.equal_step_seconds)}"
        print(f"agpcs: the last {steps} steps took {duration(seconds)} (median), the plan expects "
              f"{duration(expected)} ({seconds / expected - 1:+.1%}){equal}", file=sys.stderr, flush=True)

    def summary(self) -> str:
        """Returns what autoplan prints."""
        step, equal = self.estimates.step_seconds, self.equal_step_seconds
        others = f"a job of {self.measured_ranks} ranks, " if self.measured_ranks > self.ranks else ""
        came = (f"by the measurements of {others}{self.files[2]}" if self.measuring_seconds is None
                else f"measured in {self.measuring_seconds:.0f} s, copies took {self.copied_bytes / 1e6:.0f} MB")
        shares = ", ".join(f"{device} {share}" for device, share in zip(self.devices[:16], self.shares))
        lines = [f"agpcs: plan for {self.ranks} ranks, batch {self.batch} ({came})",
                 f"agpcs: shares: {shares}" + (", ..." if self.ranks > 16 else ""),
                 f"agpcs: a step takes {duration(step)}, with equal shares "
                 + ("it does not fit into memory" if equal is None
                    else f"{duration(equal)}: {equal / step:.2f} times as fast")]
        if self.micro_batches > 1:
            lines.append(f"agpcs: memory asks for {self.micro_batches} micro-batches a step "
                         f"(PlanSampler(..., micro_batches={self.micro_batches}))")
        idle = sorted(set(self.devices) - set(self.best_devices))
        if idle:
            lines.append(f"agpcs: without {', '.join(idle)} a step would take {duration(self.best_step_seconds)}\n"
                         "  hint: autoplan(..., leave_out=True) trains without, in plan.process_group")
        return "\n".join(lines)


def autoplan(model: Module, loss_fn: Callable[[Module, Batch], torch.Tensor], sample_batch: Batch, batch: int, *,
             optimizer: torch.optim.Optimizer | None = None, max_samples: int | None = None, seconds: float = 120,
             leave_out: bool = False, cache: Path | None = ".agpcs", process_group: dist.ProcessGroup | None = None,
             quiet: bool = False) -> AutoPlan:
    """Measures this job's ranks, and returns the AutoPlan of its data-parallel training. Every rank calls it alike.

    `model`: the module that trains, on its device, before DistributedDataParallel wraps it.
    `loss_fn(model, batch)`: returns the mean loss over the batch's samples, as the training loop computes it, autocast
        included.
    `sample_batch`: what the DataLoader yields, with any number of samples. Axis 0 of each tensor is the batch, unless
        its extent differs from the first tensor's.
    `batch`: samples of a step, over all ranks.
    `optimizer`: the job's. Without it, SGD with momentum is assumed.
    `max_samples`: the most samples of a pass to measure; by default twice an equal share, if they fit into memory.
    `seconds`: measuring takes about as long, at most.
    `leave_out`: True plans for the ranks that are fastest together, in a `process_group` of their own. All ranks of the
        job have to be planned. By default all ranks take part.
    `cache`: a folder that keeps the plan with the measurements. A job with the same devices, model, batch
        and types, or with some of the devices, takes them from there and measures nothing. Each host keeps a copy.
        None: nothing is kept.
    `process_group`: the ranks of the job, if they are not all.
    `quiet`: rank 0 prints nothing.

    Each rank measures its forward and backward pass at growing numbers of samples, at most 80% of the memory that it
    may use, then all of them together near the shares to be; further its optimizer, messages and all-reduces. Parameters,
    buffers, gradients, the optimizer and the random generators are afterwards as before, to the bit.

    Raises agpcs.Error on every rank, which names the rank and its reason, if a rank cannot be measured, and RankLost if a
    rank is gone.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise UsageError("autoplan needs a process group\n"
                         "  hint: torch.distributed.init_process_group() first, under torchrun, srun or mpirun")
    trained = model.parameters() if isinstance(model, torch.nn.Module) else ()
    device = next((p.device for p in trained), torch.device("cpu"))
    links = Links(process_group, device)
    if leave_out and links.ranks < dist.get_world_size():
        raise UsageError(f"leave_out makes a process group, which all ranks of a job make together, and process_group has "
                         f"{links.ranks} of {dist.get_world_size()}\n"
                         "  hint: autoplan(..., leave_out=True) on all ranks, without process_group")
    with keeper_of(links).naming():
        job = on_every_rank(links, lambda: _Job(model, loss_fn, sample_batch, batch, optimizer, max_samples, seconds))
        ranks = links.gather(job.identity())
        places = on_every_rank(links, lambda: _places(ranks))
        asked = links.gather(job.asked())
        on_every_rank(links, lambda: _check_alike(asked))
        by_rank_0(links, lambda: None if cache is None else kept_files.prepare(cache))
        with tempfile.TemporaryDirectory() as temporary:
            paths = kept_files.paths_of(temporary if cache is None else cache, ranks, job.signature())
            measuring, copied = _measurements(job, links, ranks, places, paths)
            text, facts = by_rank_0(links, lambda: _planned_by(places, paths, leave_out, measuring is None))
        facts.update(measuring=measuring, copied=copied, files=[] if cache is None else paths[:4])
        return _plan_of(text, facts, links, places, process_group, quiet)


def _measurements(job, links, ranks, places, paths):
    """Puts the files of measurements at `paths`, on each host: those of an earlier job, or new ones. Returns the seconds
    that measuring took, None if it was not needed, and the bytes of its copies."""
    here = [rank["host"] for rank in ranks].index(ranks[links.rank]["host"]) == links.rank  # the first rank of its host
    found = kept_files.find(paths, ranks) if here else None
    every = links.gather(None if found is None else found != paths[1])
    # Whose files count: those of a job of just these ranks, if there are any; the first rank's.
    owner = min((rank for rank, other in enumerate(every) if other is not None), key=lambda rank: every[rank], default=None)
    measuring = copied = None
    if owner is None:
        begin = time.perf_counter()
        measured = measure(job, links, places)
        rehearsed, beside, every = Rehearsed(), 0.0, MOST_STEPS
        if links.ranks > 1:
            text, equal = by_rank_0(links, lambda: _first_plans(job, places, measured, paths))
            first = Plan(text)
            rehearsed = rehearse(job, links, first, measured)
            beside = _beside(rehearsed, first.estimates.step_seconds, equal)
            every = min(max(math.ceil(EXCHANGE_SECONDS / first.estimates.step_seconds), 1), MOST_STEPS)
        by_rank_0(links, lambda: kept_files.keep(paths, _texts(job, places, measured, rehearsed, beside, every, paths)))
        measuring, copied, owner, found = time.perf_counter() - begin, measured.copied, 0, paths[1]
    texts = links.share(on_every_rank(links, lambda: kept_files.texts_for(found, paths, ranks) if links.rank == owner
                                      else None), owner)
    by_rank_0(links, lambda: kept_files.keep(paths, texts))
    if here and links.rank > 0:
        try:
            kept_files.keep(paths, texts)
        except OSError as error:
            warnings.warn(f"host {ranks[links.rank]['host']} keeps no copy of the measurements: {error}\n"
                          "  hint: autoplan(..., cache=FOLDER) with a folder that this host can write")
    return measuring, copied


def _plan_of(text, facts, links, places, process_group, quiet):
    """Returns the AutoPlan of this rank, and prints it on rank 0."""
    members = [places.index(device) for device in facts["devices"]]
    group = process_group
    if len(members) < links.ranks:
        group = dist.new_group([links.global_rank(rank) for rank in members])
    rank = members.index(links.rank) if links.rank in members else None
    plan = AutoPlan(text, facts, group, rank, quiet)
    if links.rank == 0 and not quiet:
        print(plan.summary(), file=sys.stderr, flush=True)
    return plan


# The job --------------------------------------------------------------------------------------------------------------

class _Job:
    """What a rank is asked to measure."""

    def __init__(self, model, loss_fn, sample_batch, batch, optimizer, max_samples, seconds):
        for name, value in (("batch", batch), ("max_samples", max_samples)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UsageError(f"{name} is {value!r}\n  hint: it is a whole number from 1")
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
            raise UsageError(f"seconds is {seconds!r}\n  hint: it is a number above 0")
        for name, value, kind in (("model", model, torch.nn.Module), ("optimizer", optimizer, torch.optim.Optimizer),
                                  ("loss_fn", loss_fn, Callable)):
            if not isinstance(value, kind) and not (name == "optimizer" and value is None):
                raise UsageError(f"{name} is {value!r}\n  hint: autoplan(model, loss_fn, sample_batch, batch=512, "
                                 "optimizer=optimizer)")
        if isinstance(model, DistributedDataParallel):
            raise UsageError("the model is a DistributedDataParallel module\n"
                             "  hint: autoplan(ddp.module, ...), before the plan's hook is registered")
        self.model, self.batch, self.optimizer = model, batch, optimizer
        self.max_samples, self.seconds = max_samples, seconds
        if not any(p.requires_grad for p in model.parameters()):
            raise InvalidInput("the model has no parameter with requires_grad\n  hint: plan the model that is trained")
        self.steps = Steps(model, loss_fn, sample_batch)
        self.device = self.steps.device
        if self.device.type not in ("cpu", "cuda"):
            raise InvalidInput(f"the model is on the device '{self.device}'; autoplan measures 'cpu' and 'cuda'")
        self.parameters = [files.Parameter(name, tuple(p.shape), p.dtype) for name, p in self.steps.parameters]
        for parameter in self.parameters:
            if parameter.dtype not in files.TYPES:
                raise InvalidInput(f"parameter '{parameter.name}' is of type {parameter.dtype}; a plan has float32, "
                                   "float16 and bfloat16\n  hint: model.float()")

    def identity(self):
        """Returns what tells this rank's device from others."""
        host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()) or "host"
        return {"host": host, "device": device_name(self.device)}

    def asked(self):
        """Returns what all ranks have to ask for alike."""
        return {"batch": self.batch, "parameters": [(p.name, p.shape) for p in self.parameters]}

    def signature(self):
        """Returns all that a plan depends on beside the devices, as a text."""
        return json.dumps([[p.name, list(p.shape), str(p.dtype)] for p in self.parameters] +
                          [ADDRESS.sub("", repr(self.model)), signature_of(self.steps.sample), self.batch,
                           type(self.optimizer).__name__, self.max_samples, torch.__version__, _agpcs.version])


def _check_alike(asked):
    """Checks what the ranks asked for, by rank."""
    batch = asked[0]["batch"]
    for rank, other in enumerate(asked):
        if other["batch"] != batch:
            raise UsageError(f"batch is {batch} on rank 0 and {other['batch']} on rank {rank}\n"
                             "  hint: it is the number of samples of a step over all ranks, the same on each")
        if other["parameters"] != asked[0]["parameters"]:
            raise UsageError(f"the model of rank {rank} has other parameters than that of rank 0\n"
                             "  hint: every rank plans the same model")
    if batch < len(asked):
        raise UsageError(f"batch is {batch}, and the job has {len(asked)} ranks\n  hint: each rank takes a sample at least")


def _places(ranks):
    """Returns each rank's device, "host/index", by rank. Devices are numbered host by host."""
    hosts = [rank["host"] for rank in ranks]
    order = list(dict.fromkeys(hosts))
    if [host for host in order for _ in range(hosts.count(host))] != hosts:
        returns = next(h for i, h in enumerate(hosts) if i and h != hosts[i - 1] and h in hosts[:i])
        raise InvalidInput(f"the ranks of host '{returns}' do not follow one another\n"
                           "  hint: number ranks host by host (srun --distribution=block, mpirun --map-by slot)")
    return [f"{host}/{hosts[:rank].count(host)}" for rank, host in enumerate(hosts)]


# Planning -------------------------------------------------------------------------------------------------------------

def _first_plans(job, places, measured, paths):
    """Returns the text of a plan for all ranks, to rehearse it, and what one with equal shares expects of a step, in
    seconds; None: that does not fit into memory."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, os.path.basename(path)) for path in paths]
        kept_files.keep(paths, _texts(job, places, measured, Rehearsed(), 0.0, MOST_STEPS, paths))
        least = fewest_samples(paths)
        equal = _plan_of_equal_shares(paths, least, [], places)
        return plan_on_all(paths, least, [], places).text, None if equal is None else equal.estimates.step_seconds


def _beside(rehearsed, planned, equal):
    """Returns what the better way of a step took beyond what its plan expects. `planned` and `equal` are what the plans
    expect of a step, in seconds."""
    if rehearsed.planned is None:
        return 0.0
    if equal is not None and rehearsed.equal is not None and rehearsed.equal <= rehearsed.planned:
        return rehearsed.equal - equal
    return rehearsed.planned - planned


def _texts(job, places, measured, rehearsed, beside, every, paths):
    """Returns the texts of the cluster file, the profile, the model and what was rehearsed. `beside`: seconds of a step
    beside computing and messages. `every`: steps between two exchanges of what the watch measures."""
    kinds, kind_of = kinds_of(measured.ranks)
    hosts = {}
    for rank, place in enumerate(places):
        hosts.setdefault(files.host_of(place), []).append(kind_of[rank])
    memory = {kind: min(m.memory for m, k in zip(measured.ranks, kind_of) if k == kind) for kind in kinds}
    optimizer = measured.ranks[0].update.name
    optimizer = "{kind: sgd, momentum: 0.9}" if optimizer == "sgd momentum" else optimizer
    return [files.cluster_text(os.path.basename(paths[2]), hosts, kinds, memory, measured.links, job.batch, optimizer,
                               files.precision_of(measured.parts), every),
            files.profile_text(measured.parts, measured.bytes_per_sample, kinds, measured.paths, measured.all_reduces,
                               places, max(beside, 0.0)),
            files.model_text(type(job.model).__name__, measured.parts, measured.bytes_per_sample),
            json.dumps(rehearsed._asdict()) + "\n"]


def _planned_by(places, paths, leave_out, kept):
    """Plans by the files, which an earlier job `kept` or this one wrote, as _planned."""
    try:
        return _planned(places, paths, leave_out)
    except Infeasible:
        raise
    except Exception as error:  # anything may be in the files
        if not kept:
            raise
        raise InvalidInput(f"the files of an earlier job cannot be used: {error}\n  hint: {kept_files.again(paths[1])}") \
            from error


def _planned(places, paths, leave_out):
    """Plans by the files. Returns the plan's text and what is known beside it."""
    least, said = fewest_samples(paths), []
    with open(paths[1], encoding="utf-8") as file:
        devices = kept_files.devices_in(file.read())
    lost = [device for device in devices if device not in places]
    best = _best_of(places, paths, least, said, lost)
    equal = _plan_of_equal_shares(paths, least, said, places)
    best = _faster(best, equal)
    chosen = best if best.ranks == len(places) or leave_out else plan_on_all(paths, least, said, places)
    tried = Rehearsed() if lost or chosen.ranks < len(places) else _rehearsed(paths)
    in_buckets = equal is not None and tried.equal is not None and tried.equal <= tried.planned
    chosen = equal if in_buckets else _faster(chosen, equal)
    for message in dict.fromkeys(said):
        warnings.warn(message)
    _new_file.replace(paths[0], chosen.text)
    seconds = None if equal is None else equal.estimates.step_seconds
    if chosen is not equal and tried.equal is not None:
        seconds = chosen.estimates.step_seconds * tried.equal / tried.planned  # a busy machine slowed both ways
    return chosen.text, {"devices": chosen.devices, "equal": seconds, "in_ddp_buckets": in_buckets, "best": best.devices,
                         "best_seconds": best.estimates.step_seconds, "measured_ranks": len(devices)}


def _plan_of_equal_shares(paths, least, said, places):
    """Returns the plan whose ranks have equal shares; None: that does not fit into memory at once."""
    try:
        return _one_stage(paths, least, said, layout=",".join(f"{place}:1" for place in places), micro_batches=1)
    except Infeasible:
        return None


def _rehearsed(paths):
    """Returns what was Rehearsed when the files were written."""
    if not os.path.exists(paths[4]):
        return Rehearsed()
    with open(paths[4], encoding="utf-8") as file:
        return Rehearsed(**json.load(file))


def _best_of(places, paths, least, said, lost):
    """Returns the fastest plan on some of the ranks, none of them on a device that was `lost` since it was measured."""
    if not lost:
        return _one_stage(paths, least, said, data_parallel=True)
    best = _one_stage(paths, least, said, data_parallel=True, slower={device: LOST for device in lost})
    left = [device for device in best.devices if device in places]
    return plan_on_all(paths, least, said, left or places)


def _faster(plan, equal):
    """Returns the faster of two plans, of which the second may be None; equal shares where both take as long."""
    if equal is not None and equal.estimates.step_seconds <= plan.estimates.step_seconds:
        return equal
    return plan


def plan_on_all(paths, least, said, places, micro_batches=1, **options):
    """Plans by the files for all ranks, in as many micro-batches if that fits into memory."""
    options["layout"] = ",".join(places)
    try:
        return _one_stage(paths, least, said, micro_batches=micro_batches, **options)
    except Infeasible:
        return _one_stage(paths, least, said, **options)


def fewest_samples(paths):
    """Returns the fewest samples that were measured: batch norm, for one, does not train on one value per channel."""
    with open(paths[2], encoding="utf-8") as file:
        return min(int(number) for number in re.findall(r"samples: (\d+)", file.read()))


def _one_stage(paths, least, said, **options):
    """Plans by the files, with at least `least` samples for each rank, and with the algorithm that was measured: which
    one the backend takes is not known. Appends warnings to `said`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = make_plan(paths[3], paths[1], all_reduce="ring", **options)
        shares = list(plan.shares)
        while min(shares) < least <= sum(shares) // len(shares):
            shares[shares.index(max(shares))] -= 1
            shares[shares.index(min(shares))] += 1
        if shares != list(plan.shares):
            layout = ",".join(f"{device}:{share}" for device, share in zip(plan.devices, shares))
            plan = make_plan(paths[3], paths[1], all_reduce="ring", layout=layout, without=["state", "offload"], micro_batches=1,
                             slower=options.get("slower"))
    said += [str(warning.message) for warning in caught]
    return plan


def duration(seconds):
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"
