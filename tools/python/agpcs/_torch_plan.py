# SPDX-License-Identifier: Apache-2.0
"""Plans a module for agpcs.torch.Job, and says by the module's names what each stage has."""

from __future__ import annotations

import itertools
import re
import typing
import warnings
from collections.abc import Mapping, Sequence

import torch

from agpcs._errors import PlanMismatch, UsageError
from agpcs._job.replan import plan_on
from agpcs._plan import Path, Plan, plan as make_plan
from agpcs._torch_autoplan import duration
from agpcs._torch_job import drawing_by, exported
from agpcs._torch_placing import check_plan, placing


class ModulePlan(Plan):
    """A plan of a module. Its text (`str(plan)`) says which modules each stage has, and on which devices."""

    def __init__(self, made: Plan, modules: Sequence[Sequence[str]]) -> None:
        super().__init__(made.text, made_from=made._made_from, bound=made.bound, without=made.without)
        #: by stage: the modules that lie in it as a whole, siblings with numbers as "layers.0-13"; and the operators of a
        #: stage without such a module
        self.modules: tuple[tuple[str, ...], ...] = tuple(tuple(_runs(names)) for names in modules)

    def __str__(self) -> str:
        estimates = self.estimates
        lines = [f"batch {self.batch} in {self.micro_batches} micro-batches, a step takes {duration(estimates.step_seconds)}"]
        for stage, modules in zip(self.stages, self.modules):
            if stage.idle:
                lines.append(f"idle: {', '.join(_runs(stage.devices))}")
                continue
            teams = stage.further_devices or [()] * len(stage.devices)
            devices = ", ".join(_runs(["+".join(names) for names in zip(stage.devices, *zip(*teams))]))
            samples = ", ".join(map(str, stage.samples))
            lines.append(f"stage {stage.name}: {', '.join(modules)} on {devices}, samples {samples}")
        return "\n".join(lines)


def plan(model: torch.nn.Module, sample_batch: Sequence[typing.Any], *, cluster: Path, batch: int | None = None,
         devices: Sequence[str] | None = None, input_names: Sequence[str] | None = None, output_names: Sequence[str] = ("logits",),
         export_options: Mapping[str, typing.Any] | None = None, dropout: str | None = None,
         **options: typing.Any) -> ModulePlan:
    """Plans the training of `model` on `cluster`, a file, for agpcs.torch.Job; returns a ModulePlan.

    `sample_batch` is a batch as Job takes it: the module's inputs, then the targets. The module is exported in memory,
    without values, and may have none: it was made on the device "meta", or within FakeTensorMode.
    `batch` is the number of samples of a step. `devices` are those of the job's ranks, in their order, such as what is left of
    the cluster: the plan computes with all of them, and with no other one; with `idle_ranks=True` some of them may be idle. `options`
    are those of agpcs.plan.
    `input_names`, `output_names` and `export_options` are those of agpcs.torch.export; Job is to get the same ones, and the
    same `dropout`, which the plan does not depend on. With `teams=True`, a plan whose teams Job does not run is a warning, and
    made again without.

    Raises PlanMismatch or UsageError, as Job does, if Job does not run the plan.
    """
    if devices is not None and "layout" in options:
        raise UsageError("devices and layout are both given\n  hint: a layout has its devices")
    drawing = drawing_by(dropout)
    program, converted, file = exported(model, sample_batch, input_names, output_names, dict(export_options or {}))
    known = placing(model, program, converted, file, drawing)

    def made(**given):
        if devices is None:
            return make_plan(file, cluster, batch=batch, **given)
        return plan_on(devices, file, cluster, batch=batch, **given)

    found, data = _runnable(made, known, options)
    return ModulePlan(found, _modules_of(model, data))


def _runnable(made, known, options):
    """(the plan that `made` gives for the options, its JSON); one without teams, if Job does not run those that it has chosen."""
    found = made(**options)
    try:
        return found, check_plan(found, known)
    except (PlanMismatch, UsageError) as error:
        if "layout" in options or not any(stage.further for stage in found.stages):
            raise
        warnings.warn(f"the plan has no teams, for agpcs.torch.Job does not run those that were chosen: {error}", stacklevel=3)
    found = made(**{**options, "teams": False})
    return found, check_plan(found, known)


def _modules_of(model, data):
    """By stage, the names of its modules: as large ones as lie in the stage as a whole, in the order of the operators."""
    known = {name for name, _ in model.named_modules(remove_duplicate=False)}
    stages, found = {}, [{} for _ in data["stages"]]
    numbers = {stage["name"]: number for number, stage in enumerate(data["stages"])}
    for operator in data["operators"]:
        for module in _around(operator["name"], known):
            stages.setdefault(module, set()).add(numbers[operator["stage"]])
    for operator in data["operators"]:
        whole = [module for module in _around(operator["name"], known) if len(stages[module]) == 1]
        if whole:
            found[numbers[operator["stage"]]].setdefault(whole[0])
    return [names or [operator["name"] for operator in data["operators"] if operator["stage"] == name]
            for names, name in zip(found, numbers)]


def _around(operator, known):
    """The modules around an operator, the outermost first, without the whole module."""
    parts = operator.rpartition("/")[0].split(".")
    return [name for name in (".".join(parts[:i]) for i in range(1, len(parts) + 1)) if name and name in known]


def _runs(names):
    """Joins neighbours that count on: "a/0", "a/1", "b" are "a/0-1", "b"."""
    parts = [re.fullmatch(r"(.*?[./])?(\d+)", name) for name in names]
    keys = [(part[1], int(part[2]) - i) if part else (name, None) for i, (name, part) in enumerate(zip(names, parts))]
    for (_, number), run in itertools.groupby(zip(keys, names), key=lambda item: item[0]):
        run = [name for _, name in run]
        yield run[0] if number is None or len(run) == 1 else f"{run[0]}-{re.split('[./]', run[-1])[-1]}"
