# SPDX-License-Identifier: Apache-2.0
"""What ranks of agpcs.torch.Job send to each other: rows of values, and sums of gradients.

A replica holds a range of rows of each micro-batch. A value goes from each replica of its stage that holds a row to each
replica of the reading stage that needs the row; its gradient goes the same ways back. A value without samples goes whole
from replica j mod producers to replica j. Each ordered pair of ranks has a process group of its own, so that no message
waits for another one that goes elsewhere.
"""

from __future__ import annotations

import itertools
import typing

import torch
import torch.distributed as dist


class Shares:
    """The rows of each rank, in each micro-batch of a plan (the JSON of agpcs-plan)."""

    def __init__(self, data):
        batch, self.micro_batches = data["training"]["batch"], data["training"]["micro_batches"]
        larger = batch % self.micro_batches or self.micro_batches  # the first ones, a sample more than the others
        self.stages = [stage["name"] for stage in data["stages"]]
        self.ranks = [[replica["rank"] for replica in stage["replicas"]] for stage in data["stages"]]
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
    """The values that go from one stage to a later one."""

    def __init__(self, name, source, target, values, shares):
        self.name, self.source, self.target, self.values, self._shares = name, source, target, values, shares

    def messages(self, k):
        """The messages of micro-batch `k`, in the order in which both ends take them."""
        producers, consumers = self._shares.ranks[self.source], self._shares.ranks[self.target]
        for number, value in enumerate(self.values):
            if not value.batched:
                for j, consumer in enumerate(consumers):
                    yield Message(number, producers[j % len(producers)], consumer, -1, -1)
                continue
            for producer, (begin, end) in zip(producers, self._shares.rows(self.source, k)):
                for consumer, (first, last) in zip(consumers, self._shares.rows(self.target, k)):
                    if max(begin, first) < min(end, last):
                        yield Message(number, producer, consumer, max(begin, first), min(end, last))

    def pairs(self):
        """The ordered pairs of ranks between which messages go, gradients included."""
        for message in itertools.chain.from_iterable(self.messages(k) for k in range(self._shares.micro_batches)):
            yield message.producer, message.consumer
            if self.values[message.value].gradient:
                yield message.consumer, message.producer


class Works:
    """Messages or a reduction under way, and the tensors that must live until they have ended."""

    def __init__(self):
        self._works, self._tensors = [], []

    def add(self, work, tensor):
        self._works.append(work)
        self._tensors.append(tensor)

    def wait(self):
        for work in self._works:
            work.wait()
        self._works.clear()
        self._tensors.clear()


class Links:
    """The messages of one rank."""

    def __init__(self, rank, cuts, shares, device):
        self._rank, self._shares, self.device = rank, shares, device
        self._groups = {pair: dist.new_group(pair) for pair in sorted({pair for cut in cuts for pair in cut.pairs()})}

    def close(self):
        for group in self._groups.values():
            dist.destroy_process_group(group)

    def _own(self, stage, k):
        return self._shares.rows(stage, k)[self._shares.ranks[stage].index(self._rank)]

    def _send(self, works, tensor, peer):
        works.add(dist.isend(tensor, peer, group=self._groups[self._rank, peer]), tensor)

    def _receive(self, works, tensor, peer):
        works.add(dist.irecv(tensor, peer, group=self._groups[peer, self._rank]), tensor)

    def _empty(self, value, rows):
        shape = (rows[1] - rows[0], *value.shape) if value.batched else value.shape
        return torch.empty(shape, dtype=value.dtype, device=self.device)

    def send(self, cut, k, tensors):
        """Sends this rank's rows of the cut's values. `tensors` are the values, in the cut's order."""
        works, own = Works(), self._own(cut.source, k)
        tensors = [tensor.detach().contiguous() for tensor in tensors]
        for message in cut.messages(k):
            if message.producer == self._rank:
                self._send(works, _rows(tensors[message.value], message, own), message.consumer)
        return works

    def receive(self, cut, k):
        """Returns (works, tensors): the values, in the cut's order, which are there when the works have ended."""
        works, own = Works(), self._own(cut.target, k)
        tensors = [self._empty(value, own) for value in cut.values]
        for message in cut.messages(k):
            if message.consumer == self._rank:
                self._receive(works, _rows(tensors[message.value], message, own), message.producer)
        return works, tensors

    def send_gradients(self, cut, k, gradients):
        """Sends back the gradients of what `receive` gave. None is no gradient: zeros are sent."""
        works, own = Works(), self._own(cut.target, k)
        for message in cut.messages(k):
            value = cut.values[message.value]
            if message.consumer == self._rank and value.gradient:
                gradient = gradients[message.value]
                gradient = self._empty(value, own).zero_() if gradient is None else gradient.contiguous()
                self._send(works, _rows(gradient, message, own), message.producer)
        return works

    def receive_gradients(self, cut, k):
        """Returns (works, parts): for each value of the cut a list of tensors, whose sum is its gradient from there."""
        works, own, parts = Works(), self._own(cut.source, k), [[] for _ in cut.values]
        for message in cut.messages(k):
            value, of_value = cut.values[message.value], parts[message.value]
            if message.producer != self._rank or not value.gradient:
                continue
            if not of_value or not value.batched:
                of_value.append(self._empty(value, own))
            self._receive(works, _rows(of_value[-1], message, own), message.consumer)
        return works, parts


def _rows(tensor, message, own):
    """The part of a replica's tensor that a message carries."""
    return tensor if message.begin < 0 else tensor[message.begin - own[0]:message.end - own[0]]
