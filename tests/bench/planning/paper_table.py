#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the paper's table: the plan of agpcs-compile beside our reading of the AGPCS paper's baseline, and practice's.

    tests/bench/planning/paper_table.py FOLDER [--bin build/release/bin] [--models M,...] [--clusters C,...]

FOLDER has models/M.onnx and clusters/C.yaml, as the repository's samples.

Baselines: `degree`, a pipeline of one device a stage, cut where node degrees add up to equal parts (planner/seed/degree.cc:
the paper says "a simple degree heuristic" and no more), and `equal`, plain data parallelism (equal shares on all devices,
buckets of 25 MB). Both come from the same command, cost model and simulator. A baseline that does not fit in memory is beaten.

"Of which search": by what part the plan's step is shorter than that of the best seed, from which the search began; the rest
of the gain is the seeders'.
"Exposed": time in which a device communicates and does not compute, summed over devices; it is not the paper's
"communication overhead (measured via network bandwidth usage)", which "sent" is nearer to: bytes, of all devices.

Goal in every row, against both: a step shorter by 20% and 15% less exposed communication, or a step within 3% of the
lower bound of any plan's. Exit codes: 0 reached, 1 missed (it says where), 2 a command failed.

Times are simulated, so the figures do not depend on the machine.
"""
import argparse
import itertools
import json
import math
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODELS = ["resnet50", "inception_v3", "bert_base"]
CLUSTERS = ["v100x4-rtx3090x4", "mixed-32"]
BASELINES = {
    "degree": ["--seeder", "degree", "--refiner", "none", "--bucket-bytes", str(128 * 2**20)],
    "equal": ["--seeder", "equal", "--refiner", "none"],
}
SHORTER, LESS_EXPOSED, NEAR_BOUND = 0.20, 0.15, 0.03
BAR = 20  # characters of a bar at 100%


def figures(report):
    """What the tables need of agpcs-compile's JSON: seconds of a step, of the best seed's, of exposed communication, bytes
    sent, use by device, bound."""
    devices = report["devices"]
    return {"step": report["step_seconds"], "seed": report.get("seed_step_seconds"),
            "exposed": sum(each["exposed_communication_seconds"] for each in devices), "sent": report["bytes_sent"],
            "use": {each["device"]: each["utilization"] for each in devices},
            "bound": report.get("lower_bound_seconds")}


def compiled(command, model, cluster, options, folder):
    """The figures of the plan that agpcs-compile makes; None where none fits in memory."""
    words = [command, model, cluster, "--json", "-o", folder / "model.plan", *options]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        return None
    if done.returncode != 0:
        print(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stderr}", file=sys.stderr)
        sys.exit(2)
    return figures(json.loads(done.stdout))


def less(ours, baseline, key):
    """By what part ours is less (-inf: the baseline has none of it); None where there is nothing to compare with."""
    if baseline is None or ours[key] == baseline[key] == 0:
        return None
    return 1 - ours[key] / baseline[key] if baseline[key] > 0 else -math.inf


def gap(ours):
    """By what part the step is above the bound; None without a bound."""
    return ours["step"] / ours["bound"] - 1 if ours["bound"] else None


def missed(ours, baselines):
    """Texts: what of the goal is not reached; empty when it is."""
    if gap(ours) is not None and gap(ours) <= NEAR_BOUND:
        return []
    found = []
    for name, baseline in baselines.items():
        for key, what, goal in (("step", "shorter", SHORTER), ("exposed", "less exposed communication", LESS_EXPOSED)):
            part = less(ours, baseline, key)
            if part is not None and part < goal:
                found.append(f"{percent(part, 1)} {what} than {name}, not {goal:.0%}")
    return found


def ms(seconds):
    return "-" if seconds is None else f"{1e3 * seconds:.1f}"


def percent(part, digits=0):
    if part is None:
        return "-"
    return f"{100 * part:.{digits}f}%" if math.isfinite(part) else "not"


def mb(size):
    return "-" if size is None else f"{size / 1e6:.1f}"


def searched(ours):
    """By what part the search made the best seed's step shorter; None where no seed fits."""
    return None if ours["seed"] is None else 1 - ours["step"] / ours["seed"]


def side_by_side(key, ours, baselines, text):
    """Cells: the figure of each baseline and ours, then by how much ours is less than each."""
    return [*(text(each and each[key]) for each in (*baselines.values(), ours)),
            *(percent(less(ours, each, key)) for each in baselines.values())]


def step_row(model, cluster, ours, baselines):
    return [model, cluster, *side_by_side("step", ours, baselines, ms),
            percent(searched(ours), 2),
            ms(ours["bound"]), "-" if gap(ours) is None else f"{gap(ours):.1%}"]


def network_row(model, cluster, ours, baselines):
    return [model, cluster, *side_by_side("exposed", ours, baselines, ms), *side_by_side("sent", ours, baselines, mb)]


STEP_HEAD = ["model", "cluster", "degree ms", "equal ms", "ours ms", "shorter than degree", "shorter than equal",
             "of which search", "bound ms", "above bound"]
NETWORK_HEAD = ["model", "cluster", "degree exposed ms", "equal exposed ms", "ours exposed ms", "less than degree",
                "less than equal", "degree sent MB", "equal sent MB", "ours sent MB", "less than degree", "less than equal"]


def bar(part):
    return ("#" * round(BAR * part)).ljust(BAR, ".")


def use_chart(before, ours):
    """Lines of text: each device's use before and after; devices next to each other that say the same are one line."""
    names = list(before["use"]) + [name for name in ours["use"] if name not in before["use"]]
    rows = []
    for name in names:
        parts = [each["use"].get(name, 0) for each in (before, ours)]
        rows.append((name, "  ".join(f"{bar(part)} {100 * part:4.0f}%" for part in parts)))
    lines = []
    for text, group in itertools.groupby(rows, key=lambda row: row[1]):
        alike = [name for name, _ in group]
        lines.append((alike[0] if len(alike) == 1 else f"{alike[0]} .. {alike[-1]}", text))
    width = max(len(name) for name, _ in lines)
    head = f"{'':{width}}  {'before (equal)':{BAR + 7}}after (ours)"
    return "\n".join([head, *(f"{name:{width}}  {text}" for name, text in lines)])


def markdown(head, rows):
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("folder", type=pathlib.Path, help="it has models/M.onnx and clusters/C.yaml, as samples")
    parser.add_argument("--models", default=",".join(MODELS), help="default: %(default)s")
    parser.add_argument("--clusters", default=",".join(CLUSTERS), help="default: %(default)s")
    return parser.parse_args(words)


def main():
    arguments = parse(None)
    steps, network, charts, failures = [], [], [], []
    with tempfile.TemporaryDirectory() as name:
        for cluster, model in itertools.product(arguments.clusters.split(","), arguments.models.split(",")):
            inputs = (arguments.bin / "agpcs-compile", arguments.folder / f"models/{model}.onnx",
                      arguments.folder / f"clusters/{cluster}.yaml")
            baselines = {key: compiled(*inputs, options, pathlib.Path(name)) for key, options in BASELINES.items()}
            ours = compiled(*inputs, [], pathlib.Path(name))
            if ours is None:
                failures.append(f"{model} on {cluster}: no plan fits")
                continue
            steps.append(step_row(model, cluster, ours, baselines))
            network.append(network_row(model, cluster, ours, baselines))
            failures += [f"{model} on {cluster}: {text}" for text in missed(ours, baselines)]
            if baselines["equal"]:
                charts.append(f"{model} on {cluster}, computing as a part of the step:\n\n```\n"
                              f"{use_chart(baselines['equal'], ours)}\n```\n")
    print(markdown(STEP_HEAD, steps) + "\n\n" + markdown(NETWORK_HEAD, network))
    print("\n" + "\n".join(charts))
    print("\n".join(f"missed: {text}" for text in failures) or "The goal is reached in every row.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
