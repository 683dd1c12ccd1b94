# SPDX-License-Identifier: Apache-2.0
"""Measures all ranks of a job for autoplan. All of them call these functions together."""

import contextlib
import copy
import functools
import re
import statistics
import time
import typing
import warnings

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from agpcs import _torch_files as files
from agpcs._errors import Error
from agpcs._torch_curves import balanced_shares, memory_at, memory_line, rising, seconds_at
from agpcs._torch_groups import PlanState, reduce_by_plan
from agpcs._torch_links import on_every_rank
from agpcs._torch_steps import device_name, measure_update, memory_in_use, memory_limit, point_of, untouched

MOST_PAIRS = 12  # of ranks, between which messages are measured


class Measured(typing.NamedTuple):
    ranks: list  #: files.Measurements, by rank
    parts: list  #: files.Part
    bytes_per_sample: float
    paths: dict
    all_reduces: list
    links: tuple  #: (bytes/s, seconds) inside hosts and between them
    copied: int
    unused: bool  #: the sample gave some parameters no gradient


def measure(job, links, places):
    """Measures all ranks; each returns all measurements."""
    ends = time.monotonic() + job.seconds
    with untouched(job.model) as copied:
        equal = -(-job.batch // links.ranks)
        most = min(job.max_samples or 2 * equal, job.batch)
        limit = memory_limit(job.device, _ranks_beside(links, places, job.device))
        grown = on_every_rank(links, lambda: _grow(job.steps, most, limit, 0.35 * job.seconds))
        every = links.gather(grown)
        share = balanced_shares(every, job.batch)[links.rank]
        points, step = _measure_near(job.steps, links, grown, share, equal, most, ends - 0.4 * job.seconds)
        update = on_every_rank(links, lambda: measure_update(job.optimizer, job.model,
                                                             limit - memory_in_use(job.device)))
        gradients = sum(p.numel() * p.element_size() for _, p in job.steps.parameters)
        near = min(points, key=lambda p: abs(p.samples - share))
        at_share = job.steps.batch_of(near.samples)
        overlap = links.overlap(lambda between: job.steps.step(at_share, between), gradients, 0.2 * job.seconds)
    left = links.agree(max(ends - time.monotonic(), 0.1 * job.seconds))  # ranks repeat messages equally often
    paths, all_reduces = _network(links, places, gradients, left)
    slope, constant = memory_line(grown)
    states = job.optimizer is not None and bool(job.optimizer.state)
    # The plan's memory counts parameters, gradients, a buffer for reducing them and the optimizer's states. What was in
    # use beside activations has parameters and gradients in it, and states if the job goes on; DDP adds its buckets.
    memory = limit - constant + gradients + (update.state_bytes if states else 0) - (gradients if links.ranks > 1 else 0)
    mine = files.Measurements(links.rank, files.host_of(places[links.rank]), device_name(job.device), tuple(points),
                              update, max(int(memory), 1), overlap)
    ready = [None if at is None else min(at / max(step.backward, 1e-9), 1.0) for at in step.ready]
    gathered = links.gather((mine, ready, slope, copied + update.copied_bytes))
    parts = files.parts_of(job.parameters, gathered[0][1])
    bytes_per_sample = statistics.median(entry[2] for entry in gathered)
    return Measured([entry[0] for entry in gathered], parts, bytes_per_sample, paths, all_reduces,
                     _link_figures(paths), max(entry[3] for entry in gathered),
                     any(at is None for entry in gathered for at in entry[1]))


def _grow(steps, most, limit, seconds):
    """Returns the Points of 1, 2, 4, ... samples up to `most`, to the memory limit, or until the time is over; of two
    sizes at least if memory allows, because one does not tell how time grows."""
    ends = time.monotonic() + seconds
    points, samples = [], 1
    while True:
        begin = time.monotonic()
        try:
            point = steps.measure(samples)
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
        took = time.monotonic() - begin
        ahead = point.memory + 2 * max(point.memory - (points[-2].memory if len(points) > 1 else point.memory), 0)
        late = len(points) > 1 and time.monotonic() + 2 * took > ends
        if samples >= most or ahead > limit or late:
            break
        samples = min(2 * samples, most)
    return points


def _measure_near(steps, links, points, share, equal, most, ends):
    """Measures sizes near the share that this rank will have, and an equal share, all ranks at the same time, so that
    what they share (memory, cores, a power limit) counts. Returns the Points, with those measured before adapted, and a
    step of about the share."""
    largest = points[-1].samples
    share = min(max(share, points[0].samples), largest)
    sizes = sorted({max(points[0].samples, min(round(n), largest)) for n in (0.75 * share, share, 1.25 * share, equal)})
    batches = {n: steps.batch_of(n) for n in sizes}
    taken = {n: [] for n in sizes}
    rounds = 0
    while True:
        links.together()
        begin = time.monotonic()
        for n in sizes:
            for _ in range(max(int(0.3 / len(sizes) / max(seconds_at(points, n), 1e-4)), 1)):
                taken[n].append(steps.step(batches[n]))
        rounds += 1
        left = ends - time.monotonic() - (time.monotonic() - begin)
        # Ranks decide together: some have no time left, or all have measured enough.
        if links.agree(float(rounds >= 3 and (left < 0 or rounds >= 10))):
            break
    near = [point_of(n, taken[n][1:] or taken[n], memory_at(points, n)) for n in sizes]
    # Points of the first series were taken while other ranks did other things.
    factor = statistics.median((p.forward + p.backward) / seconds_at(points, p.samples) for p in near)
    others = [p._replace(forward=p.forward * factor, backward=p.backward * factor)
              for p in points if not sizes[0] <= p.samples <= sizes[-1]]
    merged = rising(sorted(others + near))
    if largest < most:
        # Steps that are too long, or need too much memory, to measure more take longer with more samples, whatever
        # noise makes of the last two points.
        last = merged[-1]
        taken_by_twice = seconds_at(merged, 2 * last.samples) / (last.forward + last.backward)
        factor = min(max(taken_by_twice, 1.5), 2.0)
        merged.append(last._replace(samples=2 * last.samples, forward=factor * last.forward,
                                    backward=factor * last.backward))
    return merged, taken[min(sizes, key=lambda n: abs(n - share))][-1]


def _out_of_memory(error):
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and re.search("out of memory|can't allocate memory", str(error)) is not None)


def _ranks_beside(links, places, device):
    """Returns how many ranks share this rank's memory."""
    host = files.host_of(places[links.rank])
    return sum(files.host_of(place) == host for place in places) if device.type == "cpu" else 1


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
        hosts = [files.host_of(places[rank]) for rank in (a, b)]
        nics = [f"{hosts[0]} nic out", f"{hosts[1]} nic in"] if hosts[0] != hosts[1] else []
        paths[places[a], places[b], (f"{places[a]} out", *nics, f"{places[b]} in")] = points
    return paths, all_reduces


def _link_figures(paths):
    """Returns (bytes/s, seconds) of messages inside hosts and between them, for people: plans take the profile's."""
    inside = [points for (_, _, links), points in paths.items() if len(links) == 2]
    between = [points for (_, _, links), points in paths.items() if len(links) > 2]
    figures = []
    for group in (inside, between):
        rates = [points[-1].bytes / points[-1].seconds for points in group]
        latencies = [points[0].seconds for points in group]
        figures.append((statistics.median(rates), statistics.median(latencies)) if group else (1e9, 1e-4))
    return tuple(figures)


class Rehearsed(typing.NamedTuple):
    """What steps of a copy of the model took, in seconds. None: there was no room for them."""

    planned: typing.Optional[float] = None  #: by the plan
    equal: typing.Optional[float] = None  #: with equal shares in plain DDP


def rehearse(job, links, plan, measured):
    """Trains a copy of the model, in turns by the plan and with equal shares in plain DDP. So steps count copies of
    gradients, and waiting for ranks that happen to be late, which nothing else measures."""
    with untouched(job.model):
        equal = [job.batch // links.ranks + (rank < job.batch % links.ranks) for rank in range(links.ranks)]
        shares = [-(-plan.shares[links.rank] // plan.micro_batches), equal[links.rank]]
        least = max(rank.points[0].samples for rank in measured.ranks)
        if min(equal) < least or links.agree(float(_lacks_room(job, links, measured, max(shares)))):
            shares.pop()
        copied = _copy_of(job, links, measured, max(shares))
        if copied is None:
            return Rehearsed()
        ddp = DistributedDataParallel(copied, process_group=links.group, find_unused_parameters=measured.unused)
        hooks = [functools.partial(reduce_by_plan, PlanState(plan, ddp, None, None, "last", "error", None)),
                 functools.partial(allreduce_hook, links.group)]  # as DDP reduces without a hook
        running = [None]
        ddp.register_comm_hook(None, _in_turns(running))
        batches = [job.steps.batch_of(samples) for samples in shares]
        taken, ends = [[] for _ in shares], time.monotonic() + 0.15 * job.seconds
        while not links.agree(float(len(taken[0]) >= 6 and (time.monotonic() > ends or len(taken[0]) >= 50))):
            for way, seconds in enumerate(taken):
                running[0] = hooks[way]
                seconds.append(_step(job, links, ddp, batches[way], plan.micro_batches if way == 0 else 1))
    update = links.agree(measured.ranks[links.rank].update.seconds)
    return Rehearsed(*(links.agree(statistics.median(seconds[2:])) + update for seconds in taken))


def _in_turns(running):
    """Returns a hook that is `running[0]`: DDP takes one hook, once."""
    def hook(_, bucket):
        return running[0](bucket)
    return hook


def _step(job, links, ddp, batch, parts):
    """Returns the seconds of a step whose gradients are accumulated over `parts` times the batch."""
    begin = time.perf_counter()
    for part in range(parts):
        with ddp.no_sync() if part + 1 < parts else contextlib.nullcontext():
            job.steps.loss_fn(ddp, batch).backward()
    links.clock.wait()
    taken = time.perf_counter() - begin
    ddp.zero_grad()
    return taken


def _lacks_room(job, links, measured, samples):
    """Returns the bytes that a copy of the model needs to train with so many samples, if this rank lacks them, or 0."""
    needed = 4 * sum(p.numel() * p.element_size() for p in job.model.parameters())  # gradients, DDP's buckets, the plan's
    needed += int(samples * measured.bytes_per_sample)
    return needed if needed > measured.ranks[links.rank].memory else 0


def _copy_of(job, links, measured, samples):
    """Returns a copy of the model on every rank, or None on every rank, with a warning, if one of them cannot have it."""
    copied, why = None, None
    needed = _lacks_room(job, links, measured, samples)
    if needed:
        why = f"there is no room for it ({needed / 1e9:.1f} GB)"
    else:
        try:
            copied = copy.deepcopy(job.model)
        except Exception as error:  # what a module refuses is not known
            why = f"{type(error).__name__}: {error}"
    failed = [(rank, reason) for rank, reason in enumerate(links.gather(why)) if reason is not None]
    if not failed:
        return copied
    if links.rank == 0:
        warnings.warn(f"rank {failed[0][0]} cannot copy the model: {failed[0][1]}\n  so no plan was tried: a step may "
                      "take some percent longer than the plan expects")
    return None
