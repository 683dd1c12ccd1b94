#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""AGPCS's reducers beside Horovod 0.28.1, PyTorch's DistributedDataParallel and one all-reduce by Gloo, on the same
gradients, between processes of this machine. Prints a markdown table.

    python3 tests/bench/coordination/reducer_peers.py --bench build/release/tests/gradient_reducer_bench --venv build/peers

Horovod is built from its source package into --venv (minutes), against the PyTorch of --python. Rounds: ours, Horovod,
DDP, again and again; the table has the medians over all steps, and ratios to Gloo's all-reduce of the same round.
"""
import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time

SETS = ("resnet50", "bert", "small")
PACKAGES = ["setuptools<66", "wheel", "cloudpickle", "psutil", "pyyaml", "packaging", "cffi", "pybind11==2.10.4"]


def arrival(count, rng):
    """About the order of a backward pass: up to sixteen places from it (as in gradient_reducer_bench.cc)."""
    return [g for _, g in sorted((g + rng.randrange(16), g) for g in range(count))]


def install(venv, python):
    """Builds Horovod's Gloo variant; returns the venv's python, or None and says what failed."""
    inside = os.path.join(venv, "bin", "python")
    if not os.path.exists(inside):
        subprocess.run([python, "-m", "venv", "--system-site-packages", venv], check=True)
    if subprocess.run([inside, "-c", "import horovod.torch"], capture_output=True).returncode == 0:
        return inside
    subprocess.run([inside, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    headers = subprocess.run([inside, "-c", "import pybind11; print(pybind11.get_include())"], check=True,
                             capture_output=True, text=True).stdout.strip()
    flags = dict(HOROVOD_WITHOUT_MPI="1", HOROVOD_WITH_GLOO="1", HOROVOD_WITH_PYTORCH="1",
                 HOROVOD_WITHOUT_TENSORFLOW="1", HOROVOD_WITHOUT_MXNET="1", MAKEFLAGS="-j1",
                 CPLUS_INCLUDE_PATH=headers)  # Debian's PyTorch includes pybind11, and does not bring it
    built = subprocess.run([inside, "-m", "pip", "install", "--no-build-isolation", "--no-binary", "horovod",
                            "horovod==0.28.1"], env={**os.environ, **flags}, capture_output=True, text=True)
    if built.returncode == 0:
        return inside
    print("Horovod could not be built:\n" + "\n".join(built.stderr.splitlines()[-15:]), file=sys.stderr)
    return None


def report(rank, name, seconds, extra=None):
    if rank == 0:
        print("RESULT " + json.dumps({"way": name, "seconds": seconds, **(extra or {})}), flush=True)


def grouped(sizes, groups):
    """Indices of gradients in `groups` runs of about the same size."""
    runs, filled, share = [[] for _ in range(groups)], 0, sum(sizes) / groups
    for g, size in enumerate(sizes):
        runs[min(groups - 1, int(filled / share))].append(g)
        filled += size
    return [run for run in runs if run]


def work_horovod(sizes, steps, name):
    import horovod.torch as hvd
    import torch
    hvd.init()
    groups = int(os.environ.get("PEER_GROUPS", "0"))
    torch.set_num_threads(1)
    rng = random.Random(hvd.rank())
    gradients = [torch.ones(n) for n in sizes]
    seconds = []
    for step in range(steps + 3):
        for gradient in gradients:
            gradient.fill_(1)
        order = arrival(len(sizes), rng)
        hvd.barrier()
        begin = time.perf_counter()
        if groups == 0:
            handles = [hvd.allreduce_async_(gradients[g], op=hvd.Sum, name=f"g{g}") for g in order]
        else:
            handles = [hvd.grouped_allreduce_async_([gradients[g] for g in members], op=hvd.Sum, name=f"group{i}")
                       for i, members in enumerate(grouped(sizes, groups))]
        for handle in handles:
            hvd.synchronize(handle)
        took = time.perf_counter() - begin
        assert gradients[-1][0] == hvd.size()
        slowest = hvd.allreduce(torch.tensor([took], dtype=torch.float64), op=hvd.Max, name="took").item()
        if step >= 3:
            seconds.append(slowest)
    report(hvd.rank(), name, seconds)
    hvd.shutdown()


def work_ddp(sizes, steps, name):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    class Weights(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(n)) for n in reversed(sizes))

        def forward(self):
            return Sum.apply(*self.weights)

    class Sum(torch.autograd.Function):  # a backward pass that costs as little as can be
        @staticmethod
        def forward(ctx, *weights):
            ctx.gradients = [torch.ones_like(w) for w in weights]
            return torch.zeros(())

        @staticmethod
        def backward(ctx, _):
            Sum.begin = time.perf_counter()
            return tuple(ctx.gradients)

    model = torch.nn.parallel.DistributedDataParallel(Weights(), gradient_as_bucket_view=True)
    seconds = []
    for step in range(steps + 3):
        loss = model()
        dist.barrier()
        loss.backward()
        took = torch.tensor([time.perf_counter() - Sum.begin], dtype=torch.float64)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        if step >= 3:
            seconds.append(took.item())
    report(dist.get_rank(), name, seconds)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def results_of(text):
    return [json.loads(line.split("RESULT ", 1)[1]) for line in text.splitlines() if "RESULT " in line]


def run_horovod(python, ranks, args, environment):
    launcher = [python, os.path.join(os.path.dirname(python), "horovodrun"), "-np", str(ranks), "--gloo"]
    done = subprocess.run([*launcher, python, __file__, "--work", "horovod", *args], capture_output=True, text=True,
                          env={**os.environ, **environment}, timeout=600)
    return results_of(done.stdout) or print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr) or []


def run_ddp(python, ranks, args):
    common = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(ranks))
    ranks_running = [subprocess.Popen([python, __file__, "--work", "ddp", *args], stdout=subprocess.PIPE, text=True,
                                      env={**os.environ, **common, "RANK": str(r)}) for r in range(ranks)]
    texts = [process.communicate(timeout=600)[0] for process in ranks_running]
    return results_of(texts[0])


def run_ours(bench, ranks, name, seconds):
    done = subprocess.run([bench, "steps", str(ranks), name, str(seconds)], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def measure(options, python, ranks, name):
    """By way: milliseconds and ratios to Gloo of each round, and counts."""
    rows = {}

    def add(way, milliseconds, gloo, messages=None, size=None, control=None):
        row = rows.setdefault(way, {"ms": [], "ratio": [], "messages": messages, "bytes": size, "control": []})
        row["ms"].append(milliseconds)
        row["ratio"].append(milliseconds / gloo)
        if control is not None:
            row["control"].append(control)

    for _ in range(options.rounds):
        ours = run_ours(options.bench, ranks, name, options.seconds)
        gloo = next(line["median_ms"] for line in ours if line["way"] == "gloo")
        for line in ours:
            add(line["way"], line["median_ms"], gloo, line["messages"], line["message_bytes"], line["control_ms"])
        args = ["--set", name, "--bench", options.bench, "--steps", str(options.steps)]
        peers = []
        if options.horovod:
            peers += run_horovod(python, ranks, [*args, "--name", "Horovod"], {})
            if name == "small":  # its default is 1,024 answers
                peers += run_horovod(python, ranks, [*args, "--name", "Horovod, cache of 4,096"],
                                     {"HOROVOD_CACHE_CAPACITY": "4096"})
            peers += run_horovod(python, ranks, [*args, "--name", "Horovod, 5 groups"],
                                 {"HOROVOD_CACHE_CAPACITY": "4096", "PEER_GROUPS": "5"})
            peers += run_horovod(python, ranks, [*args, "--name", "Horovod, no cache"], {"HOROVOD_CACHE_CAPACITY": "0"})
        peers += run_ddp(python, ranks, [*args, "--name", "PyTorch DDP"])
        for peer in peers:
            add(peer["way"], statistics.median(peer["seconds"]) * 1e3, gloo)
    return rows


def print_rows(ranks, name, rows):
    for way, row in rows.items():
        ratio = statistics.median(row["ratio"])
        spread = f"{min(row['ratio']):.2f} to {max(row['ratio']):.2f}"
        counted = row["messages"] is not None and way != "gloo"
        messages = f"{row['messages']:.0f} ({row['bytes']:.0f} B)" if counted else "-"
        print(f"| {name} | {ranks} | {way} | {statistics.median(row['ms']):.2f} | {ratio:.2f} | {spread} | {messages} |",
              flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--venv", default="build/peers")
    parser.add_argument("--python", default="/usr/bin/python3", help="has PyTorch")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="of ours, a round")
    parser.add_argument("--steps", type=int, default=10, help="of each peer, a round")
    parser.add_argument("--work", choices=["horovod", "ddp"], help=argparse.SUPPRESS)
    parser.add_argument("--set", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.bench = os.path.abspath(options.bench)
    if options.work:
        text = subprocess.run([options.bench, "sizes", options.set], capture_output=True, text=True, check=True).stdout
        work = work_horovod if options.work == "horovod" else work_ddp
        work([int(word) for word in reversed(text.split())], options.steps, options.name)
        return
    python = install(options.venv, options.python)
    options.horovod = python is not None
    python = python or os.path.join(options.venv, "bin", "python")
    print("| set | ranks | way | ms a step | to Gloo | range | messages a step |\n| --- | ---: | --- | ---: | ---: | --- | ---: |")
    for ranks in options.ranks:
        for name in options.sets:
            print_rows(ranks, name, measure(options, os.path.abspath(python), ranks, name))


if __name__ == "__main__":
    main()
