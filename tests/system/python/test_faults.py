#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, end or stop: what the other ranks raise and print, over Gloo."""

import datetime
import functools
import multiprocessing
import os
import re
import signal
import socket
import tempfile
import time
import unittest

from cases import BATCH, Bert, Data, ROOT, build, exported, loss_of, wrapped

import torch
import torch.distributed as dist
from torch import nn

import agpcs
import agpcs.torch
from agpcs import _torch_keeper as keeper

LIMIT = 60  # seconds that ranks may take
ENDED = 10  # seconds after which all ranks have ended
LAST_WORDS = ("\n  hint: what it printed last, or the kernel's log on its host (out of memory?), says why; torchrun "
              "--max-restarts=N starts the job again, from your last checkpoint")


@functools.lru_cache(maxsize=None)
def plan_for(ranks):
    layout = ",".join(f"volta/{rank}" for rank in range(ranks))
    return agpcs.plan(exported(Bert), ROOT / "samples/clusters/v100x4-rtx3090x4.yaml", layout=layout, batch=BATCH,
                      micro_batches=1)


class Ranks:
    """Processes of one Gloo group. `work` calls a function, which does `act` on the rank `victim`."""

    def __init__(self, work, act, *, ranks=3, victim=1, seconds=600, settings=()):
        self.victim = victim
        context = multiprocessing.get_context("fork")
        self.folder = tempfile.TemporaryDirectory()
        self.queue, self.died, self.child = context.Queue(), context.Value("d", 0.0), context.Value("i", 0)
        reads, writes = os.pipe()
        plan = plan_for(ranks)  # which is kept; it is planned before the first fork
        self.processes = [context.Process(target=self._rank, args=(rank, ranks, work, act, plan, writes, seconds, settings))
                          for rank in range(ranks)]
        for process in self.processes:
            process.start()
        os.close(writes)
        self.output = os.fdopen(reads)

    def _rank(self, rank, ranks, work, act, plan, writes, seconds, settings):
        os.dup2(writes, 2)
        os.close(writes)
        torch.set_num_threads(1)
        for name, value in settings:
            setattr(keeper, name, value)
        dist.init_process_group("gloo", store=dist.FileStore(f"{self.folder.name}/store", ranks), rank=rank,
                                world_size=ranks, timeout=datetime.timedelta(seconds=seconds))

        def happen():
            if rank == self.victim:
                self.died.value = time.monotonic()
                act(self)
        if rank == self.victim:
            work(rank, plan, happen)
            return
        try:
            work(rank, plan, happen)
            self.queue.put((rank, "", ""))
        except (agpcs.Error, RuntimeError) as error:
            self.queue.put((rank, type(error).__name__, str(error)))
            raise

    def name(self, rank):
        return f"rank {rank} (host {socket.gethostname()}, process {self.processes[rank].pid})"

    def outcome(self):
        """Waits for the end of all ranks but the victim. Returns the (type, text) of their errors, by rank, and the seconds
        from the victim's death to the end of the last of them."""
        for rank, process in enumerate(self.processes):
            if rank != self.victim:
                process.join(LIMIT)
        seconds, said = time.monotonic() - self.died.value, {}
        while not self.queue.empty():
            rank, kind, text = self.queue.get()
            said[rank] = kind, text
        return said, seconds

    def line(self, pattern):
        """Waits for a line of the ranks' error output."""
        return next(line for line in self.output if re.search(pattern, line))

    def end(self):
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
        self.output.close()
        self.end_child()
        self.folder.cleanup()

    def end_child(self):
        """Ends the process that a rank forked, which holds the ranks' output, too."""
        if self.child.value:
            os.kill(self.child.value, signal.SIGKILL)
            self.child.value = 0


def kill(_):
    os.kill(os.getpid(), signal.SIGKILL)


def kill_with_a_child(ranks):
    """A process that was forked goes on and holds the connections of Gloo, as a DataLoader's worker does for a while."""
    child = os.fork()
    if child == 0:
        signal.pause()
    ranks.child.value = child
    kill(ranks)


def stop(_):
    os.kill(os.getpid(), signal.SIGSTOP)


def fail(_):
    raise ValueError("no labels\nin this file")


def leave(_):
    raise SystemExit


def train(rank, plan, happen, steps=6):
    """In the fourth step something happens."""
    ddp, _ = wrapped(build(Bert), plan)
    data = Data(Bert, BATCH)
    for step in range(steps):
        if step == 3:
            happen()
        loss_of(ddp, [column[:plan.shares[rank]] for column in data.columns]).backward()


def measure(rank, plan, happen):
    """In the fifth pass of autoplan's measuring something happens."""
    passes = 0

    def loss(model, batch):
        nonlocal passes
        passes += 1
        if passes == 5:
            happen()
        return model(batch[0]).pow(2).mean()
    agpcs.torch.autoplan(nn.Linear(32, 32), loss, (torch.ones(4, 32),), 16, seconds=3, cache=None, quiet=True)


def sum_by_hand(rank, plan, happen):
    """After some steps, in an all-reduce of the training loop, something happens."""
    train(rank, plan, lambda: None)
    happen()
    dist.all_reduce(torch.ones(1))


class Faults(unittest.TestCase):
    def ranks(self, *arguments, **options):
        ranks = Ranks(*arguments, **options)
        self.addCleanup(ranks.end)
        return ranks

    def assert_blamed(self, ranks, text, within=ENDED):
        """All other ranks end in time with RankLost and this text."""
        said, seconds = ranks.outcome()
        self.assertEqual(sorted(said), [rank for rank in range(len(ranks.processes)) if rank != ranks.victim])
        for kind, message in said.values():
            if kind == "RuntimeError":  # PyTorch 1.13 makes one of what a hook raises
                self.assertTrue(torch.__version__.startswith("1."), message)
                self.assertIn(f"RankLost: {text}", message)
            else:
                self.assertEqual((kind, message), ("RankLost", text))
        self.assertLess(seconds, within)

    def test_a_killed_rank_is_named_by_all_others(self):
        for victim in (0, 1):
            for work in (train, measure):
                with self.subTest(victim=victim, work=work.__name__):
                    ranks = self.ranks(work, kill, victim=victim)
                    self.assert_blamed(ranks, f"{ranks.name(victim)} is gone: its process ended{LAST_WORDS}")

    def test_a_rank_that_ends_with_an_error_is_named_with_the_error(self):
        for victim in (0, 1):
            with self.subTest(victim=victim):
                ranks = self.ranks(train, fail, victim=victim)
                self.assert_blamed(ranks, f"{ranks.name(victim)} ended with ValueError: no labels\n"
                                          "  hint: its own output has the whole error")

    def test_a_rank_that_ends_before_the_others_is_named(self):
        for victim in (0, 1):
            with self.subTest(victim=victim):
                ranks = self.ranks(train, leave, victim=victim)
                self.assert_blamed(ranks, f"{ranks.name(victim)} has ended, and this rank still waits for it\n"
                                          "  hint: all ranks make as many steps; PlanSampler gives them as many batches")

    def test_a_rank_whose_loop_gets_the_backends_error_prints_who_is_gone(self):
        ranks = self.ranks(sum_by_hand, kill, ranks=2)
        said, seconds = ranks.outcome()
        self.assertRegex(said[0][1], "(?i)gloo")
        self.assertLess(seconds, ENDED)
        self.assertIn(f"\nagpcs: {ranks.name(1)} is gone: its process ended{LAST_WORDS}\n", "\n" + ranks.output.read())

    def test_ranks_end_also_if_their_backend_does_not_notice(self):
        for victim in (0, 1):
            with self.subTest(victim=victim):
                ranks = self.ranks(train, kill_with_a_child, victim=victim)
                said, seconds = ranks.outcome()
                self.assertEqual(said, {})
                self.assertEqual([p.exitcode for p in ranks.processes], [-9 if i == victim else 1 for i in range(3)])
                self.assertLess(seconds, ENDED)
                ranks.end_child()
                told = ranks.output.read()
                self.assertEqual(told.count(f"agpcs: {ranks.name(victim)} is gone: its process ended{LAST_WORDS}\n"), 2)
                self.assertEqual(told.count("agpcs: this process still waits for it, and ends\n"), 2)

    def test_a_rank_that_is_stopped_is_told_and_the_job_goes_on_with_it(self):
        for victim in (0, 1):
            with self.subTest(victim=victim):
                ranks = self.ranks(train, stop, victim=victim, settings=(("SILENT_SECONDS", 1.0), ("PING_SECONDS", 0.3)))
                self.assertEqual(ranks.line("agpcs"), f"agpcs: {ranks.name(victim)} has not answered for 1 s\n")
                os.kill(ranks.processes[victim].pid, signal.SIGCONT)
                self.assertEqual(ranks.line("answers"), f"agpcs: {ranks.name(victim)} answers again\n")
                self.assertEqual(ranks.outcome()[0], {rank: ("", "") for rank in range(3) if rank != victim})

    def test_a_stopped_rank_is_named_when_the_groups_time_is_over(self):
        for victim in (0, 1):
            with self.subTest(victim=victim):
                ranks = self.ranks(train, stop, victim=victim, seconds=6,
                                   settings=(("SILENT_SECONDS", 1.0), ("PING_SECONDS", 0.3)))
                self.assert_blamed(ranks, f"{ranks.name(victim)} has not answered for 1 s\n"
                                   "  hint: it is stopped, or its machine is overloaded; the job waits for it as long as "
                                   "init_process_group(timeout=...) says", within=20)

    def test_a_job_whose_ranks_cannot_connect_is_told_and_trains(self):
        ranks = self.ranks(train, leave, ranks=2, settings=(("_addresses", lambda: ["256.0.0.1"]),))
        self.assertIn(f"{ranks.name(1)} cannot connect to rank 0 at 256.0.0.1: a rank that dies will not be named\n",
                      ranks.line("cannot connect"))
        (kind, text), = ranks.outcome()[0].values()
        self.assertEqual(kind, "RuntimeError", text)

    def test_a_job_that_ends_well_prints_nothing(self):
        ranks = self.ranks(train, lambda _: None, victim=-1)
        self.assertEqual(ranks.outcome()[0], {rank: ("", "") for rank in range(3)})
        self.assertEqual(ranks.output.read(), "")


if __name__ == "__main__":
    unittest.main()
