#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted steps of PyTorch on this CPU, from a trace of torch.profiler and from agpcs-profile's own measurements.

    kineto_bench.py [--bin build/release/bin] [MODEL...]     MODEL: resnet18, bert, llama

Each model trains in PyTorch for some steps without a profiler, then for seven that torch.profiler traces, and again
without. `agpcs-profile --from-kineto` makes a profile of the trace, with the model and without, `agpcs-profile` measures
one of its own, and `agpcs-compile` plans one device with each. The table has the median steps of PyTorch without the
profiler, and what each plan expects. The trace has steps of one number of samples; the last row of a model asks for
twice as many. Run it with a Python that has PyTorch, torchvision and transformers, and with the package on PYTHONPATH.
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402: it reads the number of threads
from torch.nn.functional import cross_entropy  # noqa: E402

import agpcs.torch  # noqa: E402
from ranks import model_of  # noqa: E402

SAMPLES, TRACED, STEPS = 8, 7, 15
CLUSTER = """name: one
device_kinds:
  cpu: {{memory: 8GB, profile: {profile}}}
hosts:
  - name: a
    devices: {{kind: cpu, count: 1}}
    interconnect: {{kind: tcp, bandwidth: 1GB/s, latency: 1us}}
    nic: {{bandwidth: 1GB/s, latency: 1us}}
network: {{topology: switch}}
training: {{optimizer: {{kind: sgd, learning_rate: 0.01, momentum: 0.9}}}}
"""


class Classes(torch.nn.Module):
    """A model of transformers whose output is its logits, with classes as their second axis."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        logits = self.model(input_ids=input_ids, use_cache=False).logits
        return logits.movedim(-1, 1) if logits.dim() > 2 else logits


def trained(name):
    """(module, inputs and labels of n samples)"""
    module, _, sample = model_of(name)
    if name == "resnet18":
        return module, lambda n: (torch.randn(n, 3, 64, 64), torch.randint(0, 10, (n,)))
    labels = tuple(sample["labels"].shape[1:])
    classes = 2 if name == "bert" else 2000
    return Classes(module), lambda n: (torch.randint(0, 2000, (n, 64)), torch.randint(0, classes, (n, *labels)))


def stepper(module, batch):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    inputs, labels = batch

    def step():
        optimizer.zero_grad()
        cross_entropy(module(inputs), labels).backward()
        optimizer.step()
    return step


def seconds_of(step):
    for _ in range(3):
        step()
    taken = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begin)
    return taken


def trace(step, path):
    from torch.profiler import ProfilerActivity, profile, schedule
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True,
                 schedule=schedule(wait=0, warmup=2, active=TRACED, repeat=1)) as profiler:
        for _ in range(2 + TRACED):
            step()
            profiler.step()
    profiler.export_chrome_trace(path)


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{done.stderr}")
    return done.stdout


def expected(commands, model, profile, batch):
    cluster = profile.with_suffix(".cluster.yaml")
    cluster.write_text(CLUSTER.format(profile=profile.name))
    plan = run(commands / "agpcs-compile", model, cluster, "--batch", str(batch), "--seeder", "data_parallel",
               "--refiner", "none", "-o", "-")
    value, unit = re.search(r"^  step ([\d.]+)(\w+)$", plan, re.M).groups()
    return float(value) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit]


def rows_of(name, commands, folder):
    module, batch_of = trained(name)
    module.train()
    model = folder / f"{name}.onnx"
    agpcs.torch.export(module, batch_of(4)[:1], str(model))
    steps = {samples: stepper(module, batch_of(samples)) for samples in (SAMPLES, 2 * SAMPLES)}
    taken = {samples: seconds_of(step) for samples, step in steps.items()}
    trace(steps[SAMPLES], str(folder / "trace.json"))
    for samples, step in steps.items():
        taken[samples] += seconds_of(step)
    ways = {"trace and model": folder / "exact.yaml", "trace": folder / "fits.yaml", "own": folder / "own.yaml"}
    kineto = [commands / "agpcs-profile", "--from-kineto", folder / "trace.json", "--kind", "cpu"]
    run(*kineto, model, "-o", ways["trace and model"])
    run(*kineto, "-o", ways["trace"])
    run(commands / "agpcs-profile", model, "--kind", "cpu", "--threads", "1", "--seconds", "20",
        "--samples", f"{SAMPLES},{2 * SAMPLES}", "-o", ways["own"])
    for samples, seconds in taken.items():
        measured = statistics.median(seconds)
        cells = [f"{name}, {samples}", f"{1e3 * measured:.1f}"]
        for profile in ways.values():
            predicted = expected(commands, model, profile, samples)
            cells.append(f"{1e3 * predicted:.1f} ({100 * (predicted / measured - 1):+.1f}%)")
        yield cells


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["resnet18", "bert", "llama"], metavar="MODEL")
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| model, samples | measured ms | trace and model ms | trace alone ms | agpcs-profile ms |")
    print("| --- | --- | --- | --- | --- |")
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            for cells in rows_of(name, arguments.bin.resolve(), pathlib.Path(folder)):
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
