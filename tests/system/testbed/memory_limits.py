#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains plans under memory limits: what is predicted to fit trains, and what is predicted not to fit is killed.

    sudo tests/system/testbed/memory_limits.py [MODEL] [--chain NAME]... [--bin build/release/bin]

A chain of plans for two ranks: the first has memory enough, and each next one is what `agpcs-compile` makes of less memory
than the one before it takes. `state`: the ranks divide the optimizer's state, then gradients, then parameters, too.
`recompute`: they recompute more and more. `pipeline`: two stages recompute more and more. Each plan trains some steps as
ranks of agpcs-run, each rank in a memory cgroup of its own: without a limit, for the most that a rank has; with the memory
that the plan is predicted to take; and with that of the next plan, which is too little for it, where that is less by more
than predictions may be off. To each limit come these 5%, and what a process takes that trains next to nothing.

Exit codes: 0 done and as predicted, 1 a plan trained that should not, or did not that should, 77 this machine cannot,
130 stopped.
"""

import argparse
import contextlib
import json
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import typing

import machines
import suite
import testbed
from commands import place_environment

ROOT = pathlib.Path(__file__).resolve().parents[3]
TINY = ROOT / "samples/models/small_cnn.onnxtxt"
ROOMY = 64 << 30
MARGIN = 1.05
STEPS = 3
LIMIT = 600  # seconds
RANKS = 2
CLUSTER = """name: limited
device_kinds: {{core: {{memory: {memory}B, memory_bandwidth: 10GB/s, peak: {{fp32: 50GFLOPS}}, launch_overhead: 20us}}}}
hosts:
  - name: local
    devices: {{kind: core, count: 2}}
    interconnect: {{kind: tcp, bandwidth: 2GB/s, latency: 20us}}
training: {{batch: {batch}, optimizer: {optimizer}}}
"""
ADAM, SGD = "{kind: adam, learning_rate: 0.0001}", "{kind: sgd, learning_rate: 0.0001, momentum: 0}"


class Chain(typing.NamedTuple):
    layout: str
    micro_batches: int
    batch: int
    optimizer: str
    steps: tuple  # (part of what the plan before took, what --without takes) of each plan


WHOLE = ("state", "gradients")
CHAINS = {
    "state": Chain("local/0,local/1", 1, 4, ADAM, ((1, WHOLE), (0.995, ("gradients",)), (0.995, ("parameters",)), (0.995, ()))),
    "recompute": Chain("local/0,local/1", 1, 16, SGD, ((1, WHOLE), (0.9, WHOLE), (0.95, WHOLE))),
    "pipeline": Chain("local/0|local/1", 4, 32, SGD, ((1, WHOLE), (0.9, WHOLE), (0.95, WHOLE))),
}


def environments():
    """The environment of each rank of a job on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    return [os.environ | place_environment(["here"] * RANKS, rank, "127.0.0.1", port, token) for rank in range(RANKS)]


def trained(command, limit=None):
    """Runs a command as all ranks, each of which may have `limit` bytes. Returns whether they trained to the end, and not
    one of them was killed for memory, and the most bytes that a rank had. Raises Failed where they failed otherwise."""
    with contextlib.ExitStack() as cleanup:
        groups = [cleanup.enter_context(machines.MemoryCgroup(rank, limit)) for rank in range(RANKS)]
        processes, logs = [], []
        for group, environment in zip(groups, environments()):
            logs.append(cleanup.enter_context(tempfile.TemporaryFile("w+")))
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=logs[-1], env=environment,
                                              preexec_fn=group.enter))
            cleanup.callback(processes[-1].wait)
            cleanup.callback(processes[-1].kill)
        codes = [process.wait(LIMIT) for process in processes]
        peak = max(group.peak() for group in groups)
        if limit is not None and -signal.SIGKILL in codes:
            return False, peak
        if not any(codes):
            return True, peak
        texts = []
        for log in logs:
            log.seek(0)
            texts.append(log.read()[-800:])
        raise machines.Failed("\n".join([f"{' '.join(map(str, command))}: exit codes {codes}", *texts]))


class Work:
    def __init__(self, binaries, folder):
        self.binaries, self.folder = binaries, folder

    def plan(self, name, chain, model, memory, without):
        """(plan, bytes of its peak) for ranks with so much memory."""
        cluster, plan = self.folder / f"{name}.yaml", self.folder / f"{name}.plan"
        cluster.write_text(CLUSTER.format(memory=memory, batch=chain.batch, optimizer=chain.optimizer))
        command = [self.binaries / "agpcs-compile", model, cluster, "-o", plan, "--layout", chain.layout, "--micro-batches",
                   str(chain.micro_batches), "--no-bound", "--threads", "1", "--json"]
        for what in without:
            command += ["--without", what]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise machines.Failed(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
        return plan, json.loads(done.stdout)["peak_memory_bytes"]

    def train(self, plan, model, limit=None):
        return trained([self.binaries / "agpcs-run", plan, model, "--steps", str(STEPS), "--threads", "1", "--json"], limit)

    def chain(self, name, model):
        """(plan, bytes of its peak) of each plan of a chain."""
        chain, memory, plans = CHAINS[name], ROOMY, []
        for number, (part, without) in enumerate(chain.steps):
            memory = int(memory * part)
            plans.append(self.plan(f"{name}-{number}", chain, model, memory, without))
            memory = plans[-1][1]
        return plans


def said(fits):
    return "trains" if fits else "is killed"


def megabytes(count):
    return f"{count / 1e6:.0f}"


def measure(options, folder):
    work = Work(options.bin, folder)
    tiny, predicted = work.plan("tiny", CHAINS["state"], TINY, ROOMY, ())
    base = work.train(tiny, TINY)[1] - predicted
    print(f"a process that trains next to nothing has {megabytes(base)} MB\n")
    print("| chain | ranks divide | recompute | predicted MB | measured MB | measured / predicted | with its memory "
          "| with that of the next |")
    print("|" + " --- |" * 8, flush=True)
    wrong = 0
    for name in options.chain or CHAINS:
        plans = work.chain(name, options.model)
        for (plan, predicted), (_, less) in zip(plans, [*plans[1:], (None, None)]):
            _, peak = work.train(plan, options.model)
            fits, _ = work.train(plan, options.model, base + int(predicted * MARGIN))
            too_little = less is not None and less * MARGIN < predicted / MARGIN
            still = too_little and work.train(plan, options.model, base + int(less * MARGIN))[0]
            wrong += not fits or still
            print(f"| {name} | {' | '.join(suite.form_of(plan))} | {megabytes(predicted)} | {megabytes(peak - base)} | "
                  f"{(peak - base) / predicted:.3f} | {said(fits)} | {said(still) if too_little else '-'} |", flush=True)
    return 1 if wrong else 0


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=pathlib.Path, default=ROOT / "samples/models/bert_base.onnx")
    parser.add_argument("--chain", choices=CHAINS, action="append")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    return parser.parse_args(words)


def run(options):
    with machines.sole_user(), tempfile.TemporaryDirectory(prefix=f"{machines.PREFIX}-") as folder:
        return measure(options, pathlib.Path(folder))


def main():
    options = parse(sys.argv[1:])
    return testbed.ended(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
