#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the plan's hook costs beside plain DistributedDataParallel, with and without its watch, and how often the watch is
wrong about two processes that nothing changes.

    watch_bench.py [--rounds 30] [--calm 5000]

Two ranks of this machine over Gloo, one thread each, equal shares. The rounds take the ways in turns; the table has the
ratio to plain DDP, the median of the rounds' with its 95% interval by bootstrap. Run it with a Python that has PyTorch,
and with the package on PYTHONPATH.
"""

import argparse
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests/system/python"))
import cases  # noqa: E402
from interval import interval  # noqa: E402
from cases import BATCH, Data, GroupResNet18, build, loss_of, on_ranks, plan_of, wrapped  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

STEPS = 20


def seconds_by_way(rank, plan, rounds, calm):
    batch = [column[:plan.shares[rank]] for column in Data(GroupResNet18, BATCH).columns]
    told = []
    ways = {"plain DDP": wrapped(build(GroupResNet18))[0],
            "hook": wrapped(build(GroupResNet18), plan, {"on_drift": None})[0],
            "hook and watch": wrapped(build(GroupResNet18), plan, {"on_drift": told.extend})[0]}
    optimizers = {way: torch.optim.SGD(ddp.parameters(), lr=1e-3) for way, ddp in ways.items()}
    taken = {way: [] for way in ways}

    def steps(way, count):
        begin = time.perf_counter()
        for _ in range(count):
            optimizers[way].zero_grad()
            loss_of(ways[way], batch).backward()
            optimizers[way].step()
        return (time.perf_counter() - begin) / count
    for way in ways:
        steps(way, 5)
    for _ in range(rounds):
        for way in ways:
            dist.barrier()
            taken[way].append(steps(way, STEPS))
    told.clear()
    steps("hook and watch", calm)
    return taken, [change.text for change in told]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calm", type=int, default=5000, help="steps in which nothing changes (default: %(default)s)")
    options = parser.parse_args()
    cases.LIMIT = 3600
    (taken, told), _ = on_ranks(seconds_by_way, plan_of(GroupResNet18), options.rounds, options.calm)
    print("| way | ms a step | to plain DDP (95%) |\n| --- | --- | --- |")
    for way, seconds in taken.items():
        ratios = [mine / plain for mine, plain in zip(seconds, taken["plain DDP"])]
        low, high = interval(ratios)
        print(f"| {way} | {1e3 * statistics.median(seconds):.2f} | {statistics.median(ratios):.3f} "
              f"({low:.3f} to {high:.3f}) |")
    print(f"\n{len(told)} false alarms in {options.calm} steps" + "".join(f"\n  {text}" for text in told))


if __name__ == "__main__":
    main()
