#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints a table of every model on every cluster: the plan's simulated step beside its baselines.

    tests/bench/plan_quality.py [--bin build/release/bin] [--models FOLDER] [--clusters FOLDER]

Times are simulated, so the figures do not depend on the machine; the seconds that planning takes do.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def milliseconds(baseline):
    """A baseline's step, or why it has none."""
    seconds = baseline.get("step_seconds")
    return "infeasible" if seconds is None else f"{seconds * 1e3:.1f}"


def row(compile_command, model, cluster, folder):
    start = time.monotonic()
    done = subprocess.run([compile_command, model, cluster, "--json", "-o", folder / "model.plan"],
                          capture_output=True, text=True, check=False)
    planning = time.monotonic() - start
    if done.returncode == 3:
        return [model.stem, cluster.stem, "infeasible"]
    if done.returncode != 0:
        sys.exit(f"{model.name} on {cluster.name}: exit code {done.returncode}\n{done.stderr}")
    plan = json.loads(done.stdout)
    step = plan["step_seconds"]
    plain, degree = plan["baselines"]["data_parallel"], plan["baselines"]["degree"]
    speedup = f"{plain['step_seconds'] / step:.2f}" if plain.get("step_seconds") else "-"
    return [model.stem, cluster.stem, plan["seeder"], str(len(plan["stages"])), f"{step * 1e3:.1f}",
            milliseconds(plain), milliseconds(degree), speedup, f"{planning:.2f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "samples/models")
    parser.add_argument("--clusters", type=pathlib.Path, default=ROOT / "samples/clusters")
    arguments = parser.parse_args()
    columns = ["model", "cluster", "seeder", "stages", "step ms", "plain DP ms", "degree ms",
               "DP / plan", "planning s"]
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    with tempfile.TemporaryDirectory() as folder:
        for model in sorted(arguments.models.glob("*.onnx")):
            for cluster in sorted(arguments.clusters.glob("*.yaml")):
                cells = row(arguments.bin / "agpcs-compile", model, cluster, pathlib.Path(folder))
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
