# SPDX-License-Identifier: Apache-2.0
"""Plans: `plan` makes them, `load` reads them."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import numbers
import operator
import os
import tempfile
import threading
import typing
import warnings
from collections.abc import Iterable, Mapping

from agpcs import _agpcs, _new_file
from agpcs._errors import Error, Infeasible, InvalidInput, PlanMismatch, UsageError

Path = typing.Union[str, "os.PathLike[str]"]
Model = typing.Union[Path, bytes, bytearray, memoryview]  #: a file, or the bytes of an .onnx file

_planning = threading.Lock()  # METIS uses the C library's only random generator


@dataclasses.dataclass(frozen=True)
class Stage:
    """Operators that the same ranks compute. Replica i is rank `ranks[i]` on device `devices[i]`."""

    name: str
    ranks: tuple[int, ...]
    devices: tuple[str, ...]
    samples: tuple[int, ...]  #: samples of each micro-batch, parallel to `ranks`
    #: where replicas are teams: the further members of each, parallel to `ranks`, which are the first ones
    further: tuple[tuple[int, ...], ...] = ()
    further_devices: tuple[tuple[str, ...], ...] = ()
    activations_in: str = "device"  #: where what its segments keep between passes lies: "device", or "host"
    state_in: str = "device"  #: where the optimizer's state lies: "device", or "host" for the memory of hosts

    @property
    def idle(self) -> bool:
        """Whether its ranks compute nothing (`plan(..., idle_ranks=True)`)."""
        return not any(self.samples)

    @property
    def all_ranks(self) -> tuple[int, ...]:
        """The ranks of all replicas, ascending."""
        return tuple(sorted((*self.ranks, *(rank for team in self.further for rank in team))))


@dataclasses.dataclass(frozen=True)
class Group:
    """Gradients that `ranks` reduce together."""

    name: str
    stage: str
    ranks: tuple[int, ...]
    parameters: tuple[str, ...]  #: names, in the order of the buffer
    elements: tuple[int, ...]  #: number of elements of each parameter
    type: str
    algorithm: str
    shared_with: tuple[str, ...] = ()  #: other stages that read the parameters; `ranks` are those of all
    parts: tuple[int, ...] = ()  #: elements whose optimizer state each of `ranks` keeps; empty: each keeps all
    state: str | None = None  #: what `ranks` divide: "optimizer", or "gradients", too, or these and "parameters"; None: nothing


@dataclasses.dataclass(frozen=True)
class Estimates:
    """The figures that the plan expects of a step, to three digits. The maps are by device name."""

    step_seconds: float
    samples_per_second: float
    utilization: dict[str, float]  #: part of the step in which the device computes
    peak_memory: dict[str, float]  #: bytes
    bytes_sent: dict[str, float]  #: bytes per step


@dataclasses.dataclass(frozen=True)
class Bound:
    """Times that no step of this model on this cluster beats, proven; None where nothing is proved. Its text says how
    far the plan is from them: "within 0.1% of the best without a pipeline, 4.1% of any plan"."""

    seconds: float  #: of any plan
    reason: str  #: the limit that decides it (docs/reference/agpcs_compile.md)
    gap: float  #: by what part the plan's step is longer
    one_stage_seconds: float | None  #: of plans without a pipeline; None: none fits in memory
    one_stage_reason: str | None
    one_stage_gap: float | None
    text: str

    def __str__(self) -> str:
        return self.text


class Plan:
    """A plan, read and verified. `text` is the file's text; the other fields are parts of it.

    In a notebook it shows as the report of `agpcs-plan report`, if its model and cluster file are known.
    """

    def __init__(self, text: str, file: str = "model.plan", made_from: tuple[str | bytes, str] | None = None,
                 bound: Bound | None = None, without: tuple[str, ...] | None = None) -> None:
        self.text = text
        self.without = without  #: the dimensions that `plan(without=...)` left out; None: not known, the plan came from a file
        self.bound = bound  #: a Bound; None: the plan came from a file, or was made with `bound=False`
        self._made_from = made_from  # (model, cluster file); None: not known
        data = json.loads(_agpcs.plan_json(text, file))
        self.model: str = data["model"]["name"]
        self.cluster: str = data["cluster"]["name"]
        self.frozen: tuple[str, ...] = tuple(data["model"].get("frozen", ()))  #: weights that are not trained
        #: constants of the file that are trained
        self.trained: tuple[str, ...] = tuple(data["model"].get("trained", ()))
        self.batch: int = data["training"]["batch"]  #: samples of a step, over all ranks
        self.micro_batches: int = data["training"]["micro_batches"]
        #: steps from one exchange of measurements to the next; 0: none
        self.statistics_every: int = data["training"]["statistics_every"]
        #: type in which gradients are sent, "fp16" or "bf16"; None: their own type
        self.wire_type: str | None = data["training"].get("wire_type")
        self.stages: tuple[Stage, ...] = tuple(map(_stage, data["stages"]))
        self.groups: tuple[Group, ...] = _groups(data, self.stages)  #: in the order in which a stage reduces them
        self.ranks = len({rank for stage in self.stages for rank in stage.all_ranks})
        samples = {rank: n for stage in self.stages for rank, n in zip(stage.ranks, stage.samples)}
        devices = {rank: name for stage in self.stages for rank, name in zip(stage.ranks, stage.devices)}
        first = {}  # by rank: the first member of its team
        for stage in self.stages:
            for rank, team, names in zip(stage.ranks, stage.further, stage.further_devices):
                first.update(dict.fromkeys(team, rank))
                devices.update(zip(team, names))
        smaller = -self.batch % self.micro_batches  # micro-batches that have one sample less
        fewer = {stage["odd"]: smaller for stage in data["stages"] if "odd" in stage}
        #: samples of a step, by rank; members of a team compute the same ones
        self.shares: tuple[int, ...] = tuple(
            samples[one] * self.micro_batches - fewer.get(one, 0) for one in (first.get(r, r) for r in range(self.ranks)))
        self.devices: tuple[str, ...] = tuple(devices[rank] for rank in range(self.ranks))  #: by rank, "host/index"
        #: ranks that compute nothing, until a job plans anew (`plan(..., idle_ranks=True)`)
        self.idle_ranks: tuple[int, ...] = tuple(rank for stage in self.stages if stage.idle for rank in stage.ranks)
        self.estimates: Estimates = _estimates(data["expect"])

    def save(self, path: Path) -> None:
        """Writes the plan as agpcs-compile does: one file for agpcs-run, `load` and code review."""
        _new_file.write(path, self.text)

    def explain(self, model: Path | bytes | None = None, cluster: Path | None = None, *, top: int = 10) -> str:
        """Returns where a step's time and memory go, and which changes of plan and hardware would help most, as
        `agpcs-plan explain` prints it, with `top` lines of each list.

        `model` (path or bytes) and `cluster` (path) are those that the plan was made from; a plan that `agpcs.plan` or
        `autoplan` returned knows them. Raises InvalidInput if the plan is not for them.
        """
        return self._command("explain", [self, *self._inputs(model, cluster)], "--top", str(top))

    def compare(self, other: Plan | Path) -> str:
        """Returns what differs from this plan to `other`, a Plan or a path, as `agpcs-plan diff` prints it."""
        return self._command("diff", [self, other if isinstance(other, Plan) else load(other)])

    def report(self, model: Path | bytes | None = None, cluster: Path | None = None, *,
               against: Plan | None = None) -> str:
        """Returns the HTML page of `agpcs-plan report`: the plan and its simulated step, beside that of `against`, a
        Plan of the same model and cluster. `model` and `cluster` are those of `explain`."""
        model, cluster = self._inputs(model, cluster)
        beside = ["--against", against] if against is not None else []
        return self._command("report", [self, "--model", model, "--cluster", cluster, *beside], "-o", "-")

    def _repr_html_(self) -> str:
        if self._made_from is None or not all(isinstance(f, bytes) or os.path.exists(f) for f in self._made_from):
            return f"<pre>{html.escape(self._command('show', [self]))}</pre>"
        return (f'<iframe srcdoc="{html.escape(self.report())}" style="width: 100%; height: 640px; border: 0">'
                "</iframe>")

    def _inputs(self, model, cluster):
        known = self._made_from or (None, None)
        model, cluster = known[0] if model is None else model, known[1] if cluster is None else cluster
        if model is None or cluster is None:
            raise UsageError("the plan came from a file: its model and cluster are not known\n"
                             "  hint: plan.explain('model.onnx', 'cluster.yaml')")
        return model, cluster

    @staticmethod
    def _command(command, inputs, *options):
        """Returns what agpcs-plan prints. Plans and models in memory are written into files for it."""
        with tempfile.TemporaryDirectory() as folder:
            words, files = [command], []
            for i, given in enumerate(inputs):
                if isinstance(given, Plan):
                    files.append(os.path.join(folder, f"{i}.plan"))
                    given.save(files[-1])
                    words.append(files[-1])
                elif isinstance(given, bytes):
                    words.append(os.path.join(folder, "model.onnx"))
                    with open(words[-1], "wb") as file:
                        file.write(given)
                else:
                    words.append(os.fspath(given))
            code, said, errors = _agpcs.plan_command([*words, *options])
        if code != 0 and not (command == "diff" and code == 1):  # 1: the plans differ
            for file in files:  # nobody knows them
                errors = errors.replace(file, "plan")
            kind = {1: InvalidInput, 2: UsageError, 3: Infeasible}.get(code, Error)
            raise kind(errors.rstrip("\n").replace("agpcs-plan: error: ", "", 1))
        return said

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return (f"<agpcs.Plan of {self.model} on {self.cluster}: batch {self.batch}, {self.ranks} ranks, "
                f"{len(self.stages)} stages, {len(self.groups)} groups>")


def load(path: Path) -> Plan:
    """Returns the plan in a file or a pipe. Raises InvalidInput, with line and hint, if it is not a plan, and OSError
    if `path` does not exist."""
    path = os.fspath(path)
    os.stat(path)
    return Plan(_agpcs.read_plan(path), path)


def refuse_idle(plan: Plan) -> None:
    """Raises PlanMismatch where some ranks of the plan compute nothing."""
    if plan.idle_ranks:
        raise PlanMismatch(f"the plan of {plan.model} has idle ranks, which agpcs.torch.Job and agpcs-run alone run\n"
                           "  hint: plan without idle_ranks")


def plan(model: Model, cluster: Path, *, batch: int | None = None, dims: Mapping[str, int] | None = None,
         freeze: Iterable[str] = (), train: Iterable[str] = (), inference_graph: bool = False,
         precision: str | None = None, attention: str | None = None, wire_type: str | None = None,
         loss: str | None = None, loss_outputs: Mapping[str, float] | None = None, ignore_index: int | None = None,
         label_smoothing: float = 0, class_axis: int | None = None, next_token: bool | None = None,
         slower: Mapping[str, float] | None = None, devices: Iterable[str] | None = None, seed: int = 0,
         data_parallel: bool = False,
         seeders: Iterable[str] | None = None, layout: str | None = None, refiner: str | None = None,
         policy: Path | None = None, budget: int | None = None, all_reduce: str = "auto", cut_at: str = "operators",
         without: Iterable[str] = (), teams: bool = False, threads: int | None = None,
         micro_batches: int | None = None, bucket_bytes: int | None = None,
         idle_ranks: bool = False, bound: bool = True) -> Plan:
    """Plans `model` (path, or the bytes of an .onnx file) for the cluster file `cluster`; returns a Plan.

    The options are those of agpcs-compile (docs/reference/agpcs_compile.md); None stands for its default. `dims` and
    `loss_outputs` map names to values and weights; `seeders`, `freeze` and `train` are lists of names.
    `slower` maps devices to factors: {"b/0": 2} plans as if that device took twice as long to compute.
    `devices` are those to plan for, as if the cluster had no others.
    `cut_at="modules"` leaves each layer of a list, and each module outside of one, whole in a stage.
    `without` leaves out dimensions of the space of plans: "state", so that no devices divide the optimizer's state;
    "gradients", so that none divide gradients, too; "parameters", so that none divide parameters, too;
    "schedules", so that no stage has other numbers of micro-batches in flight than 1F1B's textbook, or parts backward
    passes, or devices have several stages; "zero-bubble", so that none parts them; "interleaved", so that no device has several
    stages; "segments", so that stages recompute all or nothing, and have no activations in hosts; "offload", so that the
    optimizer's state and activations stay on devices; "activations", so that activations do.
    `teams=True` also looks for plans whose replicas are teams of devices that divide operators, which `agpcs.torch.Job` runs; a
    layout may ask for them without it. "unlike-teams" leaves out stages whose teams have unlike numbers of members.
    `data_parallel` asks for one stage on the fastest devices with the fastest shares, as `agpcs.torch` needs it.
    `idle_ranks=True` gives each device that the plan does not use an idle rank, which a job of agpcs-run or of `agpcs.torch.Job`
    that plans anew may use later. Jobs of DistributedDataParallel refuse such plans.
    `bound=False` leaves out the proof of how far the plan is from the best possible (`Plan.bound`), as `--no-bound`.

    The same arguments give the same plan. Ctrl-C ends the search and raises KeyboardInterrupt. The compiler's warnings
    become a UserWarning.
    """
    if data_parallel:
        if seeders is not None or layout is not None or refiner not in (None, "none"):
            raise UsageError("data_parallel and seeders, layout or a refiner are both given\n"
                             "  hint: data_parallel=True is seeders=['data_parallel'], refiner='none'")
        seeders, refiner = ["data_parallel"], "none"
        without = (*without, "state", "offload")  # DistributedDataParallel keeps it whole, on devices
    if layout is not None and refiner not in (None, "none"):
        raise UsageError("layout and refiner are both given\n  hint: a layout leaves nothing to a seeder or refiner")
    options = {
        "cluster": os.fspath(cluster), "dims": sorted(_pairs("dims", dims)), "freeze": _names("freeze", freeze),
        "train": _names("train", train), "inference_graph": bool(inference_graph),
        "slower": sorted(_pairs("slower", slower)), "seed": _checked("seed", seed, least=0), "refiner": refiner or "dqn",
        "all_reduce": all_reduce, "cut_at": cut_at, "without": _names("without", without), "bound": bool(bound),
        "idle_ranks": bool(idle_ranks), "threads": len(os.sched_getaffinity(0))}
    if devices is not None:
        options["devices"] = _names("devices", devices)
        if not options["devices"]:
            raise UsageError("devices has no device to plan for\n  hint: None stands for all of the cluster file's")
    left_out = tuple(options["without"])
    if not teams and "teams" not in left_out:
        options["without"].append("teams")
    model_bytes = None
    if isinstance(model, (bytes, bytearray, memoryview)):
        options["model"], model_bytes = "model.onnx", bytes(model)
    else:
        options["model"] = os.fspath(model)
    if class_axis not in (None, 1, -1):
        raise UsageError(f"class_axis is {class_axis}, not 1 or -1 (the last axis)")
    if label_smoothing:
        options["label_smoothing"] = label_smoothing
    given = {"loss": loss, "loss_outputs": None if loss_outputs is None else _pairs("loss_outputs", loss_outputs),
             "ignore_index": ignore_index, "class_axis": class_axis, "next_token": next_token}
    options.update((name, value) for name, value in given.items() if value is not None)
    given = {"batch": batch, "precision": precision, "attention": attention, "wire_type": wire_type,
             "seeders": None if seeders is None else _names("seeders", seeders), "layout": layout,
             "policy": os.fspath(policy) if isinstance(policy, os.PathLike) else policy, "budget": budget, "threads": threads,
             "micro_batches": micro_batches, "bucket_bytes": bucket_bytes}
    options.update((name, _checked(name, value)) for name, value in given.items() if value is not None)
    with _planning:
        text, said, proved = _agpcs.compile(options, model_bytes)
    if said:
        warnings.warn(said.rstrip("\n"), stacklevel=2)
    return Plan(text, made_from=(model_bytes or os.path.abspath(model), os.path.abspath(cluster)),
                bound=_bound(proved), without=left_out)


def _bound(proved):
    """The Bound of what the compiler says of it, by the names of agpcs-compile's JSON; None without one."""
    if proved["lower_bound_seconds"] is None:
        return None
    return Bound(proved["lower_bound_seconds"], proved["lower_bound_reason"], proved["gap"],
                 proved["one_stage_bound_seconds"], proved["one_stage_bound_reason"], proved["one_stage_gap"],
                 proved["text"])


def _checked(name, value, least=1):
    """Returns an option, which the compiler checks further: a text, a list of names or a whole number."""
    value = operator.index(value) if hasattr(value, "__index__") and not isinstance(value, bool) else value
    if isinstance(value, int) and value < least:
        raise UsageError(f"{name} is {value}\n  hint: it is a whole number from {least}")
    if not isinstance(value, (str, int, list)) or value == "":
        raise UsageError(f"{name} is {value!r}\n  hint: it is a text or a whole number (docs/reference/agpcs_compile.md)")
    return value


def _pairs(option, given):
    """Returns the pairs of a map of names to numbers."""
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"{option} is {given!r}\n  hint: it maps names to numbers: {option}={{'NAME': 2}}")
    pairs = []
    for name, number in (given or {}).items():
        if not isinstance(number, numbers.Real) or not math.isfinite(number):
            raise UsageError(f"{option} is {number!r} for {name!r}, not a finite number")
        pairs.append((name, operator.index(number) if isinstance(number, numbers.Integral) else float(number)))
    return pairs


def _names(option, names):
    if isinstance(names, str):
        raise UsageError(f"{option} is the text '{names}'\n  hint: give a list of names: [{names!r}]")
    return list(names)


def _stage(data):
    replicas = data["replicas"]
    further = [tuple(tuple(member[key] for member in r["further"]) for r in replicas) if "body" in data else ()
               for key in ("rank", "device")]
    return Stage(data["name"], *(tuple(r[key] for r in replicas) for key in ("rank", "device", "samples")), *further,
                 activations_in=data.get("activations_in", "device"), state_in=data.get("state_in", "device"))


def _groups(data, stages):
    by_name = {stage.name: stage for stage in stages}
    # A stage of one rank reduces nothing, so its buckets keep the file's order.
    order = {}
    for program in data["programs"]:
        for instruction in program["instructions"]:
            what, *of = instruction["instruction"].split(":")
            if what in ("all_reduce", "reduce_scatter"):
                order.setdefault(of[0], len(order))
    groups = []
    for bucket in sorted(data["buckets"], key=lambda bucket: order.get(bucket["name"], len(order))):
        shared_with = tuple(bucket.get("shared_with", ()))
        ranks = sorted(rank for name in (bucket["stage"], *shared_with) for rank in by_name[name].ranks)  # of teams, the first
        groups.append(Group(bucket["name"], bucket["stage"], tuple(ranks),
                            tuple(g["parameter"] for g in bucket["gradients"]),
                            tuple(g["elements"] for g in bucket["gradients"]), bucket["type"], bucket["algorithm"],
                            shared_with, tuple(bucket.get("parts", ())), bucket.get("state")))
    return tuple(groups)


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
