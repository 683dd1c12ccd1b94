# SPDX-License-Identifier: Apache-2.0
"""What ranks of agpcs.torch.Job send to each other: rows of values, and sums of gradients.

A replica holds a range of rows of each micro-batch. A value goes from each replica of its stage that holds a row to each
replica of the reading stage that needs the row; its gradient goes the same ways back. A value without samples goes whole
from replica j mod producers to replica j. Each ordered pair of ranks has a process group of its own, so that no message
waits for another one that goes elsewhere.
"""

from __future__ import annotations

import functools
import itertools
import typing

import torch
import torch.distributed as dist

from agpcs._job.teams.team import members_of


class Shares:
    """The rows of each rank, in each micro-batch of a plan (the JSON of agpcs-plan)."""

    def __init__(self, data):
        batch, self.micro_batches = data["training"]["batch"], data["training"]["micro_batches"]
        larger = batch % self.micro_batches or self.micro_batches  # the first ones, a sample more than the others
        self.stages = [stage["name"] for stage in data["stages"]]
        self.members = [members_of(stage) for stage in data["stages"]]  #: by stage and replica; one, where that is no team
        self.ranks = [[members[0] for members in of_stage] for of_stage in self.members]  #: of teams, the first members
        self._rows = []  # by stage and micro-batch: (begin, end) of each replica
        for stage in data["stages"]:
            self._rows.append([])
            for k in range(self.micro_batches):
                sizes = [replica["samples"] - (k >= larger and replica["rank"] == stage.get("odd"))
                         for replica in stage["replicas"]]
                ends = list(itertools.accumulate(sizes))
                self._rows[-1].append([(end - size, end) for size, end in zip(sizes, ends)])
        sizes = [of_replicas[-1][1] for of_replicas in self._rows[0]]
        self.begins = [0, *itertools.accumulate(sizes)]  #: the first row of each micro-batch in the batch

    def numbers_of(self, rank):
        """The numbers of a rank's stages, ascending."""
        return [number for number in range(len(self.stages)) if rank in self.all_ranks(number)]

    def replica_of(self, stage, rank):
        """The number of the replica that a rank is, or is a member of."""
        return next(number for number, team in enumerate(self.members[stage]) if rank in team)

    def all_ranks(self, stage):
        """The ranks of a stage, the first replica's first member first."""
        return [rank for team in self.members[stage] for rank in team]

    def rows(self, stage, k):
        """(begin, end) of each replica of a stage within micro-batch `k`."""
        return self._rows[stage][k]


class Message(typing.NamedTuple):
    value: int  #: its number in the cut
    producer: int  #: a rank
    consumer: int
    begin: int  #: rows of the micro-batch; -1: whole
    end: int


class Cut:
    """The values that go from one stage to a later one. It is `local` if both have the same ranks, which keep them: no message
    carries it."""

    def __init__(self, name, source, target, values, shares):
        self.name, self.source, self.target, self.values, self._shares = name, source, target, values, shares
        self.local = shares.members[source] == shares.members[target]

    def messages(self, k, back=False):
        """The messages of micro-batch `k`, or of gradients that go `back`, in the order in which both ends take them. Each member
        of a team that takes something gets it from one member of the team that has it."""
        for number, producers, consumers, begin, end in () if self.local else self._ranges(k):
            for j in range(len(producers) if back else len(consumers)):
                producer, consumer = producers[j % len(producers)], consumers[j % len(consumers)]
                yield Message(number, producer, consumer, begin, end)

    def _ranges(self, k):
        """(value, members that make it, members that read it, begin and end of the rows) of micro-batch `k`."""
        producers, consumers = self._shares.members[self.source], self._shares.members[self.target]
        for number, value in enumerate(self.values):
            if not value.batched:
                for j, consumer in enumerate(consumers):
                    yield number, producers[j % len(producers)], consumer, -1, -1
                continue
            for producer, (begin, end) in zip(producers, self._shares.rows(self.source, k)):
                for consumer, (first, last) in zip(consumers, self._shares.rows(self.target, k)):
                    if max(begin, first) < min(end, last):
                        yield number, producer, consumer, max(begin, first), min(end, last)

    def pairs(self):
        """The ordered pairs of ranks between which messages go, gradients included."""
        for k in range(self._shares.micro_batches):
            yield from ((message.producer, message.consumer) for message in self.messages(k))
            yield from ((message.consumer, message.producer) for message in self.messages(k, back=True)
                        if self.values[message.value].gradient)


class Works:
    """Messages or a reduction under way: (work, the tensor that must live until it has ended)."""

    def __init__(self, pairs):
        self._pairs = pairs

    def wait(self):
        for work, _ in self._pairs:
            work.wait()
        self._pairs.clear()


class Links:
    """The messages of one rank. What is known of them before a step is prepared: the rows, the peers, the groups."""

    def __init__(self, rank, cuts, shares, device):
        self._rank, self._shares, self.device = rank, shares, device
        self._groups = {pair: dist.new_group(pair) for pair in sorted({pair for cut in cuts for pair in cut.pairs()})}

    def close(self):
        for group in self._groups.values():
            dist.destroy_process_group(group)

    def _own(self, stage, k):
        return self._shares.rows(stage, k)[self._shares.replica_of(stage, self._rank)]

    def _empty(self, value, rows):
        """A function that makes a tensor of a value's rows."""
        shape = (rows[1] - rows[0], *value.shape) if value.batched else value.shape
        return functools.partial(torch.empty, shape, dtype=value.dtype, device=self.device)

    def _parts(self, cut, k, back):
        """By number of a value, the _Parts of this rank's messages of a cut, or of the gradients that go `back`."""
        found = {}
        for message in cut.messages(k, back):
            if self._rank not in (message.producer, message.consumer) or back and not cut.values[message.value].gradient:
                continue
            source = message.producer == self._rank
            peer = message.consumer if source else message.producer
            own = self._own(cut.source if source else cut.target, k)
            whole = message.begin < 0 or (message.begin, message.end) == own
            rows = None if whole else slice(message.begin - own[0], message.end - own[0])
            group = self._groups[(self._rank, peer) if source != back else (peer, self._rank)]
            found.setdefault(message.value, []).append(_Part(rows, peer, group))
        return found

    def sender(self, cut, k):
        """A function that gets the cut's values, in order, sends this rank's rows of them, and returns the works."""
        parts = self._parts(cut, k, back=False)

        def send(tensors):
            pairs = []
            for number, of_value in parts.items():
                tensor = tensors[number].detach().contiguous()
                pairs += [part.send(tensor) for part in of_value]
            return Works(pairs)

        return send

    def receiver(self, cut, k):
        """A function that returns (works, tensors): the values, in the cut's order, which are there when the works have
        ended."""
        own, parts = self._own(cut.target, k), self._parts(cut, k, back=False)
        makers = [self._empty(value, own) for value in cut.values]

        def receive():
            tensors = [empty() for empty in makers]
            return Works([part.receive(tensors[number]) for number, of_value in parts.items() for part in of_value]), tensors

        return receive

    def gradient_sender(self, cut, k):
        """A function that gets the gradients of what `receiver` gave, sends them back, and returns the works. None is no
        gradient: zeros are sent."""
        own, parts = self._own(cut.target, k), self._parts(cut, k, back=True)
        makers = [self._empty(value, own) for value in cut.values]

        def send(gradients):
            pairs = []
            for number, of_value in parts.items():
                gradient = gradients[number]
                gradient = makers[number]().zero_() if gradient is None else gradient.contiguous()
                pairs += [part.send(gradient) for part in of_value]
            return Works(pairs)

        return send

    def gradient_receiver(self, cut, k):
        """A function that returns (works, sums): by value of the cut a list of tensors, whose sum is its gradient from
        there."""
        own, parts = self._own(cut.source, k), self._parts(cut, k, back=True)
        makers = [self._empty(value, own) for value in cut.values]

        def receive():
            pairs, sums = [], [[] for _ in makers]
            for number, of_value in parts.items():
                for part in of_value:
                    if not sums[number] or not cut.values[number].batched:
                        sums[number].append(makers[number]())
                    pairs.append(part.receive(sums[number][-1]))
            return Works(pairs), sums

        return receive


class _Part(typing.NamedTuple):
    """The part of a replica's tensor that a message carries."""

    rows: slice | None  #: None: all
    peer: int
    group: dist.ProcessGroup

    def send(self, tensor):
        tensor = tensor if self.rows is None else tensor[self.rows]
        return dist.isend(tensor, self.peer, group=self.group), tensor

    def receive(self, tensor):
        tensor = tensor if self.rows is None else tensor[self.rows]
        return dist.irecv(tensor, self.peer, group=self.group), tensor
