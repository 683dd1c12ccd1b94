#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step of agpcs.torch.Job beside one of PyTorch's own pipelining (torch.distributed.pipelining, Schedule1F1B) with the
same stages, parameters, micro-batches and optimizer.

    job_bench.py [--width 128] [--micro-batches 8] [--rounds 10] [--steps 10]

Two ranks of this machine over Gloo, one thread each; a transformer encoder of four layers, 32 samples of 32 tokens, in two
stages. The rounds take both ways in turns. The table has medians of the rounds: milliseconds of a step, processor
milliseconds of both ranks in it, and the ratio with its 95% interval by bootstrap. At first, one step of each way from the
same parameters must give the same gradients. Run it with PyPI's PyTorch (2.6 or newer) and the package on PYTHONPATH.
"""

import argparse
import io
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests/system/python"))
import cases  # noqa: E402
from interval import interval  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # noqa: E402

import agpcs  # noqa: E402
import agpcs.torch  # noqa: E402

BATCH, TOKENS, WORDS, CLASSES = 32, 32, 1000, 10


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.table = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True) for _ in range(4))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens):
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Part(nn.Module):
    """A stage of the job, as PyTorch's pipelining wants one: a tensor in, a tensor out."""

    def __init__(self, stage):
        super().__init__()
        self.stage = stage

    def forward(self, x):
        values, outputs = self.stage(x.shape[0], x)
        return (*values, *outputs)[0]


def encoder(width):
    torch.manual_seed(1)
    return Encoder(width)


def batch_of(seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(0, WORDS, (BATCH, TOKENS), generator=generator),
            torch.randint(0, CLASSES, (BATCH,), generator=generator))


def plan_of(width, micro_batches):
    file = io.BytesIO()
    agpcs.torch.export(encoder(width), batch_of(0)[:1], file)
    return agpcs.plan(file.getvalue(), cases.CLUSTER, layout="local/0|local/1", micro_batches=micro_batches, bound=False)


def seconds_by_way(rank, width, plan, rounds, steps):
    job = agpcs.torch.Job(encoder(width), plan, nn.functional.cross_entropy,
                          lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9), batch_of(0))
    module = job._player._stage.module  # the job's own stage, with its parameters
    schedule = Schedule1F1B(PipelineStage(Part(module), rank, 2, torch.device("cpu")), plan.micro_batches,
                            loss_fn=nn.functional.cross_entropy)

    def torch_step(batch):
        job.optimizer.zero_grad()
        if rank == 0:
            schedule.step(batch[0])
        else:
            schedule.step(target=batch[1], losses=[])
        job.optimizer.step()

    ways = {"agpcs.torch.Job": job.step, "torch.distributed.pipelining": torch_step}
    gradients = {}
    kept = [parameter.detach().clone() for parameter in module.parameters()]
    for way, step in ways.items():
        step(batch_of(1))
        gradients[way] = [parameter.grad.clone() for parameter in module.parameters()]
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), kept):
                parameter.copy_(value)
    for a, b in zip(*gradients.values()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    taken = {way: [] for way in ways}
    for step in ways.values():
        for i in range(3):
            step(batch_of(i))
    for _ in range(rounds):
        for way, step in ways.items():
            batches = [batch_of(i) for i in range(steps)]
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            for batch in batches:
                step(batch)
            taken[way].append(((time.perf_counter() - begin) / steps, (time.process_time() - used) / steps))
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("width", 128), ("micro-batches", 8), ("rounds", 10), ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    cases.LIMIT = 1800
    plan = plan_of(arguments.width, arguments.micro_batches)
    by_rank = cases.on_ranks(seconds_by_way, arguments.width, plan, arguments.rounds, arguments.steps)
    for result in by_rank:
        if not isinstance(result, dict):
            sys.exit(": ".join(result))
    print("| way | ms | processor ms |\n| --- | --- | --- |")
    wall, used = {}, {}
    for way in by_rank[0]:
        wall[way] = [max(seconds for seconds, _ in of_ranks) for of_ranks in zip(*(taken[way] for taken in by_rank))]
        used[way] = [sum(seconds for _, seconds in of_ranks) for of_ranks in zip(*(taken[way] for taken in by_rank))]
        print(f"| {way} | {1e3 * statistics.median(wall[way]):.1f} | {1e3 * statistics.median(used[way]):.1f} |")
    for what, seconds in (("ms", wall), ("processor ms", used)):
        ratios = [a / b for a, b in zip(*seconds.values())]
        low, high = interval(ratios)
        print(f"{what}: {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
