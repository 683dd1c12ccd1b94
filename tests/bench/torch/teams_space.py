#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where teams are worth something: a model on clusters with fast links, with slow ones, and of unlike kinds.

    PYTHONPATH=build/release/python teams_space.py [--layers N] [--tokens N] [--batch N]... [--cluster NAME]...
        [--bin build/release/bin]

A GPT of 2,048 hidden elements and (without --tokens) 2,048 tokens, exported from PyTorch without values, in fp16 with Adam. Prints a row for each
cluster and batch: the step of the plan, what it is, the step of the plan without teams (`--without teams`) and the quotient
of both, the processor time of the command and by what factor it is more than without teams, and why there are teams or
none, as `agpcs-plan explain` says it. Ends with 1 if a plan takes longer than the one without teams.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional

import agpcs.torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
WIDTH, HEADS, WORDS = 2048, 16, 32000
HOSTS = {
    "h100x8": "[{name: h, devices: {kind: H100-SXM5-80GB, count: 8}, interconnect: nvswitch-h100}]",
    "a100x16": "[{name: a, count: 2, devices: {kind: A100-SXM4-40GB, count: 8}, interconnect: nvswitch-a100, nic: ib-hdr}]",
    "rtx4090x8": "[{name: r, count: 2, devices: {kind: RTX-4090, count: 4}, interconnect: pcie4x16, nic: ethernet-25g}]",
    "v100pciex8": "[{name: v, count: 2, devices: {kind: V100-PCIe-32GB, count: 4}, interconnect: pcie3x16, nic: ethernet-25g}]",
    "a100x1x8": "[{name: a, count: 8, devices: {kind: A100-SXM4-40GB, count: 1}, nic: ethernet-25g}]",
    "h100x4-v100x4": "[{name: h, devices: {kind: H100-SXM5-80GB, count: 4}, interconnect: nvswitch-h100, nic: roce-100g}, "
                     "{name: v, devices: {kind: V100-SXM2-32GB, count: 4}, interconnect: nvlink2, nic: roce-100g}]",
    "a100x4-v100x4": "[{name: a, devices: {kind: A100-SXM4-40GB, count: 4}, interconnect: nvswitch-a100, nic: roce-100g}, "
                     "{name: v, devices: {kind: V100-SXM2-16GB, count: 4}, interconnect: nvlink2, nic: roce-100g}]",
    "a100x2-v100x2-each": "[{name: m, count: 2, devices: [{kind: A100-PCIe-40GB, count: 2}, {kind: V100-PCIe-16GB, count: 2}], "
                          "interconnect: pcie3x16, nic: ethernet-25g}]",
    "a100x2-v100x4": "[{name: a, devices: {kind: A100-SXM4-40GB, count: 2}, interconnect: nvlink3, nic: ib-hdr}, "
                     "{name: v, devices: {kind: V100-SXM2-32GB, count: 4}, interconnect: nvlink2, nic: ib-hdr}]",
    "h100x2-a100x4": "[{name: h, devices: {kind: H100-SXM5-80GB, count: 2}, interconnect: nvswitch-h100, nic: ib-ndr}, "
                     "{name: a, devices: {kind: A100-SXM4-40GB, count: 4}, interconnect: nvswitch-a100, nic: ib-ndr}]",
}


class Layer(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.tokens = tokens
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        query, key, value = (part.view(-1, self.tokens, HEADS, WIDTH // HEADS).transpose(1, 2)
                             for part in self.qkv(self.norm1(x)).split(WIDTH, -1))
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(-1, self.tokens, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers, tokens):
        super().__init__()
        self.words, self.layers = nn.Embedding(WORDS, WIDTH), nn.Sequential(*(Layer(tokens) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        return self.head(self.norm(self.layers(self.words(ids))))


def run(*words):
    """The exit code, what the command prints, and its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 3):
        sys.exit(f"teams_space.py: {' '.join(map(str, words))}: {done.stderr}")
    return done.returncode, done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def more(seconds, step):
    return f"{100 * (seconds / step - 1):+.1f}%"


def kind(plan):
    stages = plan["stages"]
    words = [f"{len(stages)} stages" if len(stages) > 1 else "1 stage", f"{len(plan['devices'])} devices",
             f"{plan['micro_batches']} micro-batch" + "es" * (plan["micro_batches"] > 1)]
    sizes = sorted({stage["members"] for stage in stages} - {1})
    return ", ".join(words + [f"teams of {' and '.join(map(str, sizes))}"] * bool(sizes))


def alternatives(reasons, step):
    words = []
    for one in reasons["alternatives"]:
        name = "no teams" if one["members"] == 1 else f"teams of {one['members']}"
        words.append(f"{name} {more(one['step_seconds'], step)}" if one["step_seconds"] else f"{name}: {one['why_not']}")
    return words


def why(explained, step):
    """Why a plan has teams, or none, in a line."""
    reasons = explained["teams"]
    if reasons["exchanges"]:
        most = max(reasons["exchanges"], key=lambda one: one["seconds"])
        words = [f"teams exchange {most['seconds'] / step:.1%} of the step, most of it over {most['link']}"]
        return "; ".join(words + alternatives(reasons, step))
    other = reasons["planner"]
    if other["step_seconds"]:
        words = [f"worth nothing: the fastest seed with teams takes {more(other['step_seconds'], step)}, and exchanges "
                 f"{other['exchange_seconds'] / other['step_seconds']:.0%} of its step"]
    else:
        words = [f"worth nothing: {other['why_not']}"]
    return "; ".join(words + alternatives(reasons, step))


def row(commands, folder, model, name, batch):
    """Prints it; returns whether the plan is no slower than the one without teams."""
    cluster, plan = folder / "cluster.yaml", folder / "made.plan"
    cluster.write_text(f"hosts: {HOSTS[name]}\ntraining: {{precision: fp16, loss: {{next_token: auto}}, "
                       "optimizer: {kind: adam}}\n")
    compiled = (commands / "agpcs-compile", model, cluster, "--batch", batch, "--json")
    code, text, seconds = run(*compiled, "-o", plan)
    code_without, text_without, seconds_without = run(*compiled, "--without", "teams", "-o", os.devnull)
    ratio = f"{seconds:.1f} | {seconds / seconds_without:.2f}"
    if code == 3:
        print(f"| {name} | {batch} | does not fit | | | | {ratio} | |", flush=True)
        return code_without == 3
    made = json.loads(text)
    step = made["step_seconds"]
    without = json.loads(text_without)["step_seconds"] if code_without == 0 else None
    ask = () if any(stage["members"] > 1 for stage in made["stages"]) else ("--teams",)
    explained = json.loads(run(commands / "agpcs-plan", "explain", plan, model, cluster, "--json", *ask)[1])
    cells = [name, str(batch), f"{1e3 * step:.1f}", kind(made), f"{1e3 * without:.1f}" if without else "does not fit",
             f"{without / step:.3f}" if without else "", ratio, why(explained, step)]
    print("| " + " | ".join(cells) + " |", flush=True)
    return without is None or step <= without * (1 + 1e-9)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--cluster", choices=HOSTS, action="append")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    options = parser.parse_args()
    heads = ["cluster", "batch", "step ms", "plan", "without teams ms", "without / with", "processor s", "times without teams",
             "why"]
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads), flush=True)
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with torch.device("meta"):
            gpt = Gpt(options.layers, options.tokens)
        ids = torch.zeros(2, options.tokens, dtype=torch.long, device="meta")
        agpcs.torch.export(gpt, (ids,), folder / "gpt.onnx", input_names=["ids"], weights=False)
        for cluster in options.cluster or HOSTS:
            for batch in options.batch or (2, 8, 64):
                good = row(options.bin, folder, folder / "gpt.onnx", cluster, batch) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
