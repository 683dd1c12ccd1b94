#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains for a long time while the machine's speed changes at random, and looks whether anything grows.

    tests/system/faults/soak.py BIN_DIR [--minutes 30] [--ranks 4] [--seed 1]

A job of local ranks trains, re-plans and writes checkpoints, while other processes take processors away from it: pinned
to a random processor, for a random time. Memory and open files of each rank are read from /proc every few seconds, step
times come from the job's own report. Prints a line a minute and a verdict; the exit code is 1 when memory or files have
grown (a rank's mean over the last fifth of the run against that over the second fifth, by more than --grows), or the job
ended. Needs only Python's standard library, Linux, and no privileges."""
import argparse
import ctypes
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "samples/models/small_cnn.onnxtxt"
SAMPLE_SECONDS = 2.0
CLUSTER = """device_kinds:
  core: {{memory: 2GiB, memory_bandwidth: 10GB/s, peak: {{fp32: 30GFLOPS}}}}
hosts:
  - name: local
    devices: {{kind: core, count: {ranks}}}
    interconnect: {{kind: tcp, bandwidth: 1GB/s, latency: 50us}}
training: {{batch: {batch}}}
"""


def rank_processes(parent):
    """Ids of the ranks that process `parent` started."""
    children = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children]


def resident_kib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise OSError("no VmRSS")


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def be_disturbance(processor):
    """In a new process: stays on `processor`, and ends with the script however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.sched_setaffinity(0, {processor})


class Drift(threading.Thread):
    """Takes processors away: busy loops on a random one, for random times."""

    def __init__(self, seed):
        super().__init__(daemon=True)
        self.draw, self.over, self.times = random.Random(seed), threading.Event(), 0

    def run(self):
        while not self.over.wait(self.draw.uniform(5, 60)):
            processor = self.draw.choice(sorted(os.sched_getaffinity(0)))
            loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"],
                                      preexec_fn=lambda: be_disturbance(processor))
                     for _ in range(self.draw.choice([1, 1, 2]))]
            self.times += 1
            self.over.wait(self.draw.uniform(5, 90))
            for loop in loops:
                loop.kill()
                loop.wait()


class Steps(threading.Thread):
    """Reads the job's report: seconds of steps, and how often what happened."""

    def __init__(self, stream):
        super().__init__(daemon=True)
        self.stream, self.seconds, self.events = stream, [], {}

    def run(self):
        for line in self.stream:
            event = json.loads(line)
            if event["event"] == "step":
                self.seconds.append((time.monotonic(), event["seconds"]))
            else:
                self.events[event["event"]] = self.events.get(event["event"], 0) + 1


def fifth(values, number):
    """Mean of the number-th fifth (from 0) of `values`."""
    size = max(1, len(values) // 5)
    return statistics.fmean(values[number * size:(number + 1) * size])


def growth(samples):
    """By how much the last fifth is above the second one, as a fraction."""
    return fifth(samples, 4) / fifth(samples, 1) - 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--grows", type=float, default=0.02)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agpcs-soak-") as folder:
        return soak(args, pathlib.Path(folder))


def soak(args, folder):
    cluster, plan = folder / "cluster.yaml", folder / "soak.plan"
    cluster.write_text(CLUSTER.format(ranks=args.ranks, batch=16 * args.ranks))
    subprocess.run([args.bin_dir / "agpcs-compile", MODEL, cluster, "-o", plan], check=True, stdout=subprocess.DEVNULL)
    command = [args.bin_dir / "agpcs-run", plan, MODEL, "--local", "--json", "--steps", "100000000", "--replan", cluster,
               "--save", folder / "checkpoints", "--save-every", "500"]
    errors = open(folder / "errors.txt", "w+")
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    steps, drift = Steps(job.stdout), Drift(args.seed)
    steps.start()
    while not steps.seconds and job.poll() is None:
        time.sleep(0.05)  # polling for the first line of another process
    ranks = rank_processes(job.pid)
    memory, files = {pid: [] for pid in ranks}, {pid: [] for pid in ranks}
    drift.start()
    begin, printed = time.monotonic(), 0
    print(f"{'minute':>6} {'steps':>8} {'median ms':>10} {'largest rank MiB':>17} {'files':>6}  events")
    while time.monotonic() - begin < args.minutes * 60 and job.poll() is None:
        for pid in ranks:
            memory[pid].append(resident_kib(pid))
            files[pid].append(open_files(pid))
        minute = int((time.monotonic() - begin) / 60)
        if minute > printed:
            printed = minute
            recent = [s for when, s in steps.seconds if time.monotonic() - when < 60] or [0]
            print(f"{minute:>6} {len(steps.seconds):>8} {statistics.median(recent) * 1e3:>10.2f} "
                  f"{max(memory[p][-1] for p in ranks) / 1024:>17.1f} {max(files[p][-1] for p in ranks):>6}  {steps.events}",
                  flush=True)
        time.sleep(SAMPLE_SECONDS)
    ended = job.poll()
    drift.over.set()
    job.send_signal(signal.SIGTERM)
    job.wait(60)
    drift.join()
    if ended is not None:
        errors.seek(0)
        print(f"the job ended by itself, with code {ended}:\n{errors.read()}")
        return 1
    worst_memory = max(growth(memory[pid]) for pid in ranks)
    worst_files = max(growth(files[pid]) for pid in ranks)
    seconds = [s for _, s in steps.seconds]
    print(f"{len(seconds)} steps in {args.minutes:g} minutes, {drift.times} disturbances, {steps.events}")
    print(f"memory {worst_memory:+.2%}, open files {worst_files:+.2%} (worst rank), "
          f"median step {growth_of_medians(seconds):+.2%}: last fifth against the second one")
    return int(worst_memory > args.grows or worst_files > args.grows)


def growth_of_medians(seconds):
    size = max(1, len(seconds) // 5)
    return statistics.median(seconds[4 * size:]) / statistics.median(seconds[size:2 * size]) - 1


if __name__ == "__main__":
    sys.exit(main())
