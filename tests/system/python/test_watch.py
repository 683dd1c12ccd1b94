#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Drift that the hook tells of: a rank that becomes slower in mid-training, and one that does not."""

import contextlib
import io
import unittest

from cases import BATCH, Data, GroupResNet18, build, loss_of, on_ranks, plan_of, wrapped

import torch
import torch.distributed as dist

from agpcs import _torch_watch

CALM = 200  # steps before a rank becomes slower: the detector learns in up to 33 exchanges
SLOW = 1000  # steps after that, at most: on a busy machine the change stands out late


def trained(rank, plan, slower):
    """What drift was told to a function, and what was printed, in steps of which rank 1 repeats its later ones, until
    that is told."""
    told = []
    data = Data(GroupResNet18, BATCH)
    batch = [column[:plan.shares[rank]] for column in data.columns]

    def tell(changes):
        told.extend(changes)
        _torch_watch.say(changes)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        ddp, state = wrapped(build(GroupResNet18), plan, {"on_drift": tell})
        for step in range(CALM + SLOW):
            if any(slows_down(change) for change in told):  # on both ranks in the same step
                break
            for _ in range(8 if rank == 1 and slower and step >= CALM else 0):
                with torch.no_grad():
                    loss_of(ddp.module, batch)
            loss_of(ddp, batch).backward()
    return [tuple(change) for change in told], said.getvalue(), [tuple(change) for change in state.watch.changes]


def slows_down(change):
    """Whether a change says that rank 1 computes slower."""
    return tuple(change)[1:3] == ("compute", 1) and tuple(change)[3] > 1.2


class Watch(unittest.TestCase):
    def test_a_rank_that_becomes_slower_is_named_on_all_ranks(self):
        (told, said, _), (told_1, said_1, _) = on_ranks(trained, plan_of(GroupResNet18), True)
        self.assertEqual(told, told_1)
        slower = [change for change in told if slows_down(change)]
        self.assertTrue(slower, told)
        text, _, _, _, since = slower[0]
        self.assertRegex(text, r"^local/1 computes \d+(\.\d+)? times slower than expected since step \d+: it needs more processor time$")
        self.assertTrue(CALM - 30 <= since <= CALM + 60, since)
        self.assertRegex(said, r"agpcs: drift: local/1 computes \d+(\.\d+)? times slower than expected since step \d+: it needs more processor time\n")
        self.assertEqual(said_1, "")

    def test_nobody_watches_where_nobody_asked(self):
        (watched, _), _ = on_ranks(watch_of, plan_of(GroupResNet18), None)
        self.assertFalse(watched)

    def test_the_slow_link_is_named_beside_the_all_reduce(self):
        told, told_1 = on_ranks(with_a_slow_link, plan_of(GroupResNet18))
        self.assertEqual(told, told_1)
        self.assertEqual([change[1:3] for change in told], [("all-reduce", 0), ("link", 0)])
        text, _, _, factor, since = told[1]
        self.assertRegex(text, r"^link local/0 -> local/1: messages take [0-9.]+ times longer than when the job began$")
        self.assertGreater(factor, 3)
        self.assertEqual(since, told[0][4])

    def test_a_link_that_is_as_fast_as_before_is_not_named(self):
        changes, _ = on_ranks(changes_of_links)
        self.assertEqual(changes, [[], [("link", 0, 0.5, 7)], [("link", 1, 2.0, 7)]])


def changes_of_links(rank):
    """What the probe tells of links whose messages took 10 ms, and now take other times."""
    probe = _torch_watch.LinkProbe(["a/0", "a/1"], torch.device("cpu"), None)
    told = []
    for now in ([0.014, 0.0101], [0.005, 0.01], [0.01, 0.02]):
        probe.seconds = lambda now=now: now
        told.append([tuple(change[1:]) for change in probe.changes([0.01, 0.01], 7)])
    return told


def with_a_slow_link(rank, plan, times=30):
    """What is told when the detector says that all-reduces are slower, while a message takes as long as `times` did."""
    told = []
    ddp, state = wrapped(build(GroupResNet18), plan, {"on_drift": told.extend})
    batch = [column[:plan.shares[rank]] for column in Data(GroupResNet18, BATCH).columns]
    while state.watch is None or state.watch._links is None:
        loss_of(ddp, batch).backward()
    watch, send = state.watch, dist.batch_isend_irecv

    def send_often(operations):
        for _ in range(times - 1):
            for work in send(operations):
                work.wait()
        return send(operations)

    class Drift:
        statistics = watch._drift.statistics

        def add(self, step, by_rank):
            return [("all-reduces of s0 take 4 times longer", "all-reduce", 0, 4.0, step - 5)]
    watch._drift = Drift()
    dist.batch_isend_irecv = send_often
    while not told:
        loss_of(ddp, batch).backward()
    return [tuple(change) for change in told]


def watch_of(rank, plan, on_drift):
    ddp, state = wrapped(build(GroupResNet18), plan, {"on_drift": on_drift})
    loss_of(ddp, [column[:plan.shares[rank]] for column in Data(GroupResNet18, BATCH).columns]).backward()
    return state.watch is not None, None


if __name__ == "__main__":
    unittest.main()
