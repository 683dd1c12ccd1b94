#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Drift that the hook tells of: a rank that becomes slower in mid-training, and one that does not."""

import contextlib
import io
import unittest

from cases import BATCH, Data, GroupResNet18, build, loss_of, on_ranks, plan_of, wrapped

import torch

from agpcs import _torch_watch

CALM, SLOW = 200, 100  # steps before a rank becomes slower, and after: the detector learns in up to 33 exchanges


def trained(rank, plan, slower):
    """What drift was told to a function, and what was printed, in steps of which rank 1 repeats its later ones."""
    told = []
    data = Data(GroupResNet18, BATCH)
    batch = [column[:plan.shares[rank]] for column in data.columns]

    def tell(changes):
        told.extend(changes)
        _torch_watch.say(changes)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        ddp, state = wrapped(build(GroupResNet18), plan, {"on_drift": tell})
        for step in range(CALM + SLOW):
            for _ in range(8 if rank == 1 and slower and step >= CALM else 0):
                with torch.no_grad():
                    loss_of(ddp.module, batch)
            loss_of(ddp, batch).backward()
    return [tuple(change) for change in told], said.getvalue(), [tuple(change) for change in state.watch.changes]


class Watch(unittest.TestCase):
    def test_a_rank_that_becomes_slower_is_named_on_all_ranks(self):
        (told, said, _), (told_1, said_1, _) = on_ranks(trained, plan_of(GroupResNet18), True)
        self.assertEqual(told, told_1)
        slower = [change for change in told if change[1:3] == ("compute", 1) and change[3] > 1.2]
        self.assertTrue(slower, told)
        text, _, _, _, since = slower[0]
        self.assertRegex(text, r"^local/1 computes \d+(\.\d+)? times slower than expected since step \d+$")
        self.assertTrue(CALM - 30 <= since <= CALM + 60, since)
        self.assertRegex(said, r"agpcs: drift: local/1 computes \d+(\.\d+)? times slower than expected since step \d+\n")
        self.assertEqual(said_1, "")

    def test_nobody_watches_where_nobody_asked(self):
        (watched, _), _ = on_ranks(watch_of, plan_of(GroupResNet18), None)
        self.assertFalse(watched)


def watch_of(rank, plan, on_drift):
    ddp, state = wrapped(build(GroupResNet18), plan, {"on_drift": on_drift})
    loss_of(ddp, [column[:plan.shares[rank]] for column in Data(GroupResNet18, BATCH).columns]).backward()
    return state.watch is not None, None


if __name__ == "__main__":
    unittest.main()
