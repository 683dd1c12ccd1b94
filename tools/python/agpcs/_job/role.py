# SPDX-License-Identifier: Apache-2.0
"""What a rank of agpcs.torch.Job does by a plan: its stages, what it sends to whom, and with whom it reduces gradients."""

from __future__ import annotations

import torch
import torch.distributed as dist

from agpcs._job.buckets import Bucket, ScatteredBucket, ShardedBucket
from agpcs._job.gathered import GatheredBucket, absent_parameter
from agpcs._job.host_activations import HostActivations
from agpcs._job.links import Links, Shares
from agpcs._job.owned import divided_in, owned_of, slices_of, tensor_of
from agpcs._job.segments import Segmented
from agpcs._job.teams.exchange import COPY, Part
from agpcs._job.teams.slices import SlicedBucket, slice_sums
from agpcs._job.teams.team import held_by_replicas, is_unlike
from agpcs._torch_groups import WIRE_TYPES

_KINDS = {"optimizer": ShardedBucket, "gradients": ScatteredBucket, "parameters": GatheredBucket}  # by what ranks divide


class Role:
    """Of this rank in `plan`, whose JSON is `data`; `parts` are the Stages and `cuts` the Cuts between them.

    `all_buffers`: buffers that do not change lie on the ranks of their stages alone, too.

    `team` is the Team of this rank, if it is a member of one.

    It makes process groups, so all ranks make it together, and `close` it together.
    """

    def __init__(self, plan, data, parts, cuts, device, all_buffers, team=None):
        self.plan, self.parts, self._data = plan, parts, data
        self.rank, self.shares = dist.get_rank(), Shares(data)
        self.numbers = self.shares.numbers_of(self.rank)  #: of its stages, several where the schedule is interleaved
        self.stages = [self.shares.stages[number] for number in self.numbers]  #: their names
        self.replica = self.shares.replica_of(self.numbers[0], self.rank)  #: in each of its stages
        self.idle = self.rank in plan.idle_ranks  #: whether its stage, which has no operators, is that of the ranks that compute nothing
        self.team = team
        self.in_host = any(data["stages"][number].get("state_in") == "host" for number in self.numbers)  #: the optimizer's state
        moves = any(data["stages"][number].get("activations_in") == "host" for number in self.numbers)
        self.host = HostActivations(device) if moves else None  #: where activations go, if some do
        self.cuts = [cut for cut in cuts if {cut.source, cut.target} & set(self.numbers)]
        self._readers = {}  # by name of a parameter or buffer: the ranks of each stage that has it
        for number, part in enumerate(parts):
            for name in (*part.parameters, *part.buffers):
                self._readers.setdefault(name, []).append(self.shares.all_ranks(number))
        # By name of a parameter, or of a buffer that not every rank has alike: the ranks of the stages that have it.
        unlike = {name for part in parts for name in (*part.parameters, *(part.buffers if all_buffers else part.changed.values()))}
        self.in_teams = {}  #: by name of what members of some team hold in parts: (ranks, Lying) of each replica of the stage
        for stage in data["stages"]:
            replicas = held_by_replicas(data, stage)
            self.in_teams.update((name, [(ranks, held.get(name, COPY)) for ranks, held in replicas])
                                 for _, of_one in replicas for name in of_one)
        #: of what members of a stage's first replica hold in parts, (their ranks, Lying)
        self.laid = {name: replicas[0] for name, replicas in self.in_teams.items() if replicas[0][1] != COPY}
        self.holders = {name: list(dict.fromkeys(sum(stages, []))) for name, stages in self._readers.items() if name in unlike}
        self.slices = slices_of(plan.groups)  #: of the parameters whose optimizer state ranks divide, by name
        self.divided = divided_in(plan.groups) & set(self.slices)  #: names of those whose values they divide, too
        self.owners = {name: self.slices[name][0].rank if name in self.divided else ranks[0] for name, ranks in self.holders.items()}
        self.owned = {}  #: what this rank's optimizer has, by name: parameters, or slices of them
        self.examples = []  #: by group of the optimizer: the name of a parameter for which its settings hold, or None
        self.links = Links(self.rank, cuts, self.shares, device)
        self.ranks = self.shares.all_ranks(self.numbers[0])  #: that have its stages
        sets = dict.fromkeys(tuple(self.shares.all_ranks(number)) for number in range(len(parts)))
        everyone = {ranks: _group(ranks) for ranks in sets}
        self.everyone = everyone[tuple(self.ranks)]  #: their process group; None: it is alone
        self.replicas, groups = self._alike()
        self._sliced, of_slices = self._unlike()
        self.shared = [group for group in plan.groups if group.shared_with]  #: gradients of several stages
        self.sums = {ranks: dist.new_group(ranks) for ranks in dict.fromkeys(group.ranks for group in self.shared)}
        self._groups = [group for group in (*everyone.values(), *groups, *of_slices, *self.sums.values()) if group is not None]

    def _alike(self):
        """The process group of the ranks that hold what this one does of its stages, or None; and those that were made for this. Joins
        its team's."""
        own, made = self.everyone, []
        for stage, teams in zip(self._data["stages"], self.shares.members):
            for team in (team for team in teams if len(team) > 1):
                made.append(_group(team))
                if self.rank in team:
                    self.team.link.join(made[-1])
            for ranks in zip(*teams) if len(teams[0]) > 1 and not is_unlike(stage) else ():
                made.append(_group(ranks))
                own = made[-1] if self.rank in ranks else own
        return own, made

    def _unlike(self):
        """By name of a bucket whose slices this rank sums: ((SliceSum, its process group, whether this rank's elements count) of each of
        its sums, how its replica holds what that has in parts, its member); and the process groups."""
        found, made = {}, {}
        for stage in (stage for stage in self._data["stages"] if is_unlike(stage)):
            replicas = held_by_replicas(self._data, stage)
            sums = {group.name: slice_sums(group.parameters, replicas) for group in self.plan.groups if group.stage == stage["name"]}
            made.update((ranks, _group(ranks)) for ranks in sorted({one.ranks for of_bucket in sums.values() for one in of_bucket}))
            for members, held in (one for one in replicas if self.rank in one[0]):
                for name, of_bucket in sums.items():
                    own = [(one, made[one.ranks], one.counts(members, self.rank)) for one in of_bucket if self.rank in one.ranks]
                    found[name] = own, held, members.index(self.rank)
        return found, list(made.values())

    @property
    def parameters(self):
        """The names of the parameters that its stages have."""
        return list(dict.fromkeys(name for number in self.numbers for name in self.parts[number].parameters))

    def has(self, group):
        """Whether one of its stages has the bucket `group`."""
        return bool({group.stage, *group.shared_with} & set(self.stages))

    def released(self):
        """The names of the parameters that only stages of others have."""
        return {name for part in self.parts for name in part.parameters} - set(self.parameters)

    def agree(self, model, device):
        """Gives what several stages read and no bucket has, parameters that do not train and buffers, the values of the first rank
        that has it. All ranks call it."""
        bucketed = {name for group in self.shared for name in group.parameters}
        for name, stages in self._readers.items():
            if len(stages) > 1 and name not in bucketed:
                tensor = tensor_of(model, name).detach()
                has = any(self.rank in ranks for ranks in stages)
                dist.broadcast(tensor if has else torch.empty_like(tensor, device=device), stages[0][0])

    def trained(self, model, device):
        """(name, parameter) of what its stages train. An idle rank has those of all stages, without values on `device`: its optimizer
        has the groups of the others' then, so that schedules take it, and none of the parameters."""
        names = self._readers if self.idle else self.parameters
        found = [(name, tensor_of(model, name)) for name in names]
        found = [(name, tensor) for name, tensor in found if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad]
        return [(name, absent_parameter(parameter, device)) for name, parameter in found] if self.idle else found

    def own(self, trained, values):
        """Notes as `owned` what this rank's optimizer has of `trained`. `values` are those of its slices, by name, of parameters
        which ranks divide."""
        self.owned = {} if self.idle else owned_of(trained, self.slices, self.rank, values)

    def part(self, name, rank):
        """The Part that a rank has of a tensor as a member of a team, or None."""
        return next((Part(lying, ranks.index(rank)) for ranks, lying in self.in_teams.get(name, ())
                     if rank in ranks and lying != COPY), None)

    def values(self, name):
        """The Slices of a parameter's values by the ranks that have them, or None if holders have them whole."""
        return self.slices[name] if name in self.divided else None

    def in_buckets(self, names):
        """`names`, first names of parameters and buffers, by bucket; what no bucket has, by itself."""
        left, found = set(names), []
        for group in self.plan.groups:
            own = [name for name in group.parameters if name in left]
            if own:
                found.append(own)
                left.difference_update(own)
        return [*found, *([name] for name in names if name in left)]

    def counted(self):
        """Of what it owns, that which counts here: over all ranks, each element counts once."""
        in_parts = () if self.team is None or self.replica > 0 else self.team.held
        return [tensor for name, tensor in self.owned.items()
                if name in self.slices or self.owners[name] == self.rank or name in in_parts]

    def tells(self, name):
        """Whether this rank is the one that tells of a parameter's state in the optimizer."""
        return (self.slices[name][0].rank if name in self.slices else self.owners[name]) == self.rank

    def buckets(self, model):
        training = self._data["training"]
        wire_type = WIRE_TYPES.get(training.get("wire_type", training["precision"]))

        def made(group):
            parameters = [model.get_parameter(name) for name in group.parameters]
            if group.name in self._sliced:
                return SlicedBucket(group, parameters, wire_type, *self._sliced[group.name])
            ranks = self.sums.get(group.ranks, self.replicas)
            if group.parts and len(group.ranks) > 1:
                kind = _KINDS[group.state]
                return kind(group, parameters, ranks, wire_type, self.owned, self.slices)
            return Bucket(group, parameters, ranks, wire_type)

        return [made(group) for group in self.plan.groups if self.has(group)]

    def program(self):
        """The lines of the plan's program for its stages: (word, what it waits for). An idle rank updates nothing, when others update:
        their optimizers agree before it."""
        program = next(program for program in self._data["programs"] if program["stage"] == self.stages[0])
        lines = [(line["instruction"], line["after"]) for line in program["instructions"]]
        return [*lines[:-1], ("update", []), lines[-1]] if self.idle else lines

    def segmented(self, number):
        """What the segments of a stage do so that the device keeps less, as Segmented."""
        stage = self._data["stages"][number]
        recomputed, in_host = stage["recompute"], stage.get("activations_in") == "host"
        return Segmented(len(stage.get("segments", (1,))) if recomputed or in_host else 0, recomputed, in_host)

    def close(self):
        """Gives up its process groups."""
        self.links.close()
        for group in self._groups:
            dist.destroy_process_group(group)


def _group(ranks):
    """A process group of ranks; None of one rank."""
    return dist.new_group(sorted(ranks)) if len(ranks) > 1 else None
