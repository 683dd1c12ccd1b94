# SPDX-License-Identifier: Apache-2.0
"""autoplan: measures the ranks of a job, and plans how they share each batch."""

import copy
import hashlib
import json
import os
import platform
import re
import socket
import statistics
import sys
import tempfile
import time
import typing
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from agpcs import _agpcs
from agpcs import _torch_files as files
from agpcs._errors import Error, InvalidInput, UsageError
from agpcs._plan import Plan, plan as make_plan
from agpcs._torch_groups import PlanState, reduce_by_plan
from agpcs._torch_links import Links, synchronize
from agpcs._torch_steps import (Point, Steps, measure_update, memory_limit, point_of, signature_of,
                                untouched)

SUFFIXES = (".plan", ".yaml", ".profile.yaml", ".onnxtxt")
MOST_PAIRS = 12  # of ranks, between which messages are measured
EQUAL_KINDS = 0.03  # ranks whose times differ by no more than this part, or than their spread, are one kind of device


class AutoPlan(Plan):
    """The plan of a job, on each of its ranks, and what is known of it beside the plan."""

    def __init__(self, text, facts, process_group, rank, quiet):
        super().__init__(text)
        self.equal_step_seconds = facts["equal"]  #: what the plan with equal shares on all ranks expects of a step
        self.best_devices = tuple(facts["best"])  #: the devices of the fastest plan; those of this one, or fewer
        self.best_step_seconds = facts["best_seconds"]  #: what that plan expects of a step
        self.measuring_seconds = facts["measuring"]  #: None: the plan came from the cache
        self.copied_bytes = facts["copied"]  #: memory that measuring took for copies, on the rank with most
        self.files = tuple(facts["files"])  #: on rank 0: plan, cluster, profile and model; empty without a cache
        self.process_group = process_group  #: of the plan's ranks; None: the job's
        self.rank = rank  #: this process's rank in the plan; None: it was left out
        self.quiet = quiet

    def say_measured(self, seconds, steps):
        """Prints what a step of the job took, on rank 0."""
        if self.quiet or self.rank != 0:
            return
        expected = self.estimates.step_seconds
        print(f"agpcs: the last {steps} steps took {_duration(seconds)} (median), the plan expects "
              f"{_duration(expected)} ({seconds / expected - 1:+.1%}), with equal shares "
              f"{_duration(self.equal_step_seconds)}", file=sys.stderr, flush=True)

    def summary(self):
        """Returns what autoplan prints."""
        step, equal = self.estimates.step_seconds, self.equal_step_seconds
        came = ("by the measurements of " + self.files[2] if self.measuring_seconds is None
                else f"measured in {self.measuring_seconds:.0f} s, copies took {self.copied_bytes / 1e6:.0f} MB")
        shares = ", ".join(f"{device} {share}" for device, share in zip(self.devices[:16], self.shares))
        lines = [f"agpcs: plan for {self.ranks} ranks, batch {self.batch} ({came})",
                 f"agpcs: shares: {shares}" + (", ..." if self.ranks > 16 else ""),
                 f"agpcs: a step takes {_duration(step)}, with equal shares {_duration(equal)}: "
                 f"{equal / step:.2f} times as fast"]
        if self.micro_batches > 1:
            lines.append(f"agpcs: memory asks for {self.micro_batches} micro-batches a step "
                         f"(PlanSampler(..., micro_batches={self.micro_batches}))")
        idle = sorted(set(self.devices) - set(self.best_devices))
        if idle:
            lines.append(f"agpcs: without {', '.join(idle)} a step would take {_duration(self.best_step_seconds)}\n"
                         "  hint: autoplan(..., leave_out=True) trains without, in plan.process_group")
        return "\n".join(lines)


def autoplan(model, loss_fn, sample_batch, batch, *, optimizer=None, max_samples=None, seconds=120, leave_out=False,
             cache=".agpcs", process_group=None, quiet=False):
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
    `leave_out`: True plans for the ranks that are fastest together, in a `process_group` of their own. By default
        all ranks take part.
    `cache`: a folder, on rank 0, that keeps the plan with the measurements. A job with the same devices, model, batch
        and types takes them from there and measures nothing. None: nothing is kept.
    `process_group`: the ranks of the job, if they are not all.
    `quiet`: rank 0 prints nothing.

    Each rank measures its forward and backward pass at growing numbers of samples, at most 80% of the memory that it
    may use, then all of them together near the shares to be; further its optimizer, messages and all-reduces. Parameters,
    buffers, gradients, the optimizer and the random generators are afterwards as before, to the bit.

    Raises agpcs.Error on every rank, which names the rank and its reason, if a rank cannot be measured.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise UsageError("autoplan needs a process group\n"
                         "  hint: torch.distributed.init_process_group() first, under torchrun, srun or mpirun")
    device = next(model.parameters()).device
    links = Links(process_group, device)
    job = _on_every_rank(links, lambda: _Job(model, loss_fn, sample_batch, batch, optimizer, max_samples, seconds))
    ranks = links.gather(job.identity(links.rank))
    places = _on_every_rank(links, lambda: _places(ranks))
    with tempfile.TemporaryDirectory() as temporary:
        stem = os.path.join(temporary if cache is None else os.path.abspath(cache), _key(ranks, job.signature()))
        paths = [stem + suffix for suffix in SUFFIXES]
        measuring = copied = None
        if not links.gather(os.path.exists(paths[1]))[0]:  # rank 0's files count
            begin = time.perf_counter()
            measured = _measure(job, links, places)
            beside = 0.0
            if links.ranks > 1:
                text = _by_rank_0(links, lambda: _first_plan(job, places, measured, paths))
                beside = _rehearse(job, links, Plan(text), measured)
            _by_rank_0(links, lambda: _write_measured(job, places, measured, beside, paths))
            measuring, copied = time.perf_counter() - begin, measured.copied
        text, facts = _by_rank_0(links, lambda: _planned(places, paths, leave_out))
    facts.update(measuring=measuring, copied=copied, files=[] if cache is None else paths)
    return _plan_of(text, facts, links, places, process_group, quiet)


def _plan_of(text, facts, links, places, process_group, quiet):
    """Returns the AutoPlan of this rank, and prints it on rank 0."""
    members = [places.index(device) for device in Plan(text).devices]
    group = process_group
    if len(members) < links.ranks:
        group = dist.new_group([links._global(rank) for rank in members])
    plan = AutoPlan(text, facts, group, members.index(links.rank) if links.rank in members else None,
                    quiet)
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
        self.model, self.batch, self.optimizer = model, batch, optimizer
        self.max_samples, self.seconds = max_samples, seconds
        trained = [p for p in model.parameters() if p.requires_grad]
        if not trained:
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

    def identity(self, rank):
        host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()) or "host"
        return {"rank": rank, "host": host, "device": _device_name(self.device)}

    def signature(self):
        """Returns all that a plan depends on beside the devices, as a text."""
        return json.dumps([[p.name, list(p.shape), str(p.dtype)] for p in self.parameters] +
                          [type(self.model).__name__, signature_of(self.steps.sample), self.batch,
                           type(self.optimizer).__name__, self.max_samples, torch.__version__, _agpcs.version])


def _device_name(device):
    """Returns what tells devices of unlike speed apart, as far as the machine says it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model)
    except OSError:
        pass
    return f"{model}, {torch.get_num_threads()} threads"


def _places(ranks):
    """Returns each rank's device, "host/index", by rank. Devices are numbered host by host."""
    hosts = [rank["host"] for rank in ranks]
    order = list(dict.fromkeys(hosts))
    if [host for host in order for _ in range(hosts.count(host))] != hosts:
        raise InvalidInput(f"the ranks of host '{next(h for i, h in enumerate(hosts) if i and h != hosts[i - 1] and h in hosts[:i])}' "
                           "do not follow one another\n"
                           "  hint: number ranks host by host (srun --distribution=block, mpirun --map-by slot)")
    return [f"{host}/{hosts[:rank].count(host)}" for rank, host in enumerate(hosts)]


def _key(ranks, signature):
    """Returns the name of a job in the cache."""
    said = json.dumps([[(rank["host"], rank["device"]) for rank in ranks], signature], sort_keys=True)
    return "autoplan-" + hashlib.sha256(said.encode()).hexdigest()[:12]


# Measuring ------------------------------------------------------------------------------------------------------------

class _Measured(typing.NamedTuple):
    ranks: list  #: files.Measurements, by rank
    parts: list  #: files.Part
    bytes_per_sample: float
    paths: dict
    all_reduces: list
    links: tuple  #: (bytes/s, seconds) inside hosts and between them
    copied: int
    unused: bool  #: the sample gave some parameters no gradient


def _measure(job, links, places):
    """Measures all ranks; each returns all measurements."""
    ends = time.monotonic() + job.seconds
    with untouched(job.model) as copied:
        equal = -(-job.batch // links.ranks)
        most = min(job.max_samples or 2 * equal, job.batch)
        limit = memory_limit(job.device, _ranks_beside(links, places, job.device))
        grown = _on_every_rank(links, lambda: _grow(job.steps, most, limit, 0.35 * job.seconds))
        every = links.gather(grown[0])
        share = _shares(every, job.batch)[links.rank]
        points, step = _measure_near(job.steps, links, grown, share, most, ends - 0.4 * job.seconds)
        update = _on_every_rank(links, lambda: measure_update(job.optimizer, job.model))
        gradients = sum(p.numel() * p.element_size() for _, p in job.steps.parameters)
        near = min(points, key=lambda p: abs(p.samples - share))
        at_share = job.steps.batch_of(near.samples)
        overlap = links.overlap(lambda between: job.steps.step(at_share, between), gradients, 0.2 * job.seconds)
    left = links.agree(max(ends - time.monotonic(), 0.1 * job.seconds))  # ranks repeat messages equally often
    paths, all_reduces = _network(links, places, gradients, left)
    slope, constant = _memory_line(grown[0])
    states = job.optimizer is not None and bool(job.optimizer.state)
    # The plan's memory counts parameters, gradients, a buffer for reducing them and the optimizer's states. What was in
    # use beside activations has parameters and gradients in it, and states if the job goes on; DDP adds its buckets.
    own = sum(p.numel() * p.element_size() for p in job.model.parameters() if p.requires_grad)
    memory = limit - constant + own + (update.state_bytes if states else 0) - (gradients if links.ranks > 1 else 0)
    mine = files.Measurements(links.rank, places[links.rank].rsplit("/", 1)[0], _device_name(job.device), tuple(points),
                              update, max(int(memory), 1), overlap)
    ready = [None if at is None else min(at / max(step.backward, 1e-9), 1.0) for at in step.ready]
    gathered = links.gather((mine, ready, slope, copied + update.copied_bytes))
    parts = files.parts_of(job.parameters, gathered[0][1])
    bytes_per_sample = statistics.median(entry[2] for entry in gathered)
    return _Measured([entry[0] for entry in gathered], parts, bytes_per_sample, paths, all_reduces,
                     _link_figures(paths, all_reduces, places), max(entry[3] for entry in gathered),
                     any(at is None for entry in gathered for at in entry[1]))


def _grow(steps, most, limit, seconds):
    """Measures 1, 2, 4, ... samples up to `most`, to the memory limit, or until the time is over. Returns the Points
    and the last step of each."""
    ends = time.monotonic() + seconds
    points, last, samples = [], [], 1
    while True:
        begin = time.monotonic()
        try:
            point, step = steps.measure(samples)
        except Exception as error:  # what the model raises is not known
            if _out_of_memory(error) and points:
                break
            if _out_of_memory(error):
                raise Error(f"there is no memory for one sample: {error}\n"
                            "  hint: a smaller model, activation checkpointing, or a device with more memory") from error
            if samples > 1 or most == 1:
                raise
            samples = 2  # batch norm refuses one value per channel
            continue
        points.append(point)
        last.append(step)
        took = time.monotonic() - begin
        ahead = point.memory + 2 * max(point.memory - (points[-2].memory if len(points) > 1 else point.memory), 0)
        if samples >= most or ahead > limit or time.monotonic() + 2 * took > ends:
            break
        samples = min(2 * samples, most)
    return points, last


def _out_of_memory(error):
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and re.search("out of memory|can't allocate memory", str(error)) is not None)


def _measure_near(steps, links, grown, share, most, ends):
    """Measures sizes near the share that this rank will have, all ranks at the same time, so that what they share
    (memory, cores, a power limit) counts. Returns the Points, with those measured before adapted, and a step of about
    the share."""
    points, last = grown
    largest = points[-1].samples
    share = min(max(share, points[0].samples), largest)
    sizes = sorted({max(points[0].samples, min(round(share * f), largest)) for f in (0.75, 1.0, 1.25)})
    batches = {n: steps.batch_of(n) for n in sizes}
    taken = {n: [] for n in sizes}
    rounds = 0
    while True:
        links.together()
        begin = time.monotonic()
        for n in sizes:
            for _ in range(max(int(0.3 / len(sizes) / max(_seconds_at(points, n), 1e-4)), 1)):
                taken[n].append(steps.step(batches[n]))
        rounds += 1
        left = ends - time.monotonic() - (time.monotonic() - begin)
        # Ranks decide together: some have no time left, or all have measured enough.
        if links.agree(float(rounds >= 3 and (left < 0 or rounds >= 10))):
            break
    near = [point_of(n, taken[n][1:] or taken[n], _memory_at(points, n)) for n in sizes]
    # Points of the first series were taken while other ranks did other things.
    factor = statistics.median((p.forward + p.backward) / _seconds_at(points, p.samples) for p in near)
    others = [p._replace(forward=p.forward * factor, backward=p.backward * factor)
              for p in points if not sizes[0] <= p.samples <= sizes[-1]]
    merged = _rising(sorted(others + near))
    return merged, taken[min(sizes, key=lambda n: abs(n - share))][-1]


def _rising(points):
    """Returns the points, with those lifted that take less time than fewer samples do."""
    risen = []
    for point in points:
        if risen and point.forward + point.backward < risen[-1].forward + risen[-1].backward:
            point = point._replace(forward=risen[-1].forward, backward=risen[-1].backward)
        risen.append(point)
    return risen


def _seconds_at(points, samples):
    """Returns the seconds of a step of `samples` samples, by straight lines between points."""
    return _line_at([(p.samples, p.forward + p.backward) for p in points], samples)


def _memory_at(points, samples):
    return int(_line_at([(p.samples, p.memory) for p in points], samples))


def _line_at(line, x):
    if len(line) == 1:
        return line[0][1] * x / line[0][0]
    for (x0, y0), (x1, y1) in zip(line, line[1:]):
        if x <= x1:
            break
    return max(y0 + (y1 - y0) * (x - x0) / (x1 - x0), 1e-9)


def _memory_line(points):
    """Returns the bytes that a sample keeps, and those in use without any."""
    first, last = points[0], points[-1]
    if last.samples == first.samples:
        return 0.0, last.memory
    slope = max((last.memory - first.memory) / (last.samples - first.samples), 0.0)
    return slope, int(last.memory - slope * last.samples)


def _shares(points_of_ranks, batch):
    """Returns about the shares with which all ranks take as long, by rank."""
    low, high = 0.0, max(_seconds_at(points, batch) for points in points_of_ranks)
    for _ in range(60):
        middle = (low + high) / 2
        done = sum(_samples_in(points, middle, batch) for points in points_of_ranks)
        low, high = (low, middle) if done >= batch else (middle, high)
    return [max(_samples_in(points, high, batch), 1) for points in points_of_ranks]


def _samples_in(points, seconds, most):
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _seconds_at(points, middle) <= seconds else (low, middle - 1)
    return low


def _ranks_beside(links, places, device):
    """Returns how many ranks share this rank's memory."""
    host = places[links.rank].rsplit("/", 1)[0]
    return sum(place.rsplit("/", 1)[0] == host for place in places) if device.type == "cpu" else 1


def _network(links, places, gradients, seconds):
    """Returns the messages between devices, and the all-reduces over all of them."""
    if links.ranks == 1:
        return {}, []
    all_reduces = links.all_reduces(gradients, seconds / 4)
    pairs = [(a, b) for a in range(links.ranks) for b in range(links.ranks) if a != b]
    if len(pairs) > MOST_PAIRS:  # each device once as a sender and once as a receiver
        pairs = [(rank, (rank + 1) % links.ranks) for rank in range(links.ranks)]
    paths = {}
    for a, b in pairs:
        points = links.messages(a, b, min(gradients, 8 << 20), seconds / 4 / len(pairs))
        hosts = [places[rank].rsplit("/", 1)[0] for rank in (a, b)]
        nics = [f"{hosts[0]} nic out", f"{hosts[1]} nic in"] if hosts[0] != hosts[1] else []
        paths[places[a], places[b], (f"{places[a]} out", *nics, f"{places[b]} in")] = points
    return paths, all_reduces


def _link_figures(paths, all_reduces, places):
    """Returns (bytes/s, seconds) of messages inside hosts and between them, for people: plans take the profile's."""
    inside = [points for (_, _, links), points in paths.items() if len(links) == 2]
    between = [points for (_, _, links), points in paths.items() if len(links) > 2]
    figures = []
    for group in (inside, between):
        rates = [points[-1].bytes / points[-1].seconds for points in group]
        latencies = [points[0].seconds for points in group]
        figures.append((statistics.median(rates), statistics.median(latencies)) if group else (1e9, 1e-4))
    return tuple(figures)


# Planning -------------------------------------------------------------------------------------------------------------

def _first_plan(job, places, measured, paths):
    """Returns the text of a plan for all ranks, to rehearse it."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, os.path.basename(path)) for path in paths]
        _write_measured(job, places, measured, 0.0, paths)
        return _one_stage(paths, _least(paths), [], layout=",".join(places)).text


def _rehearse(job, links, plan, measured):
    """Trains a copy of the model by the plan. Returns the seconds that a step takes beyond what the plan expects: copies
    of gradients, and waiting for ranks that happen to be late, which nothing else measures."""
    steps = job.steps
    batch = steps.batch_of(plan.shares[links.rank])
    with untouched(job.model):
        copied = _on_every_rank(links, lambda: copy.deepcopy(job.model))
        ddp = DistributedDataParallel(copied, process_group=links.group, find_unused_parameters=measured.unused)
        ddp.register_comm_hook(PlanState(plan, ddp, None, None, "last", "error", None), reduce_by_plan)
        seconds, ends = [], time.monotonic() + 0.1 * job.seconds
        while not links.agree(float(len(seconds) >= 6 and (time.monotonic() > ends or len(seconds) >= 50))):
            begin = time.perf_counter()
            steps.loss_fn(ddp, batch).backward()
            synchronize(job.device)
            seconds.append(time.perf_counter() - begin)
            ddp.zero_grad()
    taken = links.agree(statistics.median(seconds[2:]))
    return taken + links.agree(measured.ranks[links.rank].update.seconds) - plan.estimates.step_seconds


def _write_measured(job, places, measured, beside, paths):
    """Writes the model, the profile and the cluster file. `beside`: seconds of a step beside computing and messages."""
    _, cluster, profile, model = paths
    kinds, kind_of = _kinds(measured.ranks)
    hosts = {}
    for rank, place in enumerate(places):
        hosts.setdefault(place.rsplit("/", 1)[0], []).append(kind_of[rank])
    memory = {kind: min(m.memory for m, k in zip(measured.ranks, kind_of) if k == kind) for kind in kinds}
    optimizer = measured.ranks[0].update.name
    optimizer = "{kind: sgd, momentum: 0.9}" if optimizer == "sgd momentum" else optimizer
    os.makedirs(os.path.dirname(cluster), exist_ok=True)
    _write(model, files.model_text(type(job.model).__name__, measured.parts, measured.bytes_per_sample))
    _write(profile, files.profile_text(measured.parts, measured.bytes_per_sample, kinds, measured.paths,
                                       measured.all_reduces, places, max(beside, 0.0)))
    # The cluster file is written last: a cache that has it is whole.
    _write(cluster, files.cluster_text(os.path.basename(profile), hosts, kinds, memory, measured.links, job.batch,
                                       optimizer, files.precision_of(measured.parts)))


def _planned(places, paths, leave_out):
    """Plans by the files. Returns the plan's text and what is known beside it."""
    least, said = _least(paths), []
    best = _one_stage(paths, least, said, seeders=["data_parallel", "equal"], refiner="none")
    equal = _one_stage(paths, least, said, seeders=["equal"], refiner="none")
    chosen = best
    if best.ranks < len(places) and not leave_out:
        chosen = _one_stage(paths, least, said, layout=",".join(places))
    for message in dict.fromkeys(said):
        warnings.warn(message)
    _write(paths[0], chosen.text)
    return chosen.text, {"equal": equal.estimates.step_seconds, "best": best.devices,
                         "best_seconds": best.estimates.step_seconds}


def _least(paths):
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
            plan = make_plan(paths[3], paths[1], all_reduce="ring", layout=layout, micro_batches=1)
    said += [str(warning.message) for warning in caught]
    return plan


def _kinds(ranks):
    """Returns the kinds of devices by name, and the name of each rank's. Ranks of one hardware that take as long are
    one kind, with the means of their times, so that noise does not make equal devices unequal."""
    groups = []
    for measured in ranks:
        for group in groups:
            first = group[0]
            if first.device == measured.device and all(
                    abs(_seconds_at(first.points, p.samples) / (p.forward + p.backward) - 1)
                    <= max(EQUAL_KINDS, p.spread) for p in measured.points):
                group.append(measured)
                break
        else:
            groups.append([measured])
    kinds, kind_of = {}, [None] * len(ranks)
    for number, group in enumerate(groups):
        name = f"kind-{number}"
        kinds[name] = group[0]._replace(points=tuple(_mean_point(group, p) for p in group[0].points))
        for measured in group:
            kind_of[measured.rank] = name
    return kinds, kind_of


def _mean_point(group, point):
    factor = statistics.fmean(_seconds_at(m.points, point.samples) for m in group) / (point.forward + point.backward)
    return point._replace(forward=point.forward * factor, backward=point.backward * factor)


def _write(path, text):
    """Writes a file at once, so that no other job reads a part of it."""
    with open(path + ".new", "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
    os.replace(path + ".new", path)


# Ranks ----------------------------------------------------------------------------------------------------------------

def _on_every_rank(links, work):
    """Returns what `work()` returns. If it raises on any rank, every rank raises an error that names that rank."""
    value = error = None
    try:
        value = work()
    except Exception as raised:  # every rank has to hear of it
        error = raised
    said = links.gather(None if error is None else (type(error).__name__, str(error)))
    failed = [(rank, what) for rank, what in enumerate(said) if what is not None]
    if not failed:
        return value
    rank, (kind, message) = failed[0]
    if error is not None and len(failed) == links.ranks and len({what for _, what in failed}) == 1:
        raise error
    raise Error(f"rank {rank} cannot be planned: {kind}: {message}") from error


def _by_rank_0(links, work):
    """Returns what `work()` returns on rank 0, on every rank."""
    return links.gather(_on_every_rank(links, work if links.rank == 0 else lambda: None))[0]


def _duration(seconds):
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
