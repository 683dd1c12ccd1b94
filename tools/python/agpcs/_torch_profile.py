# SPDX-License-Identifier: Apache-2.0
"""Measures what the stages of agpcs.torch.Job take on the ranks of a job, and writes it as a profile."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import json
import os
import socket
import statistics
import sys
import time
import typing
from collections.abc import Sequence

import torch
import torch.distributed as dist

from agpcs import _agpcs, _new_file, _torch_export
from agpcs import _torch_files as files
from agpcs._errors import Error, UsageError
from agpcs._job.fill import device_of, without_values
from agpcs._job.graph import Graph, origin_of
from agpcs._job.passes import LOSS, Passes
from agpcs._job.split import split
from agpcs._job.together import keeper_of_all, together
from agpcs._plan import Path
from agpcs._torch_job import (Loss, OptimizerOf, autocast_of, check_newer, exported, inputs_and_targets)
from agpcs._torch_links import Links, Overlap
from agpcs._torch_steps import batch_size, device_name, memory_in_use, memory_limit, untouched

LEAST_PASSES = 6  # of each number of samples: a larger one is begun if as many fit into the time
FLOPS_A_BYTE = 10  # how a processor weighs them; it divides a node's time among its operators, between which no plan cuts
MOST_OF_PAIRS = 4  # ranks, of which each two all-reduce by themselves


class Update(typing.NamedTuple):
    elements: int
    tensors: int
    seconds: float
    begin: float  #: to let go of the gradients


class Measured(typing.NamedTuple):
    """By one rank."""

    kind: str
    device: str  #: the name of the hardware
    times: list  #: Times, ascending by samples
    updates: list  #: Update
    message_compute: float  #: seconds that a message costs the thread that computes
    overlap: Overlap


def profile(model: torch.nn.Module, loss_fn: Loss, optimizer_fn: OptimizerOf, sample_batch: Sequence[typing.Any], *,
            cluster: Path, path: Path, seconds: float = 60, batch: int | None = None, devices: Sequence[str] | None = None,
            autocast: str | torch.dtype | bool | None = None, input_names: Sequence[str] | None = None,
            output_names: Sequence[str] = ("logits",), export_options: typing.Mapping[str, typing.Any] | None = None,
            quiet: bool = False, **options: typing.Any) -> None:
    """Measures what stages of agpcs.torch.Job take on this job's ranks, and writes the profile `path`, by which plans of any
    cuts follow once `cluster`, the cluster file, names it by `profile:`. All ranks call it alike; rank 0 writes.

    `model`, `loss_fn`, `optimizer_fn`, `sample_batch`, `autocast`, `input_names` and `output_names` are those of Job,
        `export_options` Job's further options. Each rank computes passes of the whole module, which stays as it is.
    `devices` are those of the ranks, in their order; by default all devices of the cluster file.
    `batch` is the number of samples of a step; by default the cluster file's.
    `seconds` is about how long to measure. `quiet` prints nothing.
    `options` are those of agpcs.torch.plan about the loss and the precision; give both the same ones.
    """
    check_newer("agpcs.torch.profile")
    if not dist.is_initialized():
        raise UsageError("agpcs.torch.profile needs torch.distributed\n"
                         "  hint: dist.init_process_group() before it, in a script that torchrun starts")
    device = device_of(model, None)
    links = Links(None, device)
    given = {"batch": batch, **options}
    with keeper_of_all(device).naming():
        asked = together("be measured", lambda: _Asked(model, loss_fn, sample_batch, cluster, devices, autocast, input_names,
                                                       output_names, dict(export_options or {}), given, device))
        begin = time.monotonic()
        with untouched(model):
            mine = _measured(asked, optimizer_fn, links, seconds)
            paths, reductions = _network(asked, links, begin + seconds - time.monotonic(), seconds)
        every = links.gather(mine)
        together("write the profile",
                 lambda: _new_file.write(path, _text(asked, every, paths, reductions)) if links.rank == 0 else None)
    if links.rank == 0 and not quiet:
        print(f"agpcs: {os.fspath(path)} has what {asked.what['model']} takes on {links.ranks} ranks, measured in "
              f"{time.monotonic() - begin:.0f} s; plans follow it where {os.fspath(cluster)} says `profile: "
              f"{os.path.relpath(path, os.path.dirname(os.path.abspath(cluster)))}`", file=sys.stderr, flush=True)


class _Asked:
    """What is measured: the module as one stage, and what the compiler wants to know of it (`what`)."""

    def __init__(self, model, loss_fn, sample_batch, cluster, devices, autocast, input_names, output_names, export_options,
                 options, device):
        tensors = itertools.chain(model.named_parameters(), model.named_buffers())
        lacking = next((name for name, tensor in tensors if without_values(tensor)), None)
        if lacking is not None:
            raise UsageError(f"'{lacking}' has no values, and agpcs.torch.profile computes passes\n"
                             "  hint: a smaller relative of the model with values (fewer layers of the same kind)")
        program, converted, file = exported(model, sample_batch, input_names, output_names, export_options, device)
        said = {name: value for name, value in options.items() if value is not None}
        self.what = _agpcs.to_measure({"cluster": os.fspath(cluster), "model": "model.onnx", **said}, file, list(devices or ()))
        ranks, known = dist.get_world_size(), [one["name"] for one in self.what["devices"]]
        if ranks != len(known):
            raise UsageError(f"the job has {ranks} ranks, and there are {len(known)} devices: {', '.join(known[:8])}"
                             f"{', ...' if len(known) > 8 else ''}\n  hint: a rank for each device of the cluster file, or "
                             "devices=[...], those of the ranks in their order")
        graph, origins = Graph(model, program), _torch_export.origins(converted)
        operators = self.what["operators"]
        graph.place(origins, [{**one, "stage": "s0"} for one in operators], ["s0"])
        kind = autocast_of(autocast, self.what["precision"], model)
        context = contextlib.nullcontext if kind is None else functools.partial(torch.autocast, device.type, kind)
        self.device, self.model = device, model
        inputs, targets = inputs_and_targets(sample_batch)
        from torch.utils import _pytree
        names = {node.name for node in graph.nodes}
        self.nodes = [next((found for found in (origin_of(origins, output) for output in one["outputs"]) if found in names), LOSS)
                      for one in operators]  #: by operator
        self.passes = Passes(graph, split(graph, ["s0"], (0,))[0], set(self.nodes) - {LOSS}, loss_fn,
                             program.call_spec.out_spec, self.what["ignore_index"], _pytree.tree_leaves(inputs), targets,
                             batch_size(inputs), context, device)
        self.trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]

    @property
    def gradient_bytes(self):
        return sum(p.numel() * p.element_size() for _, p in self.trained)


# A rank ---------------------------------------------------------------------------------------------------------------

def _measured(asked, optimizer_fn, links, seconds):
    """Measures this rank, beside all others."""
    passes, device = asked.passes, asked.device
    host = links.gather(socket.gethostname())
    limit = memory_limit(device, host.count(host[links.rank]) if device.type == "cpu" else 1)
    sizes = together("be measured", lambda: _sizes(asked, limit, 0.5 * seconds))
    updating = together("be measured", lambda: _Updating(asked.trained, optimizer_fn, limit - memory_in_use(device)))
    links.together()
    taken = together("be measured", lambda: _repeat(passes, sizes, updating, 0.5 * seconds))
    overlap = _overlap(asked, links, taken, 0.1 * seconds)
    posting = links.posting(functools.partial(passes.step, min(taken))) if device.type == "cpu" else 0.0
    kind, stretch = asked.what["devices"][links.rank]["kind"], passes.stretch()
    return Measured(kind, device_name(device), passes.times(), updating.updates(stretch), stretch * posting, overlap)


def _overlap(asked, links, taken, seconds):
    """Measured while all ranks compute for about as long: slow ranks compute fewer samples. `taken`: seconds by samples."""
    near = min(taken, key=lambda n: abs(n - asked.what["batch"] / links.ranks))
    least = -links.agree(-taken[near])
    near = min(taken, key=lambda n: abs(taken[n] - least))

    def step(between):
        return asked.passes.step(near, between)

    if asked.device.type == "cpu":
        return links.overlap_of_messages(step, seconds)
    return links.overlap(step, asked.gradient_bytes, seconds)


def _sizes(asked, limit, seconds):
    """The numbers of samples of which passes fit into memory and time; two at least, because one does not tell how time
    grows."""
    spent, memory, sizes = 0.0, [], []
    for samples in asked.what["samples"]:
        taken, used = asked.passes.first(samples)
        sizes.append(samples)
        memory.append(used)
        spent += LEAST_PASSES * taken
        ahead = used + 2 * max(used - (memory[-2] if len(memory) > 1 else used), 0)
        if len(sizes) > 1 and (ahead > limit or spent + 2 * LEAST_PASSES * taken > seconds):
            break
    return sizes


def _repeat(passes, sizes, updating, seconds):
    """Measures passes of all sizes, each for about as long, with an update after each. All ranks do so at the same time, so
    that what they share (memory, cores, a power limit) counts. Returns the seconds of a size's two passes, by size."""
    spent, count, ends = dict.fromkeys(sizes, 0.0), dict.fromkeys(sizes, 0), time.monotonic() + seconds
    while time.monotonic() < ends or min(count.values()) < LEAST_PASSES // 2:
        next_size = min(sizes, key=lambda n: (count[n] >= LEAST_PASSES // 2, spent[n]))
        spent[next_size] += passes.measure(next_size)
        count[next_size] += 1
        updating.step()
    return {n: spent[n] / count[n] for n in sizes}


class _Updating:
    """Updates of copies of the parameters, in between passes, as in training: of all, of the larger and of the smaller half
    of the tensors, which tells what a tensor takes and what an element does."""

    def __init__(self, trained, optimizer_fn, room):
        needed = 4 * sum(p.numel() * p.element_size() for _, p in trained)  # with gradients and two states
        if needed > room:
            raise Error(f"there is no room for copies of the parameters ({needed / 1e9:.1f} GB), which the optimizer steps")
        copies = [(name, torch.nn.Parameter(p.detach().clone())) for name, p in trained]
        copies.sort(key=lambda one: -one[1].numel())
        half = len(copies) // 2
        self._gradients = [p for _, p in trained]
        self._sets = [parameters for parameters in (copies[:half], copies[half:]) if parameters]
        self._optimizers = [optimizer_fn(parameters) for parameters in self._sets]
        self._cuda = any(p.is_cuda for _, p in trained)
        self._seconds = [[] for _ in range(1 + len(self._sets))]  # to let gradients go; to step each optimizer
        for _, copy in copies:
            copy.grad = torch.zeros_like(copy)

    def step(self):
        """Steps the optimizers, and lets the passes' gradients go. The first step, which makes the state, does not count."""
        times = [self._now()]
        for parameter in self._gradients:
            parameter.grad = None
        times.append(self._now())
        for optimizer in self._optimizers:
            optimizer.step()
            times.append(self._now())
        for seconds, (a, b) in zip(self._seconds, itertools.pairwise(times)):
            seconds.append(b - a)

    def _now(self):
        """As Passes has it."""
        if not self._cuda:
            return time.thread_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def updates(self, stretch):
        """What each set took, `stretch` times as long as the processor worked for it."""
        begin, *taken = (stretch * statistics.median(seconds[1:]) for seconds in self._seconds)
        sizes = [(sum(copy.numel() for _, copy in parameters), len(parameters)) for parameters in self._sets]
        elements = sum(size[0] for size in sizes)
        return [Update(*size, seconds, begin * size[0] / elements) for size, seconds in zip(sizes, taken)]


# The network ----------------------------------------------------------------------------------------------------------

def _network(asked, links, left, seconds):
    """The messages of each path, and the all-reduces of each group of ranks. All ranks return rank 0's."""
    left = links.agree(max(left, 0.15 * seconds))
    ranks, paths = links.ranks, asked.what["paths"]
    if ranks == 1:
        return [], []
    most = min(asked.gradient_bytes, 8 << 20)
    messages = [links.messages(path["from"], path["to"], most, left / 2 / len(paths)) for path in paths]
    groups = [tuple(range(ranks))]
    if 2 < ranks <= MOST_OF_PAIRS:
        groups += itertools.combinations(range(ranks), 2)
    reductions = []
    for group in groups:
        of_group = dist.new_group(group)
        points = None
        if links.rank in group:
            points = Links(of_group, asked.device).all_reduces(asked.gradient_bytes, left / 2 / len(groups), copies=True)
        reductions.append((group, links.share(points, group[0])))
        if links.rank in group:
            dist.destroy_process_group(of_group)
    return messages, reductions


# The file -------------------------------------------------------------------------------------------------------------

def _text(asked, every, messages, reductions):
    """The text of the profile file."""
    what, kinds = asked.what, {}
    for measured in every:
        kinds.setdefault(measured.kind, []).append(measured)
    lines = []
    for kind, ranks in kinds.items():
        hardware = {measured.device for measured in ranks}
        if len(hardware) > 1:
            raise UsageError(f"ranks of the kind '{kind}' are unlike hardware: {', '.join(sorted(hardware))}\n"
                             "  hint: a kind of its own for each in the cluster file")
        overlap = Overlap(*map(_mean, zip(*(measured.overlap for measured in ranks))))
        lines += files.kind_lines(kind, ranks[0].device, what["precision"], json.dumps(what["model"]), overlap,
                                  _mean(measured.message_compute for measured in ranks))
        for updates in zip(*(measured.updates for measured in ranks)):
            lines.append(files.update_line(what["optimizer"], updates[0].elements, updates[0].tensors,
                                           _mean(u.seconds for u in updates), _mean(u.begin for u in updates)))
        lines += ["    operators:", *_operators(what, asked.nodes, ranks)]
    names = [device["name"] for device in what["devices"]]
    paths = [(names[path["from"]], names[path["to"]], path["links"], points) for path, points in zip(what["paths"], messages)]
    rings = [([names[rank] for rank in group], points) for group, points in reductions]
    return files.sealed(lines, paths, rings, "agpcs.torch.profile")


def _operators(what, nodes, ranks):
    """The lines of the operators of a kind, whose `ranks` have measured: the means over ranks, and over operators that are
    alike."""
    entries = {}  # by signature: (class, by samples: (work, times))
    counts = set.intersection(*({times.samples for times in measured.times} for measured in ranks))
    for measured, i in itertools.product(ranks, range(len(what["samples"]))):
        times = next((t for t in measured.times if t.samples == what["samples"][i]), None)
        if times is None or times.samples not in counts:
            continue
        for one, parts in zip(what["operators"], _divided(what["operators"], nodes, times.nodes, i)):
            points = entries.setdefault(one["signature"], (one["class"], collections.defaultdict(list)))[1]
            points[times.samples].append((*parts, times.spread, one["work"][i]))
    lines = []
    for signature, (kind, points) in entries.items():
        lines += [f"      - operator: {json.dumps(signature)}", f"        class: {kind}", "        points:"]
        for samples, found in sorted(points.items()):
            forward, backward, spread = (_mean(one[i] for one in found) for i in range(3))
            work = found[0][3]
            said = f"backward: {files.time(backward)}, backward_spread: {spread:.3g}, " if backward or work[1] or work[3] else ""
            lines.append(f"          - {{samples: {samples}, forward: {files.time(forward)}, forward_spread: {spread:.3g}, "
                         f"{said}flops: [{work[0]:.17g}, {work[1]:.17g}], bytes: [{work[2]:.17g}, {work[3]:.17g}]}}")
    return lines


def _divided(operators, nodes, times, i):
    """(forward, backward) seconds of each operator: a node's are divided by modelled work."""
    works = [one["work"][i] for one in operators]
    weights = [[max(work[half] / FLOPS_A_BYTE, work[2 + half]) for half in (0, 1)] for work in works]
    sums = collections.defaultdict(lambda: [0.0, 0.0, 0])
    for node, weight in zip(nodes, weights):
        of_node = sums[node]
        of_node[0] += weight[0]
        of_node[1] += weight[1]
        of_node[2] += 1
    for node, (forward, backward) in zip(nodes, weights):
        of_node, taken = sums[node], times.get(node, (0.0, 0.0))
        yield tuple(seconds * (weight / of_node[half] if of_node[half] > 0 else 1 / of_node[2])
                    for half, (seconds, weight) in enumerate(zip(taken, (forward, backward))))


def _mean(values):
    return statistics.fmean(values)
