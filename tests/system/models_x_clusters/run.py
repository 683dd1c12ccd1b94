#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every model for every cluster, twice: equal bytes, and a plan that checks, or a true reason why there is none.
Searches are short: what longer ones find is in the tables of results.

--speed instead measures ResNet-50 for 8 devices with data parallel and METIS seeds: under 3 seconds of CPU time and 200 MB.
"""

import argparse
import json
import os
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared/models"
LACKS = re.compile(r"device (\S+) lacks (\d+) bytes: it has (\d+) \(\S+\), and the step needs (\d+) \(\S+\)")


def run(command, work, name):
    """(exit code, stdout, stderr, CPU seconds, peak bytes) of a command."""
    out, err = work / f"{name}.out", work / f"{name}.err"
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.execv(command[0], [str(word) for word in command])
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code, out.read_text(), err.read_text(), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def compile_once(options, work, model, cluster, name):
    plan = work / f"{name}.plan"
    plan.unlink(missing_ok=True)
    command = [options.compile, model, cluster, "-o", plan, "--json", "--budget", "100"]
    code, out, err, _, _ = run(command, work, name)
    return code, plan.read_bytes() if plan.exists() else b"", out.replace(str(plan), "PLAN"), err


def check_infeasible(err):
    """Why an infeasible result is not well explained, or None."""
    match = LACKS.search(err)
    if not match:
        return f"no true reason:\n{err}"
    lacks, has, needs = (int(match[i]) for i in (2, 3, 4))
    return None if lacks > 0 and lacks == needs - has else f"{lacks} is not {needs} - {has}"


def check_feasible(options, work, model, plan, out):
    path = work / "checked.plan"
    path.write_bytes(plan)
    code, _, err, _, _ = run([options.plan, "check", path], work, "check")
    if code != 0:
        return f"agpcs-plan check says {code}:\n{err}"
    report = json.loads(out)
    for device in report["devices"]:
        if device["peak_memory_bytes"] > device["memory_capacity_bytes"]:
            return f"{device['device']} needs more memory than it has"
    for name, baseline in report["baselines"].items():
        if (baseline["step_seconds"] is None) == (baseline["infeasible"] is None):
            return f"baseline {name} has both or neither of step_seconds and infeasible"
    plain = report["baselines"]["data_parallel"]["step_seconds"]
    if plain is not None and report["step_seconds"] > plain * 1.001:
        return f"slower than plain data parallelism: {report['step_seconds']} s, {plain} s"
    return None


def check_pair(options, work, model, cluster):
    first, again = (compile_once(options, work, model, cluster, name) for name in ("first", "again"))
    if first[:3] != again[:3]:
        return "two runs differ"
    code, plan, out, err = first
    if code == 3:
        return "a plan was written, although none fits" if plan else check_infeasible(err)
    return check_feasible(options, work, model, plan, out) if code == 0 else f"exit code {code}:\n{err}"


def check_speed(options, work):
    command = [options.compile, ROOT / "samples/models/resnet50.onnx", ROOT / "samples/clusters/v100x4-rtx3090x4.yaml"]
    command += ["--seeder", "data_parallel", "--seeder", "metis", "-o", work / "speed.plan", "-q"]
    runs = [run(command, work, "speed") for _ in range(3)]
    seconds, peak = min(r[3] for r in runs), max(r[4] for r in runs)
    print(f"models_x_clusters: ResNet-50 for 8 devices: {seconds:.2f} s of CPU time, {peak / 1e6:.0f} MB")
    return any(r[0] != 0 for r in runs) or seconds > 3 or peak > 200e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", required=True, help="agpcs-compile")
    parser.add_argument("--plan", required=True, help="agpcs-plan")
    parser.add_argument("--speed", action="store_true", help="measure ResNet-50 instead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        if options.speed:
            return 1 if check_speed(options, work) else 0
        models = sorted((ROOT / "samples/models").glob("*.onnx*")) + sorted(SHARED.glob("light_*.onnx"))
        clusters = sorted((ROOT / "samples/clusters").glob("*.yaml"))
        failed = 0
        for model in models:
            for cluster in clusters:
                if problem := check_pair(options, work, model, cluster):
                    failed += 1
                    print(f"{model.name} x {cluster.name}: {problem}")
    if not SHARED.is_dir():
        print(f"models_x_clusters: skipped the light models: {SHARED} is absent")
    print(f"models_x_clusters: {len(models)} models x {len(clusters)} clusters, {failed} failed")
    return 1 if failed or not models or not clusters else 0


if __name__ == "__main__":
    sys.exit(main())
