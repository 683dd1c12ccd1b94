# SPDX-License-Identifier: Apache-2.0
"""Plans: made by `plan`, read by `load`."""

import dataclasses
import json
import os
import threading
import warnings

from agpcs import _agpcs
from agpcs._errors import UsageError

_planning = threading.Lock()  # METIS draws from the C library's one generator


@dataclasses.dataclass(frozen=True)
class Stage:
    """Operators that the same ranks compute. Replica i is rank `ranks[i]`, on `devices[i]`."""

    name: str
    ranks: tuple
    devices: tuple
    samples: tuple  #: of every micro-batch, parallel to `ranks`


@dataclasses.dataclass(frozen=True)
class Group:
    """Gradients that are reduced together, among `ranks`."""

    name: str
    stage: str
    ranks: tuple
    parameters: tuple  #: names, in the order of the buffer
    elements: tuple  #: of each parameter
    type: str
    algorithm: str


@dataclasses.dataclass(frozen=True)
class Estimates:
    """What the plan expects of a step, to three digits. The maps are by device name."""

    step_seconds: float
    samples_per_second: float
    utilization: dict  #: part of the step that the device computes
    peak_memory: dict  #: bytes
    bytes_sent: dict  #: of a step


class Plan:
    """A plan, read and verified. `text` is the file; what else is here is in it."""

    def __init__(self, text, file="model.plan"):
        self.text = text
        data = json.loads(_agpcs.plan_json(text, file))
        self.model = data["model"]["name"]
        self.cluster = data["cluster"]["name"]
        self.frozen = tuple(data["model"].get("frozen", ()))  #: weights that are not trained
        self.batch = data["training"]["batch"]  #: samples of a step, over all ranks
        self.micro_batches = data["training"]["micro_batches"]
        self.wire_type = data["training"].get("wire_type")  #: what gradients travel in, "fp16" or "bf16"; None: as they are
        self.stages = tuple(map(_stage, data["stages"]))
        self.groups = _groups(data, self.stages)  #: in the order in which a stage reduces them
        self.ranks = sum(len(stage.ranks) for stage in self.stages)
        samples = {rank: n for stage in self.stages for rank, n in zip(stage.ranks, stage.samples)}
        devices = {rank: name for stage in self.stages for rank, name in zip(stage.ranks, stage.devices)}
        #: by rank, samples of a step
        self.shares = tuple(samples[rank] * self.micro_batches for rank in range(self.ranks))
        self.devices = tuple(devices[rank] for rank in range(self.ranks))  #: by rank, "host/index"
        self.estimates = _estimates(data["expect"])

    def save(self, path):
        """Writes the plan, as agpcs-compile would: one file for agpcs-run, `load` and code review."""
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(self.text)

    def __eq__(self, other):
        return isinstance(other, Plan) and self.text == other.text

    def __hash__(self):
        return hash(self.text)

    def __repr__(self):
        return (f"<agpcs.Plan of {self.model} on {self.cluster}: batch {self.batch}, {self.ranks} ranks, "
                f"{len(self.stages)} stages, {len(self.groups)} groups>")


def load(path):
    """The plan in a file or a pipe. Raises InvalidInput, with line and hint, where it is none, and OSError where there is
    nothing."""
    path = os.fspath(path)
    os.stat(path)
    return Plan(_agpcs.read_plan(path), path)


def plan(model, cluster, *, batch=None, dims=None, freeze=(), precision=None, wire_type=None, loss=None,
         loss_outputs=None, seed=0, data_parallel=False, seeders=None, layout=None, refiner=None, policy=None,
         budget=None, all_reduce="auto", threads=None, micro_batches=None, bucket_bytes=None):
    """Plans `model` (path, or the bytes of an .onnx file) for the cluster file `cluster`; returns a Plan.

    The options are those of agpcs-compile (docs/agpcs_compile.md), where None is its default: `dims` and `loss_outputs`
    map names to values and weights, `seeders` and `freeze` are lists of names. `data_parallel` asks for one stage, on the devices
    and with the shares that are fastest: what `agpcs.torch` trains by.

    The same arguments give the same plan. Ctrl-C ends the search and raises KeyboardInterrupt. What the compiler warns
    of is a UserWarning.
    """
    if data_parallel:
        if seeders is not None or layout is not None:
            raise UsageError("data_parallel and seeders or layout are both given\n"
                             "  hint: data_parallel=True is seeders=['data_parallel'], refiner='none'")
        seeders, refiner = ["data_parallel"], "none"
    if layout is not None and refiner not in (None, "none"):
        raise UsageError("layout and refiner are both given\n  hint: a layout leaves nothing to a seeder or refiner")
    options = _agpcs.Options()
    if isinstance(model, (bytes, bytearray, memoryview)):
        options.model, options.model_bytes = "model.onnx", bytes(model)
    else:
        options.model = os.fspath(model)
    options.cluster = os.fspath(cluster)
    options.dims, options.freeze = sorted((dims or {}).items()), _names("freeze", freeze)
    options.seed, options.refiner, options.all_reduce = _checked("seed", seed, least=0), refiner or "dqn", all_reduce
    options.threads = len(os.sched_getaffinity(0))
    if loss is not None or loss_outputs is not None:
        options.set_loss(loss or "softmax_cross_entropy", list((loss_outputs or {}).items()))
    given = {"batch": batch, "precision": precision, "wire_type": wire_type, "seeders": seeders, "layout": layout,
             "policy": policy, "budget": budget, "threads": threads, "micro_batches": micro_batches,
             "bucket_bytes": bucket_bytes}
    for name, value in given.items():
        if value is not None:
            setattr(options, name, _checked(name, value))
    with _planning:
        text, said = _agpcs.compile(options)
    if said:
        warnings.warn(said.rstrip("\n"), stacklevel=2)
    return Plan(text)


def _checked(name, value, least=1):
    if isinstance(value, int) and value < least:
        raise UsageError(f"{name} is {value}\n  hint: it is a whole number from {least}")
    return list(value) if name == "seeders" else value if isinstance(value, int) else os.fspath(value)


def _names(option, names):
    if isinstance(names, str):
        raise UsageError(f"{option} is the text '{names}'\n  hint: give a list of names: [{names!r}]")
    return list(names)


def _stage(data):
    replicas = data["replicas"]
    return Stage(data["name"], *(tuple(r[key] for r in replicas) for key in ("rank", "device", "samples")))


def _groups(data, stages):
    by_name = {stage.name: stage for stage in stages}
    # A stage of one rank reduces nothing; its buckets keep the file's order.
    order = {}
    for program in data["programs"]:
        for instruction in program["instructions"]:
            what, _, bucket = instruction["instruction"].partition(":")
            if what == "all_reduce":
                order[bucket] = len(order)
    buckets = sorted(data["buckets"], key=lambda bucket: order.get(bucket["name"], len(order)))
    return tuple(
        Group(bucket["name"], bucket["stage"], by_name[bucket["stage"]].ranks,
              tuple(g["parameter"] for g in bucket["gradients"]), tuple(g["elements"] for g in bucket["gradients"]),
              bucket["type"], bucket["algorithm"]) for bucket in buckets)


def _estimates(expect):
    figures = {"": {}, "utilization": {}, "peak-memory": {}, "bytes-sent": {}}
    for entry in expect:
        what, _, of = entry["name"].partition(" ")
        if not of:
            figures[""][what] = entry["value"]
        elif what in figures:
            figures[what][of] = entry["value"]
    return Estimates(figures[""]["step"], figures[""]["throughput"], figures["utilization"], figures["peak-memory"],
                     figures["bytes-sent"])
