#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints a table of max-load problems: best known, every seeder and refiner, and the default search.

    tests/bench/max_load/max_load.py --judge FILE {--data FOLDER | --generate N [--seed S]}
                            [--bench build/release/tests/max_load_bench] [-- BENCH FLAGS]

Reads every *.json of FOLDER (format: msr-fiddle/dnn-partitioning), best known values from the README beside it; with
--generate, makes N instances of that family instead (max_load_instances.py). FILE is that data set's own judge. Values are what the independent judge says
of the split, in ms; `!` follows one that it finds at fault. Seconds are CPU time of the default search, `ours`. Exit
code 1 if `ours` is at fault anywhere, above a best known value, or above any other column.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import max_load_instances

ROOT = pathlib.Path(__file__).resolve().parents[3]


def problem_text(instance):
    """The instance as `max_load_bench` reads it."""
    index = {node["id"]: i for i, node in enumerate(instance["nodes"])}
    out_cost = {edge["sourceId"]: edge["cost"] for edge in instance["edges"]}
    lines = [f"{len(index)} {len(instance['edges'])} {instance['maxFPGAs']} {int(instance.get('maxCPUs', 1) > 0)} "
             f"{instance['maxSizePerFPGA']!r}"]
    for node in instance["nodes"]:
        colour = node.get("colorClass")
        lines.append(f"{node['fpgaLatency']!r} {node['cpuLatency']!r} {int(node.get('supportedOnFpga', True))} "
                     f"{node['size']!r} {out_cost.get(node['id'], 0)!r} {-1 if colour is None else colour}")
    lines += [f"{index[edge['sourceId']]} {index[edge['destId']]}" for edge in instance["edges"]]
    return "\n".join(lines) + "\n"


def best_known(folder):
    """{instance: ms} of the README beside the folder."""
    readme = folder.parent / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    return {name: float(value) for name, value in re.findall(r"(\w+_[\w-]+) (\d+\.\d+)", text)}


def judged(judge, path, split):
    """What the judge says: max load, and whether it finds no fault."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(split, file)
        file.flush()
        done = subprocess.run([sys.executable, judge, path, file.name], capture_output=True, text=True, check=True)
    load, *verdicts = done.stdout.split("\n")
    return float(load), all(line.endswith(" ok") for line in verdicts if line)


def row(instance, path, arguments, known):
    """Cells of the table by column, and whether `ours` is as good as it must be."""
    ids = [node["id"] for node in instance["nodes"]]
    done = subprocess.run([arguments.bench, *arguments.flags], input=problem_text(instance), capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{path}: exit code {done.returncode}\n{done.stderr}")
    cells, values, seconds = {"best known": "-" if known is None else f"{known:.3f}"}, {}, "-"
    for line in done.stdout.splitlines():
        name, seconds, *devices = line.split()
        load, valid = judged(arguments.judge, path, dict(zip(ids, map(int, devices))))
        cells[name] = f"{load:.3f}" + ("" if valid else "!")
        values[name] = load if valid else float("inf")
    good = values["ours"] < float("inf") and values["ours"] <= min([*values.values(), known or float("inf")])
    cells["seconds"], cells["verdict"] = f"{float(seconds):.1f}", "ok" if good else "WORSE OR INVALID"
    return cells, good


def problems(arguments):
    """(name, instance, path for the judge, best known or None) of each row."""
    if arguments.generate:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(arguments.first, arguments.first + arguments.generate):
                name, instance = max_load_instances.generate(arguments.seed, number)
                path = pathlib.Path(folder) / f"{name}.json"
                path.write_text(json.dumps(instance), encoding="utf-8")
                yield f"{name} ({len(instance['nodes'])})", instance, path, None
        return
    known = best_known(arguments.data)
    paths = sorted(arguments.data.glob("*.json"))
    if not paths:
        sys.exit(f"no *.json in {arguments.data}")
    for path in paths:
        yield path.stem, json.loads(path.read_text(encoding="utf-8")), path, known.get(path.stem)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bench", type=pathlib.Path, default=ROOT / "build/release/tests/max_load_bench")
    parser.add_argument("--judge", type=pathlib.Path, required=True, help="the judge of msr-fiddle/dnn-partitioning")
    instances = parser.add_mutually_exclusive_group(required=True)
    instances.add_argument("--data", type=pathlib.Path, metavar="FOLDER", help="instances of msr-fiddle/dnn-partitioning")
    instances.add_argument("--generate", type=int, default=0, metavar="N", help="N instances of that family")
    parser.add_argument("--seed", type=int, default=1, help="of the generated instances")
    parser.add_argument("--first", type=int, default=0, metavar="I", help="number of the first generated instance")
    parser.add_argument("flags", nargs="*", help="of max_load_bench, after --")
    arguments = parser.parse_args()
    for needed in (arguments.bench, arguments.judge):
        if not needed.exists():
            sys.exit(f"{needed} is not there")
    all_good, header = True, None
    for name, instance, path, known in problems(arguments):
        cells, good = row(instance, path, arguments, known)
        if header is None:
            header = list(cells)
            print("| problem | " + " | ".join(header) + " |\n| --- |" + " ---: |" * len(header))
        print(f"| {name} | " + " | ".join(cells[name] for name in header) + " |", flush=True)
        all_good = all_good and good
    sys.exit(0 if all_good else 1)


if __name__ == "__main__":
    main()
