# SPDX-License-Identifier: Apache-2.0
"""Measures, for autoplan, what the process group's messages and all-reduces take. All ranks call these together."""

import statistics
import threading
import time
import typing

import torch
import torch.distributed as dist

from agpcs._errors import Error
from agpcs._torch_clock import Clock

KB, MB = 1 << 10, 1 << 20
POSTINGS = 12  # messages of which the median counts
LONGER = 1.25  # times the smallest size's: what the largest size of a series takes at least


class Message(typing.NamedTuple):
    """Messages, or all-reduces, of one size."""

    bytes: int
    seconds: float
    spread: float


class Overlap(typing.NamedTuple):
    """What a rank loses when it computes and communicates at the same time (docs/reference/profile_yaml.md)."""

    compute_seconds_per_byte: float = 0.0
    communication_factor: float = 1.0


class Links:
    """Measures the links of a process group for tensors on `device`."""

    def __init__(self, group, device):
        self.group, self.device = group, device
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.clock = Clock(device)
        self._tiny = torch.zeros(1, device=device)

    def together(self):
        """Waits until all ranks are here."""
        dist.all_reduce(self._tiny.zero_(), group=self.group)
        self.clock.wait()

    def agree(self, value):
        """Returns the largest `value` of all ranks."""
        tensor = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
        return tensor.item()

    def gather(self, value):
        """Returns every rank's `value`, by rank."""
        values = [None] * self.ranks
        dist.all_gather_object(values, value, group=self.group)
        return values

    def share(self, value, owner):
        """Returns `value` of the rank `owner`, on every rank."""
        values = [value]
        dist.broadcast_object_list(values, self.global_rank(owner), group=self.group)
        return values[0]

    def all_reduces(self, most_bytes, seconds, copies=False):
        """Returns the Messages of all-reduces over all ranks, of sizes up to `most_bytes`; with `copies`, of buffers that
        are copied before, and back afterwards."""
        def reduce(buffer):
            dist.all_reduce(buffer, group=self.group)

        def reduce_copies(buffer):
            flat = buffer.clone()
            reduce(flat)
            buffer.copy_(flat)
        return self._series(sizes_to(most_bytes), seconds, reduce_copies if copies else reduce, both=True)

    def messages(self, sender, receiver, most_bytes, seconds):
        """Returns the Messages from one rank to another. All other ranks wait."""
        answer = torch.zeros(2, device=self.device)
        mine = self.rank in (sender, receiver)

        def exchange(buffer):
            if self.rank == sender:
                dist.send(buffer, self.global_rank(receiver), group=self.group)
                dist.recv(answer, self.global_rank(receiver), group=self.group)
            elif self.rank == receiver:
                dist.recv(buffer, self.global_rank(sender), group=self.group)
                dist.send(answer, self.global_rank(sender), group=self.group)
        points = self._series(sizes_to(most_bytes), seconds, exchange, both=mine)
        there_and_back = self._series([8], seconds / 8, exchange, both=mine)[0].seconds
        # The answer takes half of a round trip of two small messages.
        return [Message(p.bytes, max(p.seconds - there_and_back / 2, p.seconds / 2), p.spread) for p in points]

    def overlap(self, step, most_bytes, seconds):
        """Returns the Overlap of this rank with all-reduces. `step(between)` makes one step, and calls `between` before its
        backward pass."""
        if self.ranks == 1:
            return Overlap()
        buffers = [torch.zeros(max(most_bytes // 4 // 8, 1), device=self.device) for _ in range(8)]
        moved = 4 * (self.ranks - 1) / self.ranks * sum(b.numel() * 4 for b in buffers)  # a ring sends and receives
        return self._overlap(step, lambda: _Reductions(self, buffers), moved, seconds)

    def overlap_of_messages(self, step, seconds):
        """Does so with messages on CPUs: each rank sends to the next while it receives from the one before it, for about half
        of the shortest backward pass."""
        if self.ranks == 1:
            return Overlap()
        shortest = -self.agree(-step(None).backward)
        count = 4
        for _ in range(2):
            buffers = [torch.zeros(128 * KB // 4) for _ in range(2 * count)]
            lone = self.agree(statistics.median(self._lone(lambda: _Messages(self, buffers)) for _ in range(3)))
            count = min(max(int(count * shortest / 2 / lone), 1), 64)
        buffers = buffers[:2 * count] + [torch.zeros(128 * KB // 4) for _ in range(2 * count - len(buffers))]
        return self._overlap(step, lambda: _Messages(self, buffers), sum(b.numel() * 4 for b in buffers), seconds)

    def posting(self, step):
        """Returns the processor seconds that a message on CPUs costs either end on the thread that computes. Each rank sends
        to the next one and receives from the one before it, after each of several steps: a message comes after computing,
        when caches have nothing of it."""
        if self.ranks == 1:
            return 0.0
        after, before = self.neighbours()
        sent, taken = torch.zeros(128 * KB // 4), []
        for _ in range(POSTINGS):
            step(None)
            begin = time.thread_time()
            received = torch.empty_like(sent)
            for work in (dist.irecv(received, before, group=self.group), dist.isend(sent, after, group=self.group)):
                work.wait()
            taken.append((time.thread_time() - begin) / 2)
        return statistics.median(taken)

    def neighbours(self):
        """The ranks in the job of the next rank and of the one before."""
        return tuple(self.global_rank((self.rank + step) % self.ranks) for step in (1, self.ranks - 1))

    def _overlap(self, step, communicate, moved, seconds):
        """Of what `communicate()` begins, which sends and receives `moved` bytes in all."""
        idle = statistics.median(self._lone(communicate) for _ in range(3))
        alone, busy = [], []
        ends = time.monotonic() + seconds
        while not self.agree(float(len(busy) >= 4 and (time.monotonic() > ends or len(busy) >= 20))):
            alone.append(step(None).backward)
            self.together()
            begun = []
            taken = step(lambda: begun.append(communicate()))
            busy.append((taken.backward, begun[0].finish()))
        lost = max(statistics.median(backward for backward, _ in busy) - statistics.median(alone), 0.0)
        done = statistics.median(min(1.0, backward / ended) for backward, ended in busy)  # beside computing
        return Overlap(lost / max(moved * done, 1), statistics.median(_factor(idle, *each) for each in busy))

    def _lone(self, communicate):
        self.together()
        return communicate().finish()

    def _series(self, sizes, seconds, operation, both):
        """Returns the Messages of `operation` on buffers of the sizes, as rank 0 or the ranks with a part in it see it.
        A series ends before a size that would take more than its part of the time. It goes on to larger sizes while the
        largest takes hardly longer than the smallest, for no bandwidth would follow from it."""
        points = []
        limit = seconds / len(sizes)
        size = 0
        while len(points) < len(sizes) or (1 < len(points) and size < 64 * MB and
                                           points[-1].seconds < LONGER * points[0].seconds):
            size = sizes[len(points)] if len(points) < len(sizes) else min(8 * size, 64 * MB)
            buffer = torch.zeros(max(size // 4, 1), device=self.device)
            operation(buffer)
            self.together()
            first = self.agree(self._timed(operation, buffer, 1) if both else 0.0)
            repetitions = int(min(max(limit / 3 / max(first, 1e-6), 1), 100))
            blocks = []
            for _ in range(3):
                self.together()
                blocks.append(self.agree(self._timed(operation, buffer, repetitions) if both else 0.0))
            blocks.sort()
            points.append(Message(size, blocks[1], (blocks[2] - blocks[0]) / 2 / blocks[1]))
            if len(points) >= 2 and 4 * 8 * blocks[1] > max(limit, 0.5):
                break
        return points

    def _timed(self, operation, buffer, repetitions):
        begin = time.perf_counter()
        for _ in range(repetitions):
            operation(buffer)
        self.clock.wait()
        return (time.perf_counter() - begin) / repetitions

    def global_rank(self, rank):
        """Returns the rank in the job of a rank of this group."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


class _Reductions:
    """All-reduces of buffers, which have begun."""

    def __init__(self, links, buffers):
        self._clock = links.clock
        self._begin = self._clock.mark()
        self._works = [dist.all_reduce(buffer, group=links.group, async_op=True) for buffer in buffers]
        self._end = self._works[-1].get_future().then(lambda _: self._clock.mark())

    def finish(self):
        """Waits for all of them, and returns the seconds from the begin of the first to the end of the last."""
        for work in self._works:
            work.wait()
        end = self._end.wait()
        self._clock.wait()
        return self._clock.between(self._begin, end)


class _Messages:
    """Messages on CPUs that have begun: the first half of the buffers to the next rank, the second from the one before."""

    def __init__(self, links, buffers):
        half = len(buffers) // 2
        after, before = links.neighbours()
        self._begin = time.perf_counter()
        self._works = [dist.irecv(buffer, before, group=links.group) for buffer in buffers[half:]]
        self._works += [dist.isend(buffer, after, group=links.group) for buffer in buffers[:half]]
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self):
        for work in self._works:
            work.wait()
        self._end = time.perf_counter()

    def finish(self):
        """Waits for all of them, and returns the seconds from the begin of the first to the end of the last."""
        self._thread.join()
        return self._end - self._begin


def sizes_to(most_bytes):
    """Returns the sizes to measure: 4 KiB, then eight times the size before, up to the first of at least `most_bytes`,
    64 MiB at most."""
    sizes = [4 * KB, 32 * KB]
    while sizes[-1] < min(most_bytes, 64 * MB):
        sizes.append(sizes[-1] * 8)
    return [min(size, 64 * MB) for size in sizes]


def _factor(lone, backward, ended):
    """Returns the rate of all-reduces beside computing / their rate alone. While the backward pass went on, that part
    of them was done that did not need to be done afterwards."""
    if ended <= backward:
        return min(1.0, lone / ended)
    return min(1.0, max((lone - (ended - backward)) / backward, 0.05))


def on_every_rank(links, work):
    """Returns what `work()` returns. If it raises on any rank, every rank raises an error that names that rank."""
    value = error = None
    try:
        value = work()
    except Exception as raised:  # every rank has to hear of it
        error = raised
    said = links.gather(None if error is None else (type(error).__name__, str(error)))
    failed = [(rank, what) for rank, what in enumerate(said) if what is not None]
    if not failed:
        return value
    rank, (kind, message) = failed[0]
    if error is not None and len(failed) == links.ranks and len({what for _, what in failed}) == 1:
        raise error
    raise Error(f"rank {rank} cannot be planned: {kind}: {message}") from error


def by_rank_0(links, work):
    """Returns what `work()` returns on rank 0, on every rank."""
    return links.share(on_every_rank(links, work if links.rank == 0 else lambda: None), 0)
