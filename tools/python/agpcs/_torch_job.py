# SPDX-License-Identifier: Apache-2.0
"""Trains a module by a plan of any number of stages: each rank computes its stage of the module's own graph."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import typing
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist

from agpcs import _torch_export
from agpcs._errors import Error, InvalidInput, PlanMismatch, UsageError
from agpcs._job.checkpoint import Checkpoints
from agpcs._job.fill import Filling
from agpcs._job.graph import Graph, batched, where
from agpcs._job.links import Cut, Links, Shares
from agpcs._job.memory import check_fits, memory_of
from agpcs._job.split import split
from agpcs._job.state import ModuleState
from agpcs._job.step import Bucket, Player
from agpcs._job.together import together
from agpcs._job.update import Update, check_clipping
from agpcs._plan import Path, Plan, load
from agpcs._torch_groups import WIRE_TYPES

Loss = Callable[[typing.Any, typing.Any], torch.Tensor]
Parameters = list[tuple[str, torch.nn.Parameter]]


class Job:
    """Trains `model` by `plan`, a Plan or its path, on the ranks of the default process group.

    Every rank makes a Job of the whole module, with the same arguments. Then it keeps the parameters of its stage, which
    are the module's own objects; those of other stages become tensors on the device "meta" in `model`. Replicas of a stage
    begin with the parameters of its first rank, and stages that share a parameter with that of the first of them.
    A module on the device "meta" is never whole on a rank: it gets the tensors of the rank's stage as new objects, with
    values of `weights`, of `init`, or of both. What already has values keeps them, if `weights` has no others.

    `loss_fn(outputs, targets)` returns the mean loss over the samples that it gets; `outputs` is what the module returns.
    `optimizer_fn(parameters)` returns the optimizer of a stage's parameters, a list of (name, parameter). It is
        `job.optimizer`; None in a stage where nothing trains.
    `sample_batch` is a batch as `step` takes it, of any number of samples.
    `weights` is a .safetensors file, a folder of them with model.safetensors.index.json, or one of
        torch.distributed.checkpoint, such as `save` writes. Names, shapes and types are those of the module's state_dict;
        a tied parameter may have one name only.
    `init(module)` sets the parameters and buffers of a module itself, not those of its children; each rank calls it with the
        modules of its stage. With `weights` it sets only buffers that are not persistent. Its random numbers begin, for
        each module, with the first 63 bits of the SHA-256 of "SEED:NAME", so that values depend on `seed` and on the name
        that the module has (the first, if there are several), not on the plan. They are made on the CPU.
    `device` is where such values lie: by default the CPU, with NCCL the current CUDA device.
    `cluster` is the plan's cluster file. With it the job is refused if the state of its optimizer does not fit into the
        memory that the plan left, however much the plan's own optimizer keeps. A plan that this process made knows it.
    `max_norm` clips gradients by their norm over all stages, of the kind `norm_type`, as torch.nn.utils.clip_grad_norm_
        does. `job.grad_norm` is that of the last step, before it was clipped.
    `autocast` is the type of torch.autocast, "bf16" or "fp16", within which stages and loss are computed; False: none. By
        default it is the plan's precision, unless all parameters that train have half precision themselves.
    `scaler` is the torch.amp.GradScaler of the loss, each rank's own. By default there is one with an autocast of fp16.
        It is `job.scaler`. All ranks leave out a step in which any rank's gradients are not finite.
    `compile` compiles each stage by torch.compile: True, or a dict of its arguments.
    `input_names`, `output_names` and `options` are what `agpcs.torch.export` was given for the plan's model.

    A step is that of one process over the plan's batch. What would make it another one is refused by name.
    """

    def __init__(self, model: torch.nn.Module, plan: Plan | Path, loss_fn: Loss,
                 optimizer_fn: Callable[[Parameters], torch.optim.Optimizer], sample_batch: Sequence[typing.Any], *,
                 weights: Path | None = None, init: Callable[[torch.nn.Module], object] | None = None, seed: int = 0,
                 device: torch.device | str | None = None, cluster: Path | None = None,
                 max_norm: float | None = None, norm_type: float = 2.0,
                 autocast: str | torch.dtype | bool | None = None, scaler: torch.amp.GradScaler | None = None,
                 compile: bool | Mapping[str, typing.Any] = False,
                 input_names: Sequence[str] | None = None, output_names: Sequence[str] = ("logits",),
                 **options: typing.Any) -> None:
        if not hasattr(torch, "export") or not hasattr(torch.export, "Dim") or not hasattr(torch.export.Dim, "DYNAMIC"):
            raise Error(f"agpcs.torch.Job needs PyTorch 2.6 or newer, whose exporter it uses; this is {torch.__version__}")
        if not dist.is_initialized():
            raise UsageError("agpcs.torch.Job needs torch.distributed\n"
                             "  hint: dist.init_process_group() before it, in a script that torchrun starts")
        self._model, self._loss_fn = model, loss_fn
        given = {"weights": weights, "init": init, "seed": seed, "device": device}
        asked = {"seed": seed, "max_norm": max_norm, "norm_type": norm_type, "autocast": autocast,
                 "scaler": None if scaler is None else scaler.state_dict(),
                 "compile": compile}
        built = together("begin", lambda: self._build(plan, sample_batch, asked, given, cluster, input_names, output_names,
                                                      options))
        _check_alike(self.plan.text, asked)
        self._begin(optimizer_fn, asked, scaler, *built)

    def _build(self, plan, sample_batch, asked, given, cluster, input_names, output_names, options):
        """What needs no other rank: the graph, the plan's operators in it, and this rank's stage with its values."""
        check_clipping(asked["max_norm"], asked["norm_type"])
        if not isinstance(asked["compile"], (bool, Mapping)):
            raise UsageError(f"compile is {asked['compile']!r}\n  hint: it is True, or a dict of arguments of torch.compile")
        self.plan: Plan = plan if isinstance(plan, Plan) else load(plan)
        plan, model = self.plan, self._model
        if dist.get_world_size() != plan.ranks:
            raise PlanMismatch(f"the plan of {plan.model} has {plan.ranks} ranks, and the job has {dist.get_world_size()}\n"
                               f"  hint: torchrun --nproc-per-node and --nnodes that make {plan.ranks}, or a plan for "
                               f"{dist.get_world_size()} devices")
        self._filling = Filling(model, **given)
        self._device = self._filling.device
        program, converted, file = exported(model, sample_batch, input_names, output_names, options, self._device)
        data, graph = placed(plan, model, program, converted, file)
        memory = memory_of(plan, file, cluster)
        self._memory = None if memory is None else memory[dist.get_rank()]
        self._type = _autocast_of(asked["autocast"], data["training"]["precision"], model)
        if self._type is not None:
            graph.take_types(self._autocast())
        stages = [stage["name"] for stage in data["stages"]]
        rank = dist.get_rank()
        self.stage: str = next(stage.name for stage in plan.stages if rank in stage.ranks)  #: of this rank
        parts, cuts = parted(data, model, graph, stages.index(self.stage))
        self._filling.fill(graph, parts, stages.index(self.stage))
        return data, graph, parts, cuts

    def _begin(self, optimizer_fn, asked, scaler, data, graph, parts, cuts):
        rank, shares = dist.get_rank(), Shares(data)
        number = shares.stages.index(self.stage)
        own = parts[number]
        tensors = [*own.module.parameters(), *own.module.buffers()]
        links = Links(rank, cuts, shares, self._device)
        groups = [dist.new_group(ranks) if len(ranks) > 1 else None for ranks in shares.ranks]
        if groups[number] is not None:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), shares.ranks[number][0], group=groups[number])
        own_groups = [group for group in self.plan.groups if self.stage in (group.stage, *group.shared_with)]
        sums = {ranks: dist.new_group(ranks) for ranks in dict.fromkeys(g.ranks for g in self.plan.groups if g.shared_with)}
        for group in own_groups:
            for name in group.parameters if group.shared_with else ():
                first = shares.ranks[shares.stages.index(group.stage)][0]
                dist.broadcast(self._model.get_parameter(name).detach(), first, group=sums[group.ranks])
        owners = {name: shares.ranks[s][0] for s, part in enumerate(parts)
                  for name in (*part.parameters, *part.changed.values())}
        owners.update(self._filling.owners(shares))
        self._state = ModuleState(self._model, owners, self._device)
        self._state.release({name for part in parts for name in part.parameters} - set(own.parameters))
        self._inputs = [(node, node is not None and batched(node)) for node in graph.inputs]
        self._spec, self._outputs = graph.program.call_spec.in_spec, graph.program.call_spec.out_spec
        self._wanted = own.inputs
        wire_type = WIRE_TYPES.get(data["training"].get("wire_type", data["training"]["precision"]))
        buckets = [Bucket(group.name, [self._model.get_parameter(name) for name in group.parameters],
                          sums.get(group.ranks, groups[number]), wire_type) for group in own_groups]
        trained = [(name, self._model.get_parameter(name)) for name in own.parameters]
        trained = [(name, parameter) for name, parameter in trained if parameter.requires_grad]
        self.optimizer: torch.optim.Optimizer | None = optimizer_fn(trained) if trained else None
        together("begin", lambda: check_fits(self._memory, data["training"]["optimizer"]["kind"], self.optimizer))
        scaler = self._scaler_of(scaler)
        self._update = Update(self.optimizer, [parameter for name, parameter in trained if owners[name] == rank],
                              asked["max_norm"], asked["norm_type"], scaler, self._device)
        self._checkpoints = Checkpoints(self._state, self.optimizer, trained, scaler)
        program = next(program for program in data["programs"] if program["stage"] == self.stage)
        lines = [(line["instruction"], line["after"]) for line in program["instructions"]]
        self._player = Player(own, number, lines, data["stages"][number]["recompute"],
                              [cut for cut in cuts if number in (cut.source, cut.target)], links, shares, rank, buckets,
                              self._loss if number == graph.loss_stage else None, self._update, self.plan.batch,
                              self._autocast, asked["compile"])

    def _scaler_of(self, given):
        """The scaler of the loss, or None."""
        if given is None:
            return torch.amp.GradScaler(self._device.type) if self._type is torch.float16 else None
        return given if given.is_enabled() else None

    def step(self, batch: Sequence[typing.Any]) -> torch.Tensor:
        """Makes a step by the plan: gradients and the optimizer's update. Returns the loss of the whole batch.

        `batch` is a tuple or list: the module's inputs, in the order of its arguments, then the targets of `loss_fn`, a
        tensor or a tree of tensors. All have the whole batch's samples in axis 0, the same on every rank; a rank computes
        the rows that the plan gives it.
        """
        self._checkpoints.check_whole()
        inputs, targets = _inputs_and_targets(batch)
        flat = self._checked(inputs)
        _check_targets(targets, self.plan.batch)
        taken = [(flat[i].to(self._device), self._inputs[i][1]) for i in self._wanted]
        return self._player.step(taken, targets)

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """The norm of the last step's gradients over all stages, before they were clipped; None without `max_norm`."""
        return self._update.norm

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """What scales the loss; None: nothing does."""
        return self._update.scaler

    def _autocast(self):
        if self._type is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, self._type)

    def _checked(self, inputs):
        from torch.utils import _pytree
        flat, spec = _pytree.tree_flatten((inputs, {}))
        if spec != self._spec:
            raise UsageError(f"the batch has other inputs than sample_batch: {len(flat)} instead of {len(self._inputs)}")
        for number, (given, (node, of_samples)) in enumerate(zip(flat, self._inputs)):
            if node is None:
                continue
            known = node.meta["val"]
            if of_samples and given.shape[:1] != (self.plan.batch,):
                raise PlanMismatch(f"input {number} has {given.shape[0] if given.dim() else 'no'} samples; the plan's batch "
                                   f"has {self.plan.batch}\n  hint: every rank gives the whole batch (drop_last=True)")
            if given.dtype != known.dtype or given.shape[of_samples:] != tuple(known.shape[of_samples:]):
                raise PlanMismatch(f"input {number} is {_described(given)}, and in sample_batch it was {_described(known)}")
        return flat

    def _loss(self, outputs, targets, begin, end):
        from torch.utils import _pytree
        part = _pytree.tree_map(lambda x: x[begin:end].to(self._device) if isinstance(x, torch.Tensor) else x, targets)
        loss = self._loss_fn(_pytree.tree_unflatten(list(outputs), self._outputs), part)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise UsageError(f"loss_fn returned {_described(loss)}, not one number\n"
                             "  hint: the mean loss over the samples that it gets")
        return loss.reshape(())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The state of the whole module by all of its names, tied ones included, on every rank. All ranks call it."""
        self._checkpoints.check_whole()
        return self._state.whole()

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Takes the state of the whole module, of `state_dict` or of the module itself. Every rank has it, and calls this.
        If the state of one rank is refused, no rank takes any."""
        self._checkpoints.check_whole()
        self._state.load(state)

    def save(self, path: Path, *, extra: typing.Any = None) -> None:
        """Writes a checkpoint by torch.distributed.checkpoint into the folder `path`, which all ranks see: the module's
        and the optimizers' states by the module's names. All ranks call it.

        The folder has its name only once the checkpoint is whole. One that was there before stays until then.
        `extra` is kept on rank 0, and `load` returns it: numbers, texts, tensors, and lists and dicts of them.
        """
        self._checkpoints.save(os.path.abspath(path), extra)

    def load(self, path: Path) -> typing.Any:
        """Goes on from a checkpoint of `save`, which a job with another plan may have written. All ranks call it.
        Returns the `extra` of `save`. If files turn out to be damaged while they are read, the job refuses, on every rank,
        to go on until a `load` has succeeded."""
        return self._checkpoints.load(os.path.abspath(path))


def exported(model, sample_batch, input_names, output_names, options, device=None):
    """What torch.export makes of a module, its ONNXProgram, and the file of that without values. `device` is that on which
    a module without values will have some."""
    inputs, _ = _inputs_and_targets(sample_batch)
    with _torch_export.training(model):
        try:
            return _torch_export.captured(model, inputs, input_names, output_names, options, device)
        except Exception as error:
            raise Error(f"PyTorch cannot export the module: {error}\n"
                        "  hint: agpcs.torch.export shows the same error without a job") from error


def placed(plan, model, program, converted, file):
    """The plan as JSON, and the module's graph with the plan's stages."""
    data = _plan_for(plan, file)
    _refuse(data)
    graph = Graph(model, program)
    graph.place(_torch_export.origins(converted), data["operators"], [stage["name"] for stage in data["stages"]])
    return data, graph


def parted(data, model, graph, own=None):
    """The Stages of a placed graph, of which `own` gets its module, and the Cuts between them."""
    parts = split(graph, [stage["name"] for stage in data["stages"]], own)
    _check_buckets(data, model, parts)
    return parts, _cuts(data, parts)


def _inputs_and_targets(batch):
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise UsageError("a batch is a tuple or list of the module's inputs, in the order of its arguments, and then the "
                         f"targets; this is {_described(batch)}")
    return tuple(batch[:-1]), batch[-1]


def _described(value):
    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} and shape {'x'.join(map(str, value.shape)) or 'scalar'}"
    return f"a {type(value).__name__}"


def _check_targets(targets, batch):
    from torch.utils import _pytree
    for leaf in _pytree.tree_leaves(targets):
        if not isinstance(leaf, torch.Tensor) or leaf.shape[:1] != (batch,):
            raise PlanMismatch(f"the targets have {_described(leaf)}; the plan's batch has {batch} samples\n"
                               "  hint: every rank gives the whole batch (drop_last=True)")


def _plan_for(plan, file):
    """The plan as JSON, with the operators of the model in `file`."""
    try:
        return json.loads(plan._command("json", [plan, "--model", file]))
    except InvalidInput as error:
        raise PlanMismatch(f"the plan is not for this module: {error}\n"
                           "  hint: plan what agpcs.torch.export writes of this module, and give Job the same input_names, "
                           "output_names and options") from None


def _refuse(data):
    """Refuses what plans may say and Job does not do."""
    training = data["training"]
    if training["loss"]["kind"] in ("model", "output"):
        raise UsageError("the plan's loss is the model's own; agpcs.torch.Job needs a model that returns what loss_fn takes")
    if "ignore_index" in training["loss"]:
        raise UsageError("the plan's loss counts labels (ignore-index); agpcs.torch.Job weighs samples")
    for stage in data["stages"]:
        if not stage["operators"]:
            raise UsageError(f"stage {stage['name']} of the plan has no operators, which agpcs.torch.Job does not run")


def _autocast_of(asked, precision, model):
    """The type of torch.autocast, or None."""
    if asked is None:
        half = all(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters() if p.requires_grad)
        asked = None if half or precision not in WIRE_TYPES else precision
    if asked is not False and asked not in WIRE_TYPES:
        raise UsageError(f"autocast is {asked!r}; it is 'bf16', 'fp16' or False")
    return None if asked is False else WIRE_TYPES[asked]


def _cuts(data, parts):
    """What goes from stage to stage, by the plan's cuts."""
    shares, names = Shares(data), [stage["name"] for stage in data["stages"]]
    planned = {(names.index(cut["from"]), names.index(cut["to"])): cut["name"] for cut in data["cuts"]}
    cuts = {}
    for target, part in enumerate(parts):
        for value in part.received:
            cuts.setdefault((value.source, target), []).append(value)
    for source, target in cuts:
        if (source, target) not in planned:
            raise PlanMismatch(f"stage {names[target]} reads '{cuts[source, target][0].name}' of stage {names[source]}, and "
                               "the plan sends nothing there")
    return [Cut(planned[ends], *ends, values, shares) for ends, values in sorted(cuts.items())]


def _check_buckets(data, model, parts):
    """Each stage's buckets have the gradients of exactly its parameters that train."""
    for stage, part in zip(data["stages"], parts):
        planned = {gradient["parameter"] for bucket in data["buckets"]
                   if stage["name"] in (bucket["stage"], *bucket.get("shared_with", ())) for gradient in bucket["gradients"]}
        trained = {name for name in part.parameters if model.get_parameter(name).requires_grad}
        for names, said in ((planned - trained, "is in the plan, and does not train there"),
                            (trained - planned, "trains there, and the plan has no gradient of it")):
            if names:
                raise PlanMismatch(f"parameter '{min(names)}' of stage {stage['name']} {said}")


def _check_alike(text, asked):
    """Compares plans and options over all ranks, so that none begins alone."""
    own = (hashlib.sha256(text.encode()).hexdigest(), {name: repr(value) for name, value in asked.items()})
    every: list[typing.Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    for rank, (digest, options) in enumerate(every):
        if digest != own[0]:
            raise PlanMismatch(f"rank {rank} has another plan than this rank\n  hint: give every rank the same file")
        for name, value in own[1].items():
            if options[name] != value:
                raise PlanMismatch(f"{name} is {options[name]} on rank {rank}, and {value} on this rank")
