#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Llama-3 8B as a user plans it: exported from transformers without values, and planned by agpcs-compile.

    PYTHONPATH=build/release/python llama_space.py [--tokens 2048]... [--cluster NAME]... [--batch-tokens N]... \\
        [--dimension NAME]... [--host-memory 256GB] [--bin build/release/bin]

Prints a row for each length of sequences, batch and cluster: the step with the whole space of plans, how far it is from the
bound, the processor time of the command, and for each dimension of the space (`--without`) the step without it, divided by
that with it, and the processor time then; last without all of them. Training is in fp16 with AdamW. Hosts have memory for the
optimizer's state (0B: none), to which the catalog's PCIe link of each kind leads.
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
import transformers
import yaml

import agpcs.torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
DIMENSIONS = ("state", "gradients", "parameters", "schedules", "interleaved", "segments", "offload", "teams")
BATCH_TOKENS = 1 << 19
CLUSTERS = {
    "v100x4-rtx3090x4": None,  # of the samples
    "mixed-32": None,
    "a100x16": "hosts: [{name: a, count: 2, devices: {kind: A100-SXM4-40GB, count: 8}, interconnect: nvswitch-a100, "
               "nic: {kind: ib-hdr, count: 4}}]",
    "h100x8": "hosts: [{name: h, devices: {kind: H100-SXM5-80GB, count: 8}, interconnect: nvswitch-h100}]",
    "rtx4090x8": "hosts: [{name: r, count: 2, devices: {kind: RTX-4090, count: 4}, interconnect: pcie4x16, "
                 "nic: {bandwidth: 25Gbit/s, latency: 15us}}]",
}


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids).logits


def export(tokens, path):
    config = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=8192, rope_theta=500000.0, use_cache=False)
    with torch.device("meta"):
        model = Logits(transformers.LlamaForCausalLM(config))
    agpcs.torch.export(model, (torch.zeros(2, tokens, dtype=torch.long, device="meta"),), path, input_names=["ids"],
                       weights=False)


def compile_plan(command, model, cluster, batch, without):
    """Returns what agpcs-compile prints as JSON, or None if no plan fits, and its processor seconds."""
    options = [word for dimension in without for word in ("--without", dimension)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([command, model, cluster, "--batch", str(batch), "--precision", "fp16", "--json", "-o", os.devnull,
                           *options], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode not in (0, 3):
        sys.exit(f"llama_space.py: {done.stderr}")
    return (json.loads(done.stdout) if done.returncode == 0 else None), seconds


def write_cluster(name, host_memory, path):
    """Writes the cluster with memory of hosts. Kinds of mixed-32 that have figures of their own get the link that the catalog
    has of such devices."""
    text = CLUSTERS[name] or (ROOT / "samples/clusters" / f"{name}.yaml").read_text()
    cluster = yaml.safe_load(text)
    for host in cluster["hosts"] if host_memory != "0B" else ():
        host["memory"] = host_memory
    links = {"p100": "pcie3x16", "a100": "pcie4x16"}
    for kind, figures in cluster.get("device_kinds", {}).items():
        if "hardware" not in figures:
            figures["host_link"] = links[kind]
    cluster["training"] = {"loss": {"next_token": "auto"}, "optimizer": "adamw"}
    path.write_text(yaml.safe_dump(cluster, sort_keys=False))


def describe(plan):
    stages = plan["stages"]
    divided = sorted({stage["state"] for stage in stages} - {"whole"})
    recompute = sum(stage["recomputed_operators"] > 0 for stage in stages)
    in_host = sum(stage.get("state_in") == "host" for stage in stages)
    words = [f"{len(stages)} stages" if len(stages) > 1 else "1 stage", f"{len(plan['devices'])} devices",
             f"{plan['micro_batches']} micro-batches"]
    words += [f"{recompute} recompute"] * (recompute > 0) + [f"divides {', '.join(divided)}"] * bool(divided)
    words += [f"{in_host} with state in hosts"] * (in_host > 0)
    words += [word for word in ("teams", "interleaved") if plan["seeder"] == word]
    return ", ".join(words)


def row(command, model, tokens, batch, name, cluster, dimensions):
    whole, seconds = compile_plan(command, model, cluster, batch, ())
    cells = [str(tokens), str(batch), name]
    cells += [f"{whole['step_seconds']:.4g}", f"{whole['gap']:.1%}", describe(whole)] if whole else ["does not fit", "", ""]
    print("| " + " | ".join([*cells, f"{seconds:.1f}"]), end=" |", flush=True)
    apart = [(dimension,) for dimension in dimensions]
    for without in apart + [dimensions] * (len(dimensions) > 1):
        less, seconds = compile_plan(command, model, cluster, batch, without)
        cell = ("does not fit" if less is None else f"{less['step_seconds']:.4g} s" if whole is None
                else f"{less['step_seconds'] / whole['step_seconds']:.3f}")
        print(f" {cell} ({seconds:.1f} s)", end=" |", flush=True)
    print(flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument("--cluster", choices=CLUSTERS, action="append")
    parser.add_argument("--batch-tokens", type=int, action="append")
    parser.add_argument("--dimension", choices=DIMENSIONS, action="append")
    parser.add_argument("--host-memory", default="256GB")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    options = parser.parse_args()
    dimensions = tuple(options.dimension or DIMENSIONS)
    heads = ["tokens", "batch", "cluster", "step s", "above the bound", "plan", "processor s",
             *(f"without {dimension}" for dimension in dimensions), *["without all"] * (len(dimensions) > 1)]
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        model, cluster = pathlib.Path(folder, "llama3-8b.onnx"), pathlib.Path(folder, "cluster.yaml")
        for tokens in options.tokens or (2048, 8192):
            export(tokens, model)
            for batch_tokens in options.batch_tokens or (BATCH_TOKENS,):
                for name in options.cluster or CLUSTERS:
                    write_cluster(name, options.host_memory, cluster)
                    row(options.bin / "agpcs-compile", model, tokens, batch_tokens // tokens, name, cluster, dimensions)


if __name__ == "__main__":
    main()
