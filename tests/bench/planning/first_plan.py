#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints after how many seconds agpcs-compile shows its first plan, and how good that is.

    tests/bench/planning/first_plan.py FOLDER [--bin build/release/bin] [--models M,...] [--clusters C,...] [--times N]

FOLDER has models/M.onnx and clusters/C.yaml, as the repository's samples. Each time is wall time from the start of the
process to the moment when the line has come through a pipe; figures are medians of N runs with one thread. "Reading" is
what the stages before the seeders take (--times): the cluster, the model's import, loss, backward and blocks.

Goal: a first plan within 0.2 s. Exit codes: 0 reached, 1 missed (it says where), 2 a command failed.
"""
import argparse
import itertools
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
GOAL = 0.2  # seconds
READING = ("cluster", "import", "loss", "backward", "blocks")
HEAD = ["model", "cluster", "import s", "reading s", "first line s", "first step", "within", "bound s", "last step", "within",
        "last line s"]


def lines_of(words):
    """Pairs of a line of standard error and the seconds at which it came; None where the command failed."""
    began = time.monotonic()
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        lines = [(line.rstrip("\n"), time.monotonic() - began) for line in process.stderr]
    return lines if process.returncode == 0 else None


PLAN = r"(?P<what>first plan|bound|plan): (?:step (?P<step>[^,]+))?.*?(?:within (?P<gap>.*?) of any plan(?: without teams)?)?(?:, after.*)?"


def figures(lines):
    """What the table needs of one run: seconds by stage, and (step, gap, seconds) of the first plan, the bound, the plan."""
    seconds, told = {}, {}
    for line, at in lines:
        if stage := re.fullmatch(r"(\w+) +([0-9.]+) s", line):
            seconds[stage[1]] = float(stage[2])
        elif plan := re.fullmatch(PLAN, line):
            told[plan["what"]] = (plan["step"], plan["gap"], at)
    return seconds, told


def row_of(name, cluster, runs):
    """The cells of a row, and the median seconds of the first line."""
    def median(take):
        return statistics.median(take(run) for run in runs)
    told = runs[0][1]
    first, bound, last = (median(lambda run, what=what: run[1][what][2]) for what in ("first plan", "bound", "plan"))
    cells = [name, cluster, f"{median(lambda run: run[0]['import']):.3f}",
             f"{median(lambda run: sum(run[0][stage] for stage in READING)):.3f}",
             f"{first:.3f}", told["first plan"][0], told["bound"][1], f"{bound:.3f}", *told["plan"][:2], f"{last:.2f}"]
    return cells, first


def markdown(head, rows):
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("folder", type=pathlib.Path, help="it has models/M.onnx and clusters/C.yaml, as samples")
    parser.add_argument("--models", default="resnet50,bert_base", help="default: %(default)s")
    parser.add_argument("--clusters", default="v100x4-rtx3090x4,mixed-32", help="default: %(default)s")
    parser.add_argument("--times", type=int, default=5, help="runs of each command; default: %(default)s")
    arguments = parser.parse_args()
    rows, missed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for cluster, model in itertools.product(arguments.clusters.split(","), arguments.models.split(",")):
            words = [arguments.bin / "agpcs-compile", arguments.folder / f"models/{model}.onnx",
                     arguments.folder / f"clusters/{cluster}.yaml", "-o", pathlib.Path(folder) / "x.plan",
                     "--threads", "1", "--times"]
            runs = [lines_of(words) for _ in range(arguments.times)]
            if None in runs:
                print(f"{' '.join(map(str, words))}: failed", file=sys.stderr)
                return 2
            cells, shown = row_of(model, cluster, [figures(lines) for lines in runs])
            rows.append(cells)
            if shown > GOAL:
                missed.append(f"missed: {model} on {cluster}: {shown:.3f} s")
    print(markdown(HEAD, rows))
    print("\n" + ("\n".join(missed) or "The goal is reached in every row."))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
