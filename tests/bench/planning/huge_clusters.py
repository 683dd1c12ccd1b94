#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long the largest cluster files that there may be take to be read.

    tests/bench/planning/huge_clusters.py BIN_DIR [--rounds 5] [--keep FOLDER]

Writes cluster files, and times `agpcs-cluster check` on each, in turns: 1,024 hosts of 256 devices in one entry, the same
written out host by host, and 300 hosts of which each has a cable to each other one. Prints medians over the rounds, by the
clock and of processor time, and the peak of memory. `--keep` writes the files there. Exit code 1 if a file is read as
something else than it is.
"""

import argparse
import itertools
import os
import pathlib
import statistics
import sys
import tempfile
import time

KINDS = "device_kinds:\n  gpu: {memory: 80GiB, memory_bandwidth: 2TB/s, peak: {fp32: 19.5TFLOPS}}\n"
NIC = "nic: {kind: ib, bandwidth: 200Gbit/s, latency: 2us}"
HOSTS, DEVICES, MESH = 1024, 256, 300


def counted():
    return f"{KINDS}hosts:\n  - {{name: h, count: {HOSTS}, devices: {{kind: gpu, count: {DEVICES}}}, {NIC}}}\n"


def written_out():
    return f"{KINDS}hosts:\n" + "".join(f"  - {{name: h{i}, devices: {{kind: gpu, count: {DEVICES}}}, {NIC}}}\n" for i in range(HOSTS))


def full_mesh():
    cables = "".join(f"    - {{from: h{a}, to: h{b}, bandwidth: 100Gbit/s, latency: 5us}}\n"
                     for a, b in itertools.combinations(range(MESH), 2))
    return f"{KINDS}hosts:\n  - {{name: h, count: {MESH}, devices: {{kind: gpu}}}}\nnetwork:\n  topology: links\n  links:\n{cables}"


def checked(command, file):
    """(what it says, seconds by the clock, of processor time, peak of memory in MB) of one check."""
    read, write = os.pipe()
    begin = time.monotonic()
    pid = os.posix_spawn(command, [command, "check", file], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)])
    os.close(write)
    with open(read, encoding="utf-8") as said:
        text = said.read()
    _, status, usage = os.wait4(pid, 0)
    took = time.monotonic() - begin
    if status != 0:
        sys.exit(f"{file}: agpcs-cluster ended with {os.waitstatus_to_exitcode(status)}")
    return text, took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()
    command = str(options.bin_dir.resolve() / "agpcs-cluster")
    rows = [("one entry", counted(), HOSTS, HOSTS * DEVICES, "switch"),
            ("host by host", written_out(), HOSTS, HOSTS * DEVICES, "switch"),
            ("full mesh", full_mesh(), MESH, MESH, f"{MESH * (MESH - 1) // 2} cables")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or pathlib.Path(temporary)
        files = [folder / f"{name.replace(' ', '-')}.yaml" for name, *_ in rows]
        for file, (_, text, *_) in zip(files, rows):
            file.write_text(text)
        times, processor, memory = [[] for _ in rows], [[] for _ in rows], [0.0] * len(rows)
        for _ in range(options.rounds):
            for i, (file, (_, _, hosts, devices, _)) in enumerate(zip(files, rows)):
                said, took, computed, peak = checked(command, str(file))
                if said != f"{file}: plausible: {hosts} hosts, {devices} devices, 1 kind\n":
                    sys.exit(f"unexpected: {said}")
                times[i].append(took)
                processor[i].append(computed)
                memory[i] = max(memory[i], peak)
    print("| file | hosts | devices | network | kB | s | longest s | processor s | peak MB |\n| --- " + "| ---: " * 2 + "| --- " + "| ---: " * 5 + "|")
    for (name, text, hosts, devices, network), took, computed, peak in zip(rows, times, processor, memory):
        print(f"| {name} | {hosts} | {devices} | {network} | {len(text) / 1000:.0f} | {statistics.median(took):.2f} "
              f"| {max(took):.2f} | {statistics.median(computed):.2f} | {peak:.0f} |")


if __name__ == "__main__":
    main()
