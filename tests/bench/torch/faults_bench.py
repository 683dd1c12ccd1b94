#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long it takes until all other ranks of a job have ended, with the culprit named, after one was killed; and how long
autoplan takes when a job starts again with the ranks that are left.

    faults_bench.py [--trials 10]

Three ranks of this machine over Gloo. Run it with a Python that has PyTorch, and with the package on PYTHONPATH.
"""

import argparse
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests/system/python"))
from test_faults import Ranks, kill, kill_with_a_child, measure, train  # noqa: E402
from cases import on_ranks  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

import agpcs.torch  # noqa: E402

WAYS = (("while it trains", train, kill), ("while it is measured", measure, kill),
        ("while its child holds Gloo's connections", train, kill_with_a_child))


def seconds_to_the_end(work, act, victim):
    """Returns the seconds from a rank's death to the end of the last other one, if all of them say who is gone."""
    ranks = Ranks(work, act, victim=victim)
    try:
        said, seconds = ranks.outcome()
        texts = [text for _, text in said.values()]
        if ranks.child.value:  # it holds the output, too
            ranks.end_child()
            texts = ranks.output.read().split("agpcs: ")
        if sum(f"{ranks.name(victim)} is gone" in text for text in texts) != 2:
            raise RuntimeError(f"not all ranks named rank {victim}: {texts}")
        return seconds
    finally:
        ranks.end()


def planning(rank, folder):
    """Returns the seconds that autoplan takes, and whether it measured."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(32)))
    begin = time.perf_counter()
    plan = agpcs.torch.autoplan(model, lambda model, batch: model(batch[0]).pow(2).mean(), (torch.ones(4, 64),), 64,
                                seconds=20, cache=folder, quiet=True)
    return time.perf_counter() - begin, plan.measuring_seconds is not None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=10)
    trials = parser.parse_args().trials
    print("| killed rank | when | median s | longest s |\n| --- | --- | --- | --- |")
    for when, work, act in WAYS:
        for victim in (0, 1):
            taken = [seconds_to_the_end(work, act, victim) for _ in range(trials)]
            print(f"| {victim} | {when} | {statistics.median(taken):.2f} | {max(taken):.2f} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        (measuring, _), *_ = on_ranks(planning, f"{folder}/all", ranks=3)
        left = []
        for trial in range(trials):
            shutil.copytree(f"{folder}/all", f"{folder}/{trial}")
            left.append(on_ranks(planning, f"{folder}/{trial}", ranks=2)[0])
    if any(measured for _, measured in left):
        raise RuntimeError("the smaller job measured")
    print(f"\nautoplan for the two ranks that are left of three: {statistics.median(s for s, _ in left):.2f} s (median), "
          f"{max(s for s, _ in left):.2f} s (longest); for three it takes {measuring:.0f} s, most of them to measure")


if __name__ == "__main__":
    main()
