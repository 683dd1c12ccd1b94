#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""New shares in a running PyTorch job: how soon a slower rank is noticed, and how much of what a fresh plan would gain the
job gains.

    replan_bench.py [--rounds 3]

Two ranks of this machine over Gloo, one thread each. In each round autoplan plans the job, rank 1 becomes slower after
150 steps (it repeats its passes), and the job goes on. The fresh plan is autoplan's with the slow rank. Times are medians
of 60 steps. Run it with a Python that has PyTorch, and with the package on PYTHONPATH.
"""

import argparse
import contextlib
import io
import pathlib
import statistics
import sys
import tempfile
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests/system/python"))
import cases  # noqa: E402
from cases import BATCH, Data, GroupResNet18, build, loss_of, on_ranks, wrapped  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import agpcs.torch  # noqa: E402

CALM, MOST, MEASURED = 150, 600, 60
REPEATS = 3  # forward passes that the slow rank adds


class Job:
    """Trains by autoplan, and remembers what steps took."""

    def __init__(self, rank, slow, folder, replan):
        self.rank, self.slow = rank, slow
        module = build(GroupResNet18)
        sample = tuple(GroupResNet18.samples(4, torch.Generator().manual_seed(1)).values())
        self.plan = agpcs.torch.autoplan(module, self.loss, sample, 4 * BATCH, seconds=20, cache=folder)
        data = Data(GroupResNet18, 4 * BATCH * 10)
        self.sampler = agpcs.torch.PlanSampler(data, self.plan, rank)
        self.ddp, self.state = wrapped(module, self.plan, {"replan": self.sampler} if replan else {"on_drift": None})
        self._batches = self._endless(DataLoader(data, batch_sampler=self.sampler))

    def loss(self, module, batch):
        for _ in range(REPEATS if self.slow else 0):
            with torch.no_grad():
                loss_of(getattr(module, "module", module), batch)
        return loss_of(module, batch)

    @staticmethod
    def _endless(loader):
        while True:
            yield from enumerate(loader)

    def step(self):
        begin = time.perf_counter()
        i, batch = next(self._batches)
        self.sampler.weigh(self.loss(self.ddp, batch), i).backward()
        return time.perf_counter() - begin

    def steps(self, count):
        return statistics.median(self.step() for _ in range(count))


def one_round(rank, folder):
    """Seconds of a step before; with the slow rank, by the old shares; by the new ones; by a fresh plan; the steps until
    then; shares by the job and by the fresh plan."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job = Job(rank, False, f"{folder}/first", True)
        calm = [job.step() for _ in range(CALM)][-MEASURED:]
        job.slow = rank == 1
        slow, ends = [], CALM + MOST
        for step in range(CALM, ends):
            slow.append(job.step())
            # All ranks see the same steps, so they stop together.
            if len(job.state.replanning.plans) > 1 and job.state.replanning.settled:
                break
        after = job.steps(MEASURED)
        dist.barrier()
        fresh = Job(rank, rank == 1, f"{folder}/fresh", False)
        fresh.steps(5)
        best = fresh.steps(MEASURED)
    return (statistics.median(calm), statistics.median(slow), after, best, len(slow),
            job.sampler.shares, fresh.plan.shares)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cases.LIMIT = 600
    print("| ms before | slow, old shares | slow, new shares | fresh plan | of its gain | steps to new shares | shares | "
          "fresh shares |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    parts = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            (calm, slow, after, best, steps, shares, fresh), _ = on_ranks(one_round, folder)
        parts.append((slow - after) / (slow - best))
        print(f"| {1e3 * calm:.1f} | {1e3 * slow:.1f} | {1e3 * after:.1f} | {1e3 * best:.1f} | {parts[-1]:.0%} | {steps} | "
              f"{shares} | {fresh} |", flush=True)
    print(f"\nmedian: {statistics.median(parts):.0%} of the gain of a fresh plan")


if __name__ == "__main__":
    main()
