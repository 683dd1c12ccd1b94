#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts as a user plans it: exported from PyTorch without values, and planned by agpcs-compile.

    PYTHONPATH=build/release/python experts_space.py [--batch N]... [--bin build/release/bin]

A GPT of 4 layers, each with 16 experts, which get tokens by the routing of docs/reference/onnx_import.md ("Mixtures of
experts"), on eight H100 of one host, in bf16 with Adam. Prints a row for each batch: the step of the plan, of that without
teams, and of three layouts with one micro-batch: one team of eight, two teams of four, and plain data parallelism.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional

import agpcs.torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
WIDTH, HEADS, TOKENS, WORDS, EXPERTS, GROUPS, CAPACITY, LAYERS = 1024, 16, 512, 1000, 16, 4, 12, 4
CLUSTER = """hosts: [{name: h, devices: {kind: H100-SXM5-80GB, count: 8}, interconnect: nvswitch-h100}]
training: {precision: bf16, loss: softmax_cross_entropy, optimizer: {kind: adam}}
"""


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.empty(EXPERTS, WIDTH, 4 * WIDTH))
        self.down = nn.Parameter(torch.empty(EXPERTS, 4 * WIDTH, WIDTH))

    def forward(self, x):
        whole = x.shape
        x = x.reshape(-1, GROUPS, TOKENS // GROUPS, WIDTH)
        p = self.gate(x).softmax(-1)
        mine = functional.one_hot(p.argmax(-1), EXPERTS).to(x.dtype)
        place = ((mine.cumsum(2) - mine) * mine).sum(-1)
        slot = (place.unsqueeze(-1) == torch.arange(CAPACITY, device=x.device)).to(x.dtype)
        send = mine.unsqueeze(-1) * slot.unsqueeze(-2)
        sent = torch.einsum("ngsec,ngsd->ngecd", send, x)
        made = functional.gelu(torch.einsum("ngecd,edf->ngecf", sent, self.up))
        y = torch.einsum("ngecf,efd->ngecd", made, self.down)
        return torch.einsum("ngsec,ngecd->ngsd", send * p.unsqueeze(-1), y).reshape(whole)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.experts = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Experts()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        query, key, value = (part.view(-1, TOKENS, HEADS, WIDTH // HEADS).transpose(1, 2)
                             for part in self.qkv(self.norm1(x)).split(WIDTH, -1))
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(-1, TOKENS, WIDTH))
        return x + self.experts(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layers = nn.Embedding(WORDS, WIDTH), nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        return self.head(self.norm(self.layers(self.words(ids))))


def layout(batch, teams):
    """All devices in so many teams, which take equally many samples."""
    devices = [f"h/{i}" for i in range(8)]
    size = 8 // teams
    return ",".join("+".join(devices[size * i:size * (i + 1)]) + f":{batch // teams}" for i in range(teams))


def step(command, *words):
    """The step of the plan in ms, and what it is like."""
    done = subprocess.run([command, *words, "--json", "-o", os.devnull], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        return "does not fit"
    if done.returncode:
        sys.exit(f"experts_space.py: {done.stderr}")
    plan = json.loads(done.stdout)
    teams = sum(stage["members"] > 1 for stage in plan["stages"])
    words = f"{len(plan['stages'])} stage{'s' * (len(plan['stages']) > 1)}" + f", {teams} with teams" * (teams > 0)
    return f"{1e3 * plan['step_seconds']:.2f} ({words})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    options = parser.parse_args()
    command = options.bin / "agpcs-compile"
    heads = ["batch", "plan, ms", "without teams", "one team of 8", "two teams of 4", "data parallel"]
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        model, cluster = pathlib.Path(folder, "experts.onnx"), pathlib.Path(folder, "cluster.yaml")
        cluster.write_text(CLUSTER)
        with torch.device("meta"):
            gpt = Gpt()
        agpcs.torch.export(gpt, (torch.zeros(2, TOKENS, dtype=torch.long, device="meta"),), model, input_names=["ids"],
                           weights=False)
        for batch in options.batch or (16, 64, 256):
            given = (model, cluster, "--batch", str(batch))
            cells = [step(command, *given), step(command, *given, "--without", "teams")]
            cells += [step(command, *given, "--micro-batches", "1", "--layout", layout(batch, teams)) for teams in (1, 2, 8)]
            print(f"| {batch} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
