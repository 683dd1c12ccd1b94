# SPDX-License-Identifier: Apache-2.0
"""The team of a rank of agpcs.torch.Job, and the body that says how its members divide the stage's operators
(docs/design/teams.md)."""

from __future__ import annotations

import typing

import torch
import torch.distributed as dist

from agpcs._errors import PlanMismatch, UsageError
from agpcs._job.owned import tensor_of
from agpcs._job.teams.exchange import COPY, SUM, Lying, TeamLink, exchange_between, part_of, put_part


class Form(typing.NamedTuple):
    """A way in which operators of a body make or read a tensor."""

    tensor: str
    kind: str  #: of the tensor: "input", "parameter", "state", "constant" or "activation"
    gradient: bool  #: whether one flows to the tensor
    lying: Lying
    gradient_lying: Lying
    source: int | None  #: the number of the form that it is made of

    @property
    def divided(self):
        """Whether members have unlike values of the tensor."""
        return self.lying != COPY


def _form(entry):
    lies = entry["lies"]
    if lies == "part":
        ranges = tuple(tuple((begin, end) for begin, end in of_member) for of_member in entry["ranges"])
        lying = of_gradient = Lying("part", entry["axis"], ranges)
    else:
        lying, of_gradient = {"copy": (COPY, COPY), "copy/sum": (COPY, SUM), "sum": (SUM, COPY)}[lies]
    return Form(entry["tensor"], entry["kind"], entry["gradient"], lying, of_gradient, entry.get("from"))


class Body:
    """What the members of a stage's teams compute and exchange. `placed` is of the plan's JSON."""

    def __init__(self, placed):
        self.forms = [_form(entry) for entry in placed["forms"]]
        self.operators = placed["operators"]
        self.step_end = placed["step_end"]  #: forms of parameters whose gradients are exchanged once a step, in order
        self.of_tensor = {}  #: by name: the numbers of its forms
        for number, form in enumerate(self.forms):
            self.of_tensor.setdefault(form.tensor, []).append(number)
        self.variable = []  #: by form: the first one with which it shares values and gradients
        for number, form in enumerate(self.forms):
            same = form.source is not None and self.is_same(form.source, number)
            self.variable.append(self.variable[form.source] if same else number)

    def is_same(self, source, target):
        """Whether nothing lies between two forms, in either direction."""
        first, second = self.forms[source], self.forms[target]
        back = not first.gradient or exchange_between(second.gradient_lying, first.gradient_lying) == "nothing"
        return back and exchange_between(first.lying, second.lying) == "nothing"

    def copy_of(self, tensor):
        """The form in which a tensor leaves the body, or None."""
        return next((number for number in self.of_tensor.get(tensor, ())
                     if (self.forms[number].lying, self.forms[number].gradient_lying) == (COPY, COPY)), None)

    def held(self):
        """How members hold parameters and running statistics, by name: those that are in parts. Whole numbers are copies."""
        found = {}
        for form in self.forms:
            if form.kind not in ("parameter", "state") or form.source is not None:
                continue
            if found.setdefault(form.tensor, form.lying) != form.lying:
                raise UsageError(f"the plan's team reads '{form.tensor}' in several ways, which agpcs.torch.Job does not hold")
        return {name: lying for name, lying in found.items() if lying.kind == "part"}


class Team:
    """The team of `rank` in stage `number` of a plan, the JSON `data`. `origins` has the graph's node of each tensor of the file,
    `inputs` the file's names of the module's inputs."""

    def __init__(self, data, number, rank, origins, inputs):
        stage = data["stages"][number]
        self.stage, self.origins, self.inputs = stage["name"], origins, inputs
        replica, self.ranks = team_of(stage, rank)  #: in the order of members
        self.body = body_of(data, stage, replica)
        self.link = TeamLink(self.ranks, rank)
        self.member = self.link.member
        self.held = self.body.held()  #: how it lies, by name: what members hold in parts
        self.forms = {}  #: of parameters, by number: the ParameterForm of those in `body.step_end`

    def take(self, model):
        """Gradients of steps are those of the parameters of `model` from now on."""
        self._parameter_of = model.get_parameter

    def cut(self, model, names):
        """Takes away what other members have of the parameters and buffers `names`. They stay the same objects."""
        with torch.no_grad():
            for name in names:
                if name in self.held:
                    tensor = tensor_of(model, name)
                    tensor.data = part_of(tensor.detach(), self.held[name], self.member).clone(
                        memory_format=torch.contiguous_format)

    def begin_step(self):
        for form in self.forms.values():
            form.begin_step()

    def end_step(self):
        """Exchanges the step's gradients of parameters of which members have summands."""
        for number in self.body.step_end:
            if number not in self.forms:
                continue
            gradient, source = self.forms[number].ended(), self.body.forms[number].source
            while source not in self.forms and self.body.forms[source].source is not None:
                source = self.body.forms[source].source
            if source in self.forms:
                self.forms[source].add(gradient)
                continue
            parameter = self._parameter_of(self.body.forms[number].tensor)
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def members_of(stage):
    """The ranks of each replica of a stage of the plan's JSON, in the order of members: one, if it is no team."""
    return [[replica["rank"], *(member["rank"] for member in replica.get("further", ()))] for replica in stage["replicas"]]


def team_of(stage, rank):
    """(the number of the replica that a rank of the plan's JSON `stage` is a member of, its ranks in the order of members)."""
    return next((number, ranks) for number, ranks in enumerate(members_of(stage)) if rank in ranks)


def is_unlike(stage):
    """Whether the replicas of a stage of the plan's JSON have bodies of their own."""
    return any("body" in replica for replica in stage["replicas"])


def ranks_with_bodies(stage):
    """The ranks of a stage of the plan's JSON that compute unlike parts of it: of replicas with one body, those of the first."""
    found = {}
    for replica, ranks in zip(stage["replicas"], members_of(stage)):
        if len(ranks) > 1:
            found.setdefault(replica.get("body"), ranks)
    return [rank for ranks in found.values() for rank in ranks]


def body_of(data, stage, replica):
    """The Body of a replica of a stage of the plan's JSON `data`."""
    name = stage["replicas"][replica].get("body", stage["body"])
    return Body(next(body for body in data["bodies"] if body["name"] == name)["placed"])


def held_by_replicas(data, stage):
    """By replica of a stage of the plan's JSON `data`: (ranks in the order of members, how they hold what they have in parts, by
    name). A rank without a team has all of everything."""
    known, found = {}, []  # by name of a body
    for number, ranks in enumerate(members_of(stage)):
        if len(ranks) == 1:
            found.append((ranks, {}))
            continue
        body = stage["replicas"][number].get("body", stage["body"])
        if body not in known:
            known[body] = body_of(data, stage, number).held()
        found.append((ranks, known[body]))
    return found


def whole_of_parts(role, own):
    """Of what members hold in parts, whole tensors, on the CPU of the first member of the first team. `own` has, by a key, (Lying, the
    member's part). All members of that team call it alike."""
    if role.team is None or role.replica > 0:
        return {}
    operations, found, team = [], {}, role.team
    for key, (lying, part) in sorted(own.items()):
        part = part.contiguous()
        if team.member > 0:
            found[key] = part  # it lives until it is sent
            operations.append(dist.P2POp(dist.isend, part, team.ranks[0]))
            continue
        whole = lying.whole(part.shape)
        found[key] = [part, *(part.new_empty(lying.dims(m, whole)) for m in range(1, len(team.ranks)))]
        operations += [dist.P2POp(dist.irecv, other, rank) for other, rank in zip(found[key][1:], team.ranks[1:])]
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    return {} if team.member > 0 else {key: _joined(own[key][0], parts) for key, parts in found.items()}


def _joined(lying, parts):
    whole = torch.empty(lying.whole(parts[0].shape), dtype=parts[0].dtype)
    for member, part in enumerate(parts):
        put_part(whole, part.cpu(), lying, member)
    return whole


def refuse_for_teams(data, what):
    """Refuses, by name, what teams do not do."""
    for stage in data["stages"]:
        if "body" in stage:
            raise PlanMismatch(f"stage {stage['name']} of the plan has teams, which agpcs.torch.Job does not {what}")
