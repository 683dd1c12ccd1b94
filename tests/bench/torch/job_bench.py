#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step of agpcs.torch.Job beside one of PyTorch's own pipelining (torch.distributed.pipelining, Schedule1F1B) with the
same stages, parameters, micro-batches and optimizer.

    job_bench.py [--model encoder] [--width 128] [--micro-batches 8] [--rounds 10] [--steps 10]

Two ranks of this machine over Gloo, one thread each; 32 samples; in two stages a transformer encoder of four layers, of 32
tokens, or a CNN of six convolutions, of 3x16x16 pixels (`--model cnn`, width 32 suits it). The rounds take both ways in
turns. The table has medians of the rounds: milliseconds of a step, processor milliseconds of both ranks in it, and the
ratio with its 95% interval by bootstrap. At first, one step of each way from the same parameters must give the same
gradients.

The last lines say what Job itself costs, of each rank, in two ways. "Beside a plain loop": steps of Job and of a loop
written by hand take turns, one by one; the share is that of the processor time of Job's step by which it exceeds the
loop's. The loop calls the user's own modules, with the messages that the plan has, and does nothing else. "Outside of
calls": the share of Job's step, by the clock, outside of the stage's passes, the loss, the optimizer's step, calls of
torch.distributed and waits.

Run it with PyPI's PyTorch (2.6 or newer) and the package on PYTHONPATH.
"""

import argparse
import collections
import contextlib
import io
import pathlib
import statistics
import sys
import time
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests/system/python"))
import cases  # noqa: E402
from interval import interval  # noqa: E402
from ranks import keep_memory  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # noqa: E402

import agpcs  # noqa: E402
import agpcs.torch  # noqa: E402
from agpcs._job import buckets, links  # noqa: E402

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

    def halves(self):
        """The stages of the plan, as functions of this module."""
        return nn.Sequential(self.table, *self.layers[:2]), lambda x: self.head(self.layers[3](self.layers[2](x)).mean(1))

    @staticmethod
    def samples(generator):
        return torch.randint(0, WORDS, (BATCH, TOKENS), generator=generator)


class Cnn(nn.Module):
    def __init__(self, width):
        super().__init__()
        widths = [3, *[width] * 6]
        self.layers = nn.Sequential(*(part for a, b in zip(widths, widths[1:])
                                      for part in (nn.Conv2d(a, b, 3, 1, 1), nn.GroupNorm(4, b), nn.ReLU())))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))

    def halves(self):
        """The stages of the plan, as functions of this module."""
        return self.layers[:9], lambda x: self.head(self.layers[9:](x).mean((2, 3)))

    @staticmethod
    def samples(generator):
        return torch.randn(BATCH, 3, 16, 16, generator=generator)


MODELS = {"encoder": Encoder, "cnn": Cnn}


class Part(nn.Module):
    """A stage of the job, as PyTorch's pipelining wants one: a tensor in, a tensor out."""

    def __init__(self, stage):
        super().__init__()
        self.stage = stage

    def forward(self, x):
        values, outputs = self.stage(x.shape[0], x)
        return (*values, *outputs)[0]


class Plain:
    """Steps of one of two stages, `half`, as one writes them by hand. Like the plan, the first is one micro-batch ahead."""

    def __init__(self, half, optimizer, rank, micro_batches, shape):
        self._half, self._optimizer, self._count = half, optimizer, micro_batches
        self._shape = shape  # of what is sent
        self.step = self._first if rank == 0 else self._second
        self._to_second, self._to_first = dist.new_group([0, 1]), dist.new_group([0, 1])

    def _first(self, batch):
        self._optimizer.zero_grad()
        under_way = collections.deque()
        for inputs in (*batch[0].chunk(self._count), None):
            if inputs is not None:
                output = self._half(inputs)
                sent = dist.isend(output.detach(), 1, group=self._to_second)
                gradient = torch.empty_like(output)
                under_way.append((output, sent, gradient, dist.irecv(gradient, 1, group=self._to_first)))
            if len(under_way) == 2 or inputs is None:
                output, sent, gradient, received = under_way.popleft()
                received.wait()
                output.backward(gradient)
                sent.wait()
        self._optimizer.step()

    def _second(self, batch):
        self._optimizer.zero_grad()
        losses, sent = [], []
        x, received = self._received()
        for target in batch[1].chunk(self._count):
            received.wait()
            loss = nn.functional.cross_entropy(self._half(x.requires_grad_()), target) / self._count
            losses.append(loss.detach())
            following = self._received() if len(losses) < self._count else (None, None)
            loss.backward()
            sent.append((dist.isend(x.grad, 0, group=self._to_first), x))
            x, received = following
        self._optimizer.step()
        for work, _ in sent:
            work.wait()
        return sum(losses)

    def _received(self):
        x = torch.empty(self._shape)
        return x, dist.irecv(x, 0, group=self._to_second)


class Outside:
    """Seconds within calls that are not Job's own, the outermost ones only."""

    def __init__(self):
        self.seconds, self._inside = 0.0, False

    def timed(self, function):
        def call(*arguments, **options):
            if self._inside:
                return function(*arguments, **options)
            self._inside, begin = True, time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - begin
                self._inside = False
        return call

    def around(self, job):
        stack = contextlib.ExitStack()
        stage, = job._player._stages.values()
        for owner, name in ((stage, "compute"), (job._mean_loss, "_loss_fn"), (job.optimizer, "step"),
                            (torch.autograd, "backward"), (links.Works, "wait"), (buckets.Bucket, "wait"), (dist, "isend"),
                            (dist, "irecv"), (dist, "all_reduce")):
            stack.enter_context(mock.patch.object(owner, name, self.timed(getattr(owner, name))))
        return stack


def model_of(name, width):
    torch.manual_seed(1)
    return MODELS[name](width)


def batch_of(name, seed):
    generator = torch.Generator().manual_seed(seed)
    return MODELS[name].samples(generator), torch.randint(0, CLASSES, (BATCH,), generator=generator)


def plan_of(name, width, micro_batches):
    file = io.BytesIO()
    agpcs.torch.export(model_of(name, width), batch_of(name, 0)[:1], file)
    return agpcs.plan(file.getvalue(), cases.CLUSTER, layout="local/0|local/1", micro_batches=micro_batches, bound=False)


def seconds_by_way(rank, name, width, plan, rounds, steps):
    """(by way the seconds and processor seconds of a step in each round; Job's own shares, as lists of steps)."""
    keep_memory()
    model = model_of(name, width)
    job = agpcs.torch.Job(model, plan, nn.functional.cross_entropy,
                          lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9), batch_of(name, 0))
    part = next(iter(job._player._stages.values())).part  # the job's own stage
    module = part.module  # with its parameters
    schedule = Schedule1F1B(PipelineStage(Part(module), rank, 2, torch.device("cpu")), plan.micro_batches,
                            loss_fn=nn.functional.cross_entropy)

    def torch_step(batch):
        job.optimizer.zero_grad()
        if rank == 0:
            schedule.step(batch[0])
        else:
            schedule.step(target=batch[1], losses=[])
        job.optimizer.step()

    value = (part.sent or part.received)[0]
    plain = Plain(model.halves()[rank], job.optimizer, rank, plan.micro_batches, (BATCH // plan.micro_batches, *value.shape))
    ways = {"agpcs.torch.Job": job.step, "torch.distributed.pipelining": torch_step, "plain loop": plain.step}
    gradients = {}
    kept = [parameter.detach().clone() for parameter in module.parameters()]
    for way, step in ways.items():
        step(batch_of(name, 1))
        gradients[way] = [parameter.grad.clone() for parameter in module.parameters()]
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), kept):
                parameter.copy_(value)
    for way in list(ways)[1:]:
        for a, b in zip(gradients["agpcs.torch.Job"], gradients[way]):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    taken = {way: [] for way in ways}
    for step in ways.values():
        for i in range(3):
            step(batch_of(name, i))
    for _ in range(rounds):
        for way, step in ways.items():
            batches = [batch_of(name, i) for i in range(steps)]
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            for batch in batches:
                step(batch)
            taken[way].append(((time.perf_counter() - begin) / steps, (time.process_time() - used) / steps))
    return taken, (shares_beside(job, plain, name, rounds * steps), shares_outside(job, name, rounds * steps))


def shares_beside(job, plain, name, steps):
    """By step, the share of Job's processor time that exceeds the plain loop's."""
    shares = []
    for i in range(steps):
        batch, used = batch_of(name, i), []
        for step in (job.step, plain.step) if i % 2 else (plain.step, job.step):
            dist.barrier()
            begin = time.process_time()
            step(batch)
            used.append(time.process_time() - begin)
        own, without = used if i % 2 else reversed(used)
        shares.append(1 - without / own)
    return shares


def shares_outside(job, name, steps):
    """By step, the share of Job's step outside of calls that are not its own."""
    outside, shares = Outside(), []
    with outside.around(job):
        for i in range(steps):
            batch = batch_of(name, i)
            outside.seconds, begin = 0.0, time.perf_counter()
            job.step(batch)
            shares.append(1 - outside.seconds / (time.perf_counter() - begin))
    return shares


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="encoder")
    for name, default in (("width", 128), ("micro-batches", 8), ("rounds", 10), ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    cases.LIMIT = 1800
    plan = plan_of(arguments.model, arguments.width, arguments.micro_batches)
    by_rank = cases.on_ranks(seconds_by_way, arguments.model, arguments.width, plan, arguments.rounds, arguments.steps)
    for taken, own in by_rank:
        if not isinstance(taken, dict):
            sys.exit(f"{taken}: {own}")
    by_rank, shares = zip(*by_rank)
    print("| way | ms | processor ms |\n| --- | --- | --- |")
    wall, used = {}, {}
    for way in by_rank[0]:
        wall[way] = [max(seconds for seconds, _ in of_ranks) for of_ranks in zip(*(taken[way] for taken in by_rank))]
        used[way] = [sum(seconds for _, seconds in of_ranks) for of_ranks in zip(*(taken[way] for taken in by_rank))]
        print(f"| {way} | {1e3 * statistics.median(wall[way]):.1f} | {1e3 * statistics.median(used[way]):.1f} |")
    for other in list(wall)[1:]:
        for what, seconds in (("ms", wall), ("processor ms", used)):
            ratios = [a / b for a, b in zip(seconds["agpcs.torch.Job"], seconds[other])]
            low, high = interval(ratios)
            print(f"{what}, Job to {other}: {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})")
    for way, of_ranks in zip(("beside a plain loop", "outside of calls"), zip(*shares)):
        said = "; ".join("{:.1%} ({:.1%} to {:.1%})".format(statistics.median(shares), *interval(shares)) for shares in of_ranks)
        print(f"Job's own share {way}, ranks 0 and 1: {said}")


if __name__ == "__main__":
    main()
