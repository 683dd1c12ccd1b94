#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the bytes that a step of agpcs.torch.Job has at a time, by what the ranks of a stage divide, beside what the plan counts.

    PYTHONPATH=build/release/python PYTHON tests/bench/torch/job_memory.py

A GPT of 8 layers, width 256, with AdamW, on two ranks that own 3 parts and 1 part of all that they divide. Bytes are those that
PyTorch's allocator on the CPU has given and not got back: of parameters, gradients, state, activations and buckets that travel.
"""

import argparse
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests/system/python"))
from cases import divided, gathered, on_ranks  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

import agpcs  # noqa: E402
import agpcs.torch  # noqa: E402
from agpcs import _torch_job  # noqa: E402
from agpcs._job.memory import plan_data  # noqa: E402

WIDTH, LAYERS, WORDS, TIMES, BATCH, MICRO_BATCHES, STEPS = 256, 8, 512, 32, 8, 2, 3
CLUSTER = """\
device_kinds:
  cpu: {peak: {fp32: 40 GFLOPS}, memory: 4 GiB, memory_bandwidth: 10 GB/s}
hosts:
  - name: a
    devices: {kind: cpu, count: 2}
    interconnect: {kind: tcp, bandwidth: 2 GB/s, latency: 20 us}
    nic: {bandwidth: 10 Gbit/s, latency: 20 us}
training: {batch: 8, optimizer: {kind: adamw}}
"""
PARTS = ("parameters", "gradients", "optimizer", "activations", "transfers", "workspace")
LEVELS = ("nothing", "optimizer", "gradients", "parameters")


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.position = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(1, TIMES, WIDTH) / 50)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True)
                                    for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("mask", torch.triu(torch.full((TIMES, TIMES), -1e9), 1))

    def forward(self, words):
        x = self.table(words) + self.position
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.head(self.norm(x)).transpose(1, 2)


def batch():
    words = torch.randint(0, WORDS, (BATCH, TIMES + 1), generator=torch.Generator().manual_seed(1))
    return words[:, :-1], words[:, 1:]


def optimizer_of(parameters):
    return torch.optim.AdamW([parameter for _, parameter in parameters], lr=1e-3)


def peak(rank, plan):
    """The most bytes that live at a time in the last step."""
    from torch.profiler import ProfilerActivity, profile, record_function
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        job = agpcs.torch.Job(Gpt(), plan, nn.functional.cross_entropy, optimizer_of, batch())
        for step in range(STEPS):
            with record_function(f"agpcs-step-{step}"):
                job.step(batch())
    events = profiler.profiler.kineto_results.events()
    begin = next(event.start_ns() for event in events if event.name() == f"agpcs-step-{STEPS - 1}")
    live = most = 0
    for event in sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live) if event.start_ns() >= begin else live
    return most


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--weights", type=int, nargs=2, default=(3, 1), help="of what each rank owns")
    weights = parser.parse_args().weights
    _, _, file = _torch_job.exported(Gpt(), batch(), None, ("logits",), {})
    with tempfile.TemporaryDirectory() as folder:
        cluster = pathlib.Path(folder, "cluster.yaml")
        cluster.write_text(CLUSTER)
        plain = agpcs.plan(file, cluster, layout="a/0,a/1", micro_batches=MICRO_BATCHES, bound=False, all_reduce="ring",
                           bucket_bytes=sum(p.numel() for p in Gpt().parameters()) // 4)
        makes = {"nothing": lambda: plain, "optimizer": lambda: divided(plain, *weights),
                 "gradients": lambda: divided(plain, *weights, level="gradients"),
                 "parameters": lambda: gathered(plain, *weights, model=file, cluster=CLUSTER)}
        print("| ranks divide | rank | predicted MB | live MB | live / predicted |\n| --- | --- | --- | --- | --- |")
        for level in LEVELS:
            plan = makes[level]()
            memory = plan_data(plan, file, cluster)["memory"]
            for rank, live in enumerate(on_ranks(peak, plan)):
                assert isinstance(live, int), live
                planned = sum(memory[rank][part] for part in PARTS)
                print(f"| {level} | {rank} | {planned / 1e6:.1f} | {live / 1e6:.1f} | {live / planned:.3f} |", flush=True)


if __name__ == "__main__":
    main()
