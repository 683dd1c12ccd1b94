#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records jobs whose machines change, beside other work, for `drift_bench judge` (docs/design/testbed.md).

    sudo tests/system/testbed/record_drift.py OUTPUT [--load N]... [--quiet STEPS] [--rounds N]

For each load (0, 4 and 10 processes that compute for ever, of ordinary priority) three machines, with 40% of a core each,
run `drift_recorder`: first for `--quiet` steps in which nothing changes, then with changes of each machine in turns: its
speed to 40%, its links to a quarter, both, and back after each. OUTPUT is written at the end.

Exit codes: 0 done, 1 something failed, 77 this machine cannot play such machines, 130 stopped.
"""

import argparse
import contextlib
import os
import pathlib
import platform
import secrets
import statistics
import subprocess
import sys
import tempfile

import clusters
import machines
import testbed
from commands import rank_environment

ROOT = pathlib.Path(__file__).resolve().parents[3]
NAMES, CPU, MBIT = ("a", "b", "c"), 40, 200
EXCHANGE, PROBE = 5, 20  # steps: drift_recorder's
SPEED, RATE = 0.4, 0.25
KINDS = ((SPEED, 1), (1, RATE), (SPEED, RATE))
GAP = 300  # steps from one change to the next


def cluster_of(rank=None, speed=1.0, rate=1.0):
    """The machines, of which one has these parts of its speed and of its rate."""
    return clusters.uneven("record-3", **{name: (CPU * speed, MBIT * rate) if place == rank else (CPU, MBIT)
                                          for place, name in enumerate(NAMES)})


def schedule(quiet, rounds):
    """(step, rank, speed, rate) of each change, and the number of steps."""
    changes, step = [], quiet
    for number in range(rounds * len(NAMES)):
        for speed, rate in KINDS:
            for now in ((speed, rate), (1, 1)):
                changes.append((step, number % len(NAMES), *now))
                step += GAP
    return changes, step


@contextlib.contextmanager
def other_work(count):
    """Processes that compute for ever."""
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def run(bed, recorder, folder, changes, steps, work, elements):
    """Runs a job, and changes the machines when it has made so many steps. Returns the changes as they were made: by the
    exchange from which on they hold."""
    token, made, left = secrets.token_hex(16), [], list(changes)
    seats = list(range(len(NAMES)))
    bed.become(cluster_of())
    bed.lift_speeds()
    command = [recorder, folder, steps, work, elements]
    with contextlib.ExitStack() as cleanup:
        processes = []
        for rank in seats:
            log = cleanup.enter_context((folder / f"log-{rank}").open("w"))
            environment = os.environ | rank_environment(bed, seats, rank, token)
            processes.append(bed.start(rank, command, stdout=subprocess.PIPE if rank == 0 else log, stderr=log, text=True,
                                       env=environment))
            cleanup.callback(processes[-1].wait)
            cleanup.callback(processes[-1].kill)
        for line in processes[0].stdout:
            done = int(line)
            if done == EXCHANGE:
                bed.set_speeds()
            if left and done >= left[0][0]:
                _, rank, speed, rate = left.pop(0)
                bed.become(cluster_of(rank, speed, rate))
                made.append((done // EXCHANGE, rank, speed, rate))
        codes = [process.wait() for process in processes]
    if any(codes):
        logs = "".join(f"{path.name}: {path.read_text()[-800:]}\n" for path in sorted(folder.glob("log-*")))
        raise machines.Failed(f"drift_recorder: exit codes {codes}\n{logs}")
    return made


def text_of(name, folder, made, elements):
    """The recording as drift_bench reads it."""
    ranks = [(folder / f"rank-{rank}").read_text().splitlines() for rank in range(len(NAMES))]
    links = (folder / "links").read_text().splitlines()
    figures = [[list(map(float, line.split())) for line in lines] for lines in ranks]
    seconds = statistics.median(max(of[0] + of[3] for of in exchange) for exchange in zip(*figures)) * 1e-6
    lines = [f"job {name} {seconds:.4g} {elements} {len(NAMES)}"]
    for exchange, together in enumerate(zip(*ranks)):
        step = exchange * EXCHANGE
        if step % PROBE == 0 and step // PROBE < len(links):
            lines.append(f"links {links[step // PROBE]}".rstrip())
        lines += [f"change {rank} {speed:g} {rate:g}" for at, rank, speed, rate in made if at == exchange]
        lines.append(" ".join(together))
    return "\n".join(lines) + "\n"


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=pathlib.Path, help="the file for the recordings")
    parser.add_argument("--load", type=int, action="append", help="processes of other work (default: 0, 4 and 10, in turn)")
    parser.add_argument("--quiet", type=int, default=20000, help="steps without a change (default: %(default)d)")
    parser.add_argument("--rounds", type=int, default=3, help="changes of each kind, of each machine (default: %(default)d)")
    parser.add_argument("--work", type=int, default=300, help="passes over 2 MB in a step (default: %(default)d)")
    parser.add_argument("--elements", type=int, default=60_000, help="gradients that are summed (default: %(default)d)")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/tests", help="the folder of drift_recorder")
    return parser.parse_args(words)


def record(options):
    machines.check()
    changes, steps = schedule(options.quiet, options.rounds)
    model = next((line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    text = (f"# {len(NAMES)} machines of {CPU}% of a core and {MBIT} Mbit/s, on {os.cpu_count()} x {model}, Linux "
            f"{platform.release()}.\n# tests/system/testbed/record_drift.py --quiet {options.quiet} --rounds {options.rounds} "
            f"--work {options.work} --elements {options.elements}\n")
    with options.output.open("w") as output, machines.sole_user(), machines.Bed(cluster_of()) as bed:
        for load in options.load or (0, 4, 10):
            print(f"load {load}: {steps} steps, {len(changes)} changes", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix=f"{machines.PREFIX}-") as work, other_work(load):
                folder = pathlib.Path(work)
                made = run(bed, options.bin / "drift_recorder", folder, changes, steps, options.work, options.elements)
                text += text_of(f"load-{load}", folder, made, options.elements)
        output.write(text)
    return 0


def main():
    options = parse(sys.argv[1:])
    return testbed.ended(lambda: record(options))


if __name__ == "__main__":
    sys.exit(main())
