# SPDX-License-Identifier: Apache-2.0
"""Trains a module by a plan of any number of stages: each rank computes its stages of the module's own graph."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import typing
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch.utils import _pytree

from agpcs import _torch_export
from agpcs._errors import Error, PlanMismatch, UsageError
from agpcs._job import trace as tracing
from agpcs._job.checkpoint import Checkpoints
from agpcs._job.dropout import Masks, drawing_of
from agpcs._job.fill import Filling, device_of
from agpcs._job.graph import batched
from agpcs._job.host_state import HostState
from agpcs._job.links import Shares
from agpcs._job.loss import MeanLoss, described
from agpcs._job.memory import check_fits
from agpcs._job.move import adopted, check_move, check_schedule, fill, install, moved
from agpcs._job.owned import check_elementwise, cut_values, divide, examples_of, treats_elements
from agpcs._job.replan import JobWatch, Replanning
from agpcs._job.role import Role
from agpcs._job.split import tensors_of
from agpcs._job.state import ModuleState
from agpcs._job.step import Player
from agpcs._job.teams.team import refuse_for_teams
from agpcs._job.together import gathered, keeper_of_all, together
from agpcs._job.update import Update, check_clipping
from agpcs._plan import Path, Plan, load
from agpcs._torch_groups import WIRE_TYPES
from agpcs._torch_placing import parted, placing
from agpcs._torch_watch import Change, teller_of

Loss = Callable[[typing.Any, typing.Any], torch.Tensor]
OnDrift = typing.Union[str, Callable[[list[Change]], object], None]
Parameters = list[tuple[str, torch.nn.Parameter]]
OptimizerOf = Callable[[Parameters], torch.optim.Optimizer]


class Job:
    """Trains `model` by `plan`, a Plan or its path, on the ranks of the default process group.

    Every rank makes a Job of the whole module, with the same arguments. Then it keeps the parameters of its stage, which
    are the module's own objects; those of other stages become tensors on the device "meta" in `model`. Replicas of a stage
    begin with the parameters of its first rank, and stages that share a parameter with that of the first of them.
    Where ranks divide parameters, a rank has its slices of them between steps, and the parameters themselves have no values.
    A module on the device "meta" is never whole on a rank: it gets the tensors of the rank's stage as new objects, with
    values of `weights`, of `init`, or of both. What already has values keeps them, if `weights` has no others.

    `loss_fn(outputs, targets)` returns the mean loss over the samples that it gets, or, where the plan's loss has an
        `ignore_index`, over the labels that differ from it; `outputs` is what the module returns.
    `optimizer_fn(parameters)` returns the optimizer of a stage's parameters, a list of (name, parameter). It is
        `job.optimizer`; None in a stage where nothing trains. On an idle rank of the plan, which computes nothing, it gets the
        parameters of all stages without values, and has none of them afterwards.
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
        does; by default it is the plan's. `job.grad_norm` is that of the last step, before it was clipped.
    `autocast` is the type of torch.autocast, "bf16" or "fp16", within which stages and loss are computed; False: none. By
        default it is the plan's precision, unless all parameters that train have half precision themselves.
    `scaler` is the torch.amp.GradScaler of the loss, each rank's own. By default there is one with an autocast of fp16.
        It is `job.scaler`. All ranks leave out a step in which any rank's gradients are not finite.
    `dropout` "by-sample" replaces the module's dropout, and that of attention, by masks that depend on `seed`, the step, the
        node of the module's graph, the sample in the batch and the position in it alone, so that any plan trains as one
        process does. None: each rank draws its own masks, with a warning.
    `compile` compiles each stage by torch.compile: True, or a dict of its arguments.
    `on_drift` is what is done when a rank, or its all-reduces, are no longer as fast as they were, as in `plan_hook`.
    `replan` is the cluster file of the plan: when a rank changes, rank 0 looks for another plan while training goes on, and
        the job switches to it, if it saves 3% of a step.
    `trace` notes the times of the last 64 steps, of which `write_trace` writes one.
    `input_names`, `output_names` and `options` are what `agpcs.torch.export` was given for the plan's model.

    A step is that of one process over the plan's batch. What would make it another one is refused by name.
    """

    def __init__(self, model: torch.nn.Module, plan: Plan | Path, loss_fn: Loss,
                 optimizer_fn: OptimizerOf, sample_batch: Sequence[typing.Any], *,
                 weights: Path | None = None, init: Callable[[torch.nn.Module], object] | None = None, seed: int = 0,
                 device: torch.device | str | None = None, cluster: Path | None = None, max_norm: float | None = None,
                 norm_type: float = 2.0, autocast: str | torch.dtype | bool | None = None,
                 scaler: torch.amp.GradScaler | None = None, dropout: str | None = None,
                 compile: bool | Mapping[str, typing.Any] = False, on_drift: OnDrift = "say", replan: Path | None = None,
                 trace: bool = False, input_names: Sequence[str] | None = None, output_names: Sequence[str] = ("logits",),
                 **options: typing.Any) -> None:
        check_newer("agpcs.torch.Job")
        if not dist.is_initialized():
            raise UsageError("agpcs.torch.Job needs torch.distributed\n"
                             "  hint: dist.init_process_group() before it, in a script that torchrun starts")
        self._model, self._loss_fn = model, loss_fn
        given = {"weights": weights, "init": init, "seed": seed, "device": device}
        asked = {"seed": seed, "max_norm": max_norm, "norm_type": norm_type, "autocast": autocast,
                 "scaler": None if scaler is None else scaler.state_dict(), "dropout": dropout,
                 "compile": compile, "on_drift": on_drift is not None, "replan": replan is not None, "trace": trace}
        self._device = device_of(model, device)
        self._keeper = keeper_of_all(self._device)
        with self._keeper.naming():
            built = together("begin", lambda: self._build(plan, sample_batch, asked, given, cluster or replan, input_names,
                                                           output_names, options))
            _check_alike(self.plan.text, asked)
            self._watch_by(teller_of(on_drift), replan, built[0])
            self._begin(optimizer_fn, asked, scaler, *built)

    def _build(self, plan, sample_batch, asked, given, cluster, input_names, output_names, options):
        """What needs no other rank: the graph, the plan's operators in it, and this rank's stages with their values."""
        check_clipping(asked["max_norm"], asked["norm_type"])
        if not isinstance(asked["compile"], (bool, Mapping)):
            raise UsageError(f"compile is {asked['compile']!r}\n  hint: it is True, or a dict of arguments of torch.compile")
        drawing = drawing_by(asked["dropout"])
        self.plan: Plan = plan if isinstance(plan, Plan) else load(plan)
        plan, model = self.plan, self._model
        _check_ranks(plan)
        self._filling = Filling(model, **given)
        program, converted, file = exported(model, sample_batch, input_names, output_names, options, self._device)
        self._masks = None if drawing is None else Masks(asked["seed"], self._device)
        self._exported = placing(model, program, converted, file, drawing)
        graph = self._exported.graph
        self._cluster = cluster or plan._made_from and plan._made_from[1]
        data = self._exported.place(plan, cluster, self._cluster)
        if asked["max_norm"] is None:
            asked["max_norm"] = data["training"]["optimizer"].get("max_norm")
        self._type = autocast_of(asked["autocast"], data["training"]["precision"], model)
        if self._type is not None:
            graph.take_types(self._autocast())
        numbers = Shares(data).numbers_of(dist.get_rank())
        team = self._team_of(data, asked["compile"])
        parts, cuts = parted(data, model, graph, numbers, team)
        self._filling.fill(graph, parts, numbers, plan)
        return data, parts, cuts, team

    def _made_optimizer(self, role, own, data, values):
        """What `optimizer_fn` makes for the Stages `own`, with what the rank owns by `role`, if there is memory for its state; and its
        HostState, or None. `values` are those of its slices, by name, of parameters which ranks divide."""
        trained = role.trained(self._model, self._device)
        role.own(trained, values)
        optimizer = self._optimizer_fn(trained) if trained else None
        if optimizer is not None:
            role.examples = examples_of(optimizer, trained)
        if role.idle or any(name in role.slices for name, _ in trained):
            divide(optimizer, trained, role.owned, role.slices, role.rank)
        if role.idle:
            return optimizer, None
        if role.team is not None and role.team.held:
            check_elementwise(optimizer, "the plan's team holds parameters in parts", "a layout without teams")
        check_fits(data["memory"][role.rank] if "memory" in data else None, data["training"]["optimizer"]["kind"], optimizer,
                   role.in_host, [stage.module for stage in own], trained, role.buckets(self._model))
        return optimizer, self._host_of(role, optimizer)

    def _host_of(self, role, optimizer):
        return HostState(optimizer, self._device) if role.in_host and optimizer is not None else None

    def _watch_by(self, tell, cluster, data):
        """Decides who watches steps, and what is done when a rank changes."""
        self._replanning = self._watch = None
        if cluster is not None:
            self._replanning = together("begin", lambda: Replanning(self.plan, data, self._exported.file, cluster, tell))
            tell = self._replanning.drifted
        if tell is not None and self.plan.ranks > 1 and self.plan.statistics_every > 0:
            self._watch = JobWatch(self.plan, self._device, tell, self._replanning)

    def _begin(self, optimizer_fn, asked, scaler, data, parts, cuts, team):
        self._optimizer_fn, self._compile = optimizer_fn, asked["compile"]
        self._trace = tracing.Recorder(self._device) if asked["trace"] else None
        graph = self._exported.graph
        role = Role(self.plan, data, parts, cuts, self._device, self._filling.needed, team)
        own = [parts[number] for number in role.numbers]
        if role.everyone is not None:
            without = {id(self._model.get_parameter(name)) for name in (role.divided if self._filling.needed else ())}
            for tensor in (tensor for stage in own for tensor in tensors_of(stage, graph)):
                if id(tensor) in without:
                    continue  # each rank has made what is its own
                dist.broadcast(tensor.detach(), role.ranks[0], group=role.everyone)
        for group in role.shared:
            for name in group.parameters if role.has(group) else ():
                first = role.shares.ranks[role.shares.stages.index(group.stage)][0]
                dist.broadcast(self._model.get_parameter(name).detach(), first, group=role.sums[group.ranks])
        role.agree(self._model, self._device)
        self._filling.keep_given(role)
        self._unused = self._filling.owners_of_unused(role)
        self._state = ModuleState(self._model, self._device)
        if team is not None:
            team.take(self._model)
            team.cut(self._model, [name for stage in own for name in (*stage.parameters, *stage.buffers)])
        self._state.own_by({**self._unused, **role.owners}, role)
        self._state.release(role.released())
        graph.program.state_dict.clear()  # it has the whole module's
        self._inputs = [node and _Input(node) for node in graph.inputs]
        self._spec, self._outputs = graph.program.call_spec.in_spec, graph.program.call_spec.out_spec
        values = self._filling.values if self._filling.needed else cut_values(self._model, role)
        optimizer, _ = together("begin", lambda: self._made_optimizer(role, own, data, values))
        self._update = Update(asked["max_norm"], asked["norm_type"], self._scaler_of(scaler), self._device)
        self._take(data, role, own, optimizer)

    def _take(self, data, role, own, optimizer):
        """Trains by a role from now on, of which `own` are this rank's Stages."""
        self.plan, self._data, self._role = role.plan, data, role
        self.stage: str = ",".join(role.stages)  #: of this rank, "s1"; "s1,s3" if it has several
        self.optimizer: torch.optim.Optimizer | None = optimizer
        host = self._host_of(role, optimizer)
        self._checkpoints = Checkpoints(self._model, self._state, optimizer, host, role, self.scaler, self._masks)
        self._wanted = sorted({number for stage in own for number in stage.inputs})
        self._update.take(optimizer, host, role.counted())
        self._mean_loss = MeanLoss(self._loss_fn, self._outputs, data["training"]["loss"], self.plan.batch, self._device)
        losses = {self._exported.graph.loss_stage: self._mean_loss.part}
        buckets = role.buckets(self._model)
        self._player = Player(role, buckets, losses, self._update, self._autocast, self._masks, self._compile, self._watch,
                              self._trace)
        if self._replanning is not None:
            self._replanning.may_divide = all(gathered(treats_elements(optimizer)))
        if self._trace is not None:
            self._trace.forget()
            self._traffic = tracing.traffic(role.cuts, buckets, role.rank, self._player.idle)

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
        inputs, targets = inputs_and_targets(batch)
        flat = self._checked(inputs)
        self._mean_loss.begin(targets)
        taken = {i: (flat[i].to(self._device), self._inputs[i].batched) for i in self._wanted}
        begin = time.perf_counter()
        with self._keeper.naming():
            loss = self._player.step(taken)
        if self._masks is not None:
            self._masks.step_ended()
        if self._replanning is not None:
            self._replanning.step_ended(time.perf_counter() - begin)
            if self._replanning.announced:
                self._replanning.switch(self._go_on_by)
        return loss

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
        flat, spec = _pytree.tree_flatten((inputs, {}))
        if spec != self._spec:
            raise UsageError(f"the batch has other inputs than sample_batch: {len(flat)} instead of {len(self._inputs)}")
        for number, (given, known) in enumerate(zip(flat, self._inputs)):
            if known is None:
                continue
            if known.batched and given.shape[:1] != (self.plan.batch,):
                raise PlanMismatch(f"input {number} has {given.shape[0] if given.dim() else 'no'} samples; the plan's batch "
                                   f"has {self.plan.batch}\n  hint: every rank gives the whole batch (drop_last=True)")
            if given.dtype != known.dtype or given.shape[known.batched:] != known.shape:
                raise PlanMismatch(f"input {number} is {described(given)}, and in sample_batch it was {described(known.example)}")
        return flat

    def switch(self, plan: Plan | Path) -> None:
        """Trains by another plan from the next step on: stages, shares and what each rank holds become those of `plan`. All
        ranks call it between the same two steps. Rank 0's `plan` counts.

        The plan is one of the same module, training and devices; another one is refused on all ranks, by name.
        Parameters, the buffers that change and the optimizers' states go from the ranks that have them to those that need
        them. If that fails on any rank, all ranks raise an error, and the job is as it was before. `optimizer_fn` is called
        for the new stage's parameters; `job.optimizer` stays the same object where the rank had one before.
        """
        self._go_on_by(plan, {})

    def _go_on_by(self, plan, factors):
        """Switches to a plan that was made for devices that are slower by `factors` than the cluster file says."""
        def of_rank_0():
            known = (plan if isinstance(plan, Plan) else load(plan)) if dist.get_rank() == 0 else None
            return known and (known.text, known.without)

        self._checkpoints.check_whole()
        with self._keeper.naming():
            said = [together("switch", of_rank_0)]
            dist.broadcast_object_list(said, 0)
            text, without = said[0]
            if text != self.plan.text:
                self._switch(*together("switch", lambda: self._checked_plan(Plan(text, without=without))))
                if self._watch is not None:
                    self._watch.expect(self.plan)
                if self._replanning is not None:
                    self._replanning.runs(self.plan, self._data, factors)

    def _checked_plan(self, plan):
        _check_ranks(plan)
        data = self._exported.place(plan, known=self._cluster)
        team = self._team_of(data, self._compile)
        check_move(self.plan, self._data, plan, data)
        return plan, data, *parted(data, self._model, self._exported.graph), team

    def _team_of(self, data, compiles):
        """The team that this rank is a member of by a plan, or None. Refuses plans with teams where the job does what these do
        not."""
        for what, wanted in (("compile", compiles),
                             ("fill with values (a module on the device 'meta')", self._filling.needed)):
            if wanted:
                refuse_for_teams(data, what)
        return self._exported.team(data, Shares(data).numbers_of(dist.get_rank())[0], dist.get_rank())

    def _switch(self, plan, data, parts, cuts, team):
        before, take_back = self._role, None
        after = Role(plan, data, parts, cuts, self._device, self._filling.needed, team)

        def prepared():
            nonlocal take_back
            values, take_back = install(self._state, self._model, before, after, found)
            after.parts, _ = parted(data, self._model, self._exported.graph, after.numbers, team)
            if team is not None:
                team.take(self._model)
            own = [after.parts[number] for number in after.numbers]
            optimizer, host = self._made_optimizer(after, own, data, values)
            check_schedule(self.optimizer, optimizer)
            checkpoints = Checkpoints(self._model, self._state, optimizer, host, after, self.scaler, self._masks)
            fill(checkpoints, after.owned, found, told)
            return own, optimizer

        try:
            found, told = moved(self._model, self._state, before, after, self._checkpoints)
            own, optimizer = together("switch", prepared)
        except Exception:
            if take_back is not None:
                take_back()
            after.close()
            raise
        self._player.close()
        before.close()
        with torch.no_grad():
            for name in (name for stage in own for name in stage.changed.values()):
                self._model.get_buffer(name).copy_(found[name, None])
        self._state.own_by({**self._unused, **after.owners}, after)
        self._state.release(after.released() & set(before.parameters))
        self._take(data, after, own, adopted(self.optimizer, optimizer))

    def write_trace(self, path: Path, *, cluster: Path | None = None) -> None:
        """Writes one of the last 64 steps by the plan as all ranks measured it, the one whose length is nearest to the
        median; with `cluster`, the plan's cluster file, also the planned step. Rank 0 writes; all ranks call it.

        The file is that of `agpcs-run --trace`, for Perfetto and `agpcs-plan drift`. The job began with `trace=True`.
        """
        if self._trace is None:
            raise UsageError("the job notes no times\n  hint: Job(..., trace=True)")
        with self._keeper.naming():
            tracing.write(path, self.plan, self._trace, self._traffic, cluster, self._exported.file)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The state of the whole module by all of its names, tied ones included, on every rank. All ranks call it."""
        with self._keeper.naming():
            self._checkpoints.check_whole()
            return self._state.whole()

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Takes the state of the whole module, of `state_dict` or of the module itself. Every rank has it, and calls this.
        If the state of one rank is refused, no rank takes any."""
        self._checkpoints.check_whole()
        with self._keeper.naming():
            self._state.load(state)

    def save(self, path: Path, *, extra: typing.Any = None) -> None:
        """Writes a checkpoint by torch.distributed.checkpoint into the folder `path`, which all ranks see: the module's
        and the optimizers' states by the module's names. All ranks call it.

        The folder has its name only once the checkpoint is whole. One that was there before stays until then.
        `extra` is kept on rank 0, and `load` returns it: numbers, texts, tensors, and lists and dicts of them.
        """
        with self._keeper.naming():
            self._checkpoints.save(os.path.abspath(path), extra)

    def load(self, path: Path) -> typing.Any:
        """Goes on from a checkpoint of `save`, which a job with another plan may have written. All ranks call it.
        Returns the `extra` of `save`. If files turn out to be damaged while they are read, the job refuses, on every rank,
        to go on until a `load` has succeeded."""
        with self._keeper.naming():
            return self._checkpoints.load(os.path.abspath(path))


class _Input:
    """What a step's input has to be like, by its node in the graph."""

    def __init__(self, node):
        self.example, self.batched = node.meta["val"], batched(node)
        self.dtype, self.shape = self.example.dtype, tuple(self.example.shape[self.batched:])  #: without the samples


def exported(model, sample_batch, input_names, output_names, options, device=None):
    """What torch.export makes of a module, its ONNXProgram, and the file of that without values. `device` is that on which
    a module without values will have some."""
    inputs, _ = inputs_and_targets(sample_batch)
    with _torch_export.training(model):
        return _torch_export.captured(model, inputs, input_names, output_names, options, device)


def drawing_by(dropout):
    """What tells how a node that draws random numbers is replaced; None where none is."""
    if dropout not in (None, "by-sample"):
        raise UsageError(f"dropout is {dropout!r}; it is 'by-sample' or None")
    return None if dropout is None else drawing_of


def check_newer(what):
    """Refuses a PyTorch without the exporter that `what` uses."""
    if not hasattr(torch, "export") or not hasattr(torch.export, "Dim") or not hasattr(torch.export.Dim, "DYNAMIC"):
        raise Error(f"{what} needs PyTorch 2.6 or newer, whose exporter it uses; this is {torch.__version__}")


def inputs_and_targets(batch):
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise UsageError("a batch is a tuple or list of the module's inputs, in the order of its arguments, and then the "
                         f"targets; this is {described(batch)}")
    return tuple(batch[:-1]), batch[-1]


def _check_ranks(plan):
    ranks = dist.get_world_size()
    if ranks != plan.ranks:
        raise PlanMismatch(f"the plan of {plan.model} has {plan.ranks} ranks, and the job has {ranks}\n"
                           f"  hint: torchrun --nproc-per-node and --nnodes that make {plan.ranks}, or a plan for "
                           f"{ranks} devices")


def autocast_of(asked, precision, model):
    """The type of torch.autocast, or None."""
    if asked is None:
        half = all(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters() if p.requires_grad)
        asked = None if half or precision not in WIRE_TYPES else precision
    if asked is not False and asked not in WIRE_TYPES:
        raise UsageError(f"autocast is {asked!r}; it is 'bf16', 'fp16' or False")
    return None if asked is False else WIRE_TYPES[asked]


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
