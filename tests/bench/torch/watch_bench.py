#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the plan's hook and sampler cost beside plain DistributedDataParallel, with and without the hook's watch, and how
often the watch is wrong about two processes that nothing changes.

    watch_bench.py [--width 16] [--rounds 30] [--calm 5000]

Two ranks of this machine over Gloo, one thread each, equal shares; a ResNet-18 of `--width` channels. Once with the groups
of the plan and DDP's own buckets, once with one group and one bucket. The rounds take the ways in turns; the table has the
ratio to plain DDP, the median of the rounds' with its 95% interval by bootstrap. Run it with a Python that has PyTorch,
and with the package on PYTHONPATH.
"""

import argparse
import functools
import itertools
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests/system/python"))
import cases  # noqa: E402
from interval import interval  # noqa: E402
from cases import BATCH, Data, GroupResNet18, ResNet18, build, loss_of, on_ranks, plan_of, wrapped  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402

import agpcs.torch  # noqa: E402

STEPS = 20


def model(width):
    """GroupResNet18 of another width."""
    return type("GroupResNet18", (GroupResNet18,), {
        "__init__": lambda self: ResNet18.__init__(self, functools.partial(torch.nn.GroupNorm, 4), width)})


class Job:
    """Trains by plain DDP, or by a plan with its hook and sampler."""

    def __init__(self, kind, rank, plan=None, hook=None, **options):
        data, self._sampler = Data(kind, 8 * BATCH), None
        if plan is None:
            loader = DataLoader(data, batch_size=BATCH // 2, sampler=DistributedSampler(data, 2, rank, seed=1))
        else:
            self._sampler = agpcs.torch.PlanSampler(data, plan, rank)
            loader = DataLoader(data, batch_sampler=self._sampler)
            hook = {**hook, "sampler": self._sampler}
        self._batches = (each for _ in itertools.count() for each in enumerate(loader))
        self._ddp, self.state = wrapped(build(kind), plan, hook, **options)
        self._optimizer = torch.optim.SGD(self._ddp.parameters(), lr=1e-3)

    def steps(self, count):
        """Seconds of a step, over `count` steps."""
        begin = time.perf_counter()
        for _ in range(count):
            self._optimizer.zero_grad()
            i, batch = next(self._batches)
            loss = loss_of(self._ddp, batch)
            (loss if self._sampler is None else self._sampler.weigh(loss, i)).backward()
            self._optimizer.step()
        return (time.perf_counter() - begin) / max(count, 1)


def seconds_by_way(rank, kind, plan, options, rounds, calm):
    told = []
    jobs = {"plain DDP": Job(kind, rank, **options),
            "hook and sampler": Job(kind, rank, plan, {"on_drift": None}, **options),
            "hook, sampler and watch": Job(kind, rank, plan, {"on_drift": told.extend}, **options)}
    taken = {way: [] for way in jobs}
    for job in jobs.values():
        job.steps(5)
    for _ in range(rounds):
        for way, job in jobs.items():
            dist.barrier()
            taken[way].append(job.steps(STEPS))
    told.clear()
    jobs["hook, sampler and watch"].steps(calm)
    return taken, [change.text for change in told], [len(jobs["hook and sampler"].state.groups)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calm", type=int, default=5000, help="steps in which nothing changes (default: %(default)s)")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer (default: %(default)s)")
    options = parser.parse_args()
    cases.LIMIT = 3600
    kind = model(options.width)
    print("| groups | way | ms a step | to plain DDP (95%) |\n| --- | --- | --- | --- |")
    told = []
    for how, planned, wrapping in (("the plan's", {}, {}),
                                   ("one", {"bucket_bytes": 1 << 30}, {"bucket_cap_mb": 1024})):
        calm = 0 if planned else options.calm
        (taken, texts, groups), _ = on_ranks(seconds_by_way, kind, plan_of(kind, **planned), wrapping, options.rounds, calm)
        told += texts
        for way, seconds in taken.items():
            ratios = [mine / plain for mine, plain in zip(seconds, taken["plain DDP"])]
            low, high = interval(ratios)
            print(f"| {how} ({groups[0]}) | {way} | {1e3 * statistics.median(seconds):.2f} | "
                  f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}) |", flush=True)
    print(f"\n{len(told)} false alarms in {options.calm} steps" + "".join(f"\n  {text}" for text in told))


if __name__ == "__main__":
    main()
