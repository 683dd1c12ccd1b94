# SPDX-License-Identifier: Apache-2.0
"""Plans on the graph of a module of agpcs.torch.Job: which stage has which node, what a rank computes of them, and what goes from stage
to stage. What a plan may say and Job does not do is refused here."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence

from agpcs import _torch_export
from agpcs._errors import PlanMismatch, UsageError
from agpcs._job.graph import Graph
from agpcs._job.links import Cut, Shares
from agpcs._job.memory import plan_data
from agpcs._job.split import split
from agpcs._job.teams.team import Team, ranks_with_bodies, refuse_for_teams, team_of


class Placing(typing.NamedTuple):
    """What places a plan on a module's graph."""

    graph: Graph
    origins: Mapping[str, str]  #: the graph's node of each tensor of the file
    file: bytes  #: the ONNX file, without values
    inputs: Sequence[str | None]  #: its names of the module's inputs

    def place(self, plan, cluster=None, known=None):
        """The plan as JSON, as `plan_data` has it; the graph has the plan's stages from now on."""
        data = plan_data(plan, self.file, cluster, known)
        _refuse(data)
        self.graph.place(self.origins, data["operators"], [stage["name"] for stage in data["stages"] if stage["operators"]])
        self.graph.take_segments(self.origins, data["operators"], data["stages"])
        return data

    def team(self, data, number, rank):
        """The Team of a rank in a stage of the plan, the JSON `data`; None: it is no member of one."""
        stage = data["stages"][number]
        alone = "body" not in stage or len(team_of(stage, rank)[1]) == 1  # beside teams a rank alone computes as any other
        return None if alone else Team(data, number, rank, self.origins, self.inputs)


def placing(model, program, converted, file, drawing=None):
    """What places plans on a module's graph."""
    return Placing(Graph(model, program, drawing), _torch_export.origins(converted), file, _torch_export.inputs(converted))


def check_plan(plan, known):
    """Refuses a plan that Job does not run on what `placing` gave, what each member of a team computes included. Returns it as JSON."""
    data = known.place(plan)
    parted(data, known.graph.module, known.graph)
    names = [stage["name"] for stage in data["stages"]]
    for number, stage in enumerate(data["stages"]):
        for rank in ranks_with_bodies(stage):
            split(known.graph, names, (number,), known.team(data, number, rank))
    return data


def parted(data, model, graph, own=(), team=None):
    """The Stages of a placed graph, of which those of the numbers `own` get their modules, as a member of `team` has them, and the Cuts
    between them."""
    parts = split(graph, [stage["name"] for stage in data["stages"]], own, team)
    _check_buckets(data, model, parts)
    return parts, _cuts(data, parts)


def _refuse(data):
    """Refuses what plans may say and Job does not do."""
    training = data["training"]
    if training["loss"]["kind"] in ("model", "output"):
        raise UsageError("the plan's loss is the model's own; agpcs.torch.Job needs a model that returns what loss_fn takes")
    if training["schedule"] == "interleaved":
        refuse_for_teams(data, "run with interleaved stages")


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
