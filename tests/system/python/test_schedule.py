#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`agpcs-plan export --format torch-schedule`: PyTorch's pipeline runtime trains by a plan's schedule what one process
trains."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import cases  # skips without PyTorch
import torch
from torch import nn

import agpcs

try:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
except ImportError:
    PipelineStage = None

BATCH, STAGES = 16, 4
TOOL = pathlib.Path(os.environ["AGPCS_BIN_DIR"]) / "agpcs-plan"
CLUSTER = """
name: four
device_kinds: {cpu: {memory: 2GB, memory_bandwidth: 20GB/s, peak: {fp32: 50GFLOPS}}}
hosts: [{name: local, devices: {kind: cpu, count: 4}, interconnect: {kind: shm, bandwidth: 5GB/s, latency: 20us}}]
training: {batch: 16, optimizer: {kind: sgd, momentum: 0.9}}
"""


class Chain(nn.Module):
    """Four layers, each of which becomes a stage."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(STAGES)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    @staticmethod
    def samples(count, generator):
        return {"x": torch.randn(count, 12, generator=generator), "labels": torch.randint(0, 12, (count,), generator=generator)}


def batch():
    return tuple(Chain.samples(BATCH, torch.Generator().manual_seed(3)).values())


def schedule_of(folder, **options):
    cluster = pathlib.Path(folder) / "cluster.yaml"
    cluster.write_text(CLUSTER)
    plan = agpcs.plan(cases.exported(Chain), cluster, layout="|".join(f"local/{r}" for r in range(STAGES)), batch=BATCH,
                      **options)
    path = pathlib.Path(folder) / "chain.plan"
    plan.save(path)
    return subprocess.run([TOOL, "export", path, "--format", "torch-schedule"], capture_output=True, text=True, check=False)


def pipelined(rank, path, micro_batches):
    """The loss and the gradients of one step by the schedule in `path`, of this rank's layer."""
    module = cases.build(Chain).layers[rank]
    stage = PipelineStage(module, rank, STAGES, torch.device("cpu"))
    runtime = _PipelineScheduleRuntime([stage], micro_batches, loss_fn=nn.functional.cross_entropy)
    runtime._load_csv(path, format="compute_only")
    x, labels = batch()
    losses = []
    runtime.step(*([x] if rank == 0 else []), target=labels if rank == STAGES - 1 else None, losses=losses)
    return [each.item() for each in losses], [value.grad.tolist() for value in module.parameters()]


@unittest.skipUnless(PipelineStage, f"PyTorch {torch.__version__} has no torch.distributed.pipelining")
class Schedule(unittest.TestCase):
    def test_trains_what_one_process_trains(self):
        with tempfile.TemporaryDirectory() as folder:
            done = schedule_of(folder, micro_batches=4)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(done.stdout.splitlines()), STAGES)
            self.assertIn("0F3", done.stdout)
            path = pathlib.Path(folder) / "schedule.csv"
            path.write_text(done.stdout)
            ranks = cases.on_ranks(pipelined, str(path), 4, ranks=STAGES)
            module = cases.build(Chain)
            x, labels = batch()
            loss = nn.functional.cross_entropy(module(x), labels)
            loss.backward()
            self.assertAlmostEqual(sum(ranks[-1][0]) / 4, loss.item(), places=5)
            for layer, (_, gradients) in zip(module.layers, ranks):
                for value, gradient in zip(layer.parameters(), gradients):
                    torch.testing.assert_close(torch.tensor(gradient), value.grad, rtol=1e-4, atol=1e-6)

    def test_refuses_unequal_micro_batches(self):
        with tempfile.TemporaryDirectory() as folder:
            done = schedule_of(folder, micro_batches=3)
            self.assertEqual(done.returncode, 1)
            self.assertIn("a batch of 16 in 3 micro-batches", done.stderr)


if __name__ == "__main__":
    unittest.main()
