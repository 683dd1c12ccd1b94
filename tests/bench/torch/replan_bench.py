#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Drift in a PyTorch job on a test bed of unequal machines: how soon the watch names what became slower, and how much of
what a fresh plan would gain the job gains by new shares.

    replan_bench.py [CASE...]      needs root, as the test bed does (docs/design/testbed.md); CASE is a pattern
    replan_bench.py --list

Each case is a model and an event. The job plans by `autoplan`, trains with
`plan_hook(plan, sampler=sampler, replan=True)`, and after 60 steps either the second rank keeps 40% of its CPU quota, or
all rates fall to a quarter. When new shares hold, or 60 steps after the event, the job trains in turns with two others on the machines as they are now: one with the first plan,
and one with a plan that `autoplan` makes anew. The table has medians of steps, and the part of the fresh plan's gain as
the median of the rounds' with its 95% interval by bootstrap. Run it with a Python that has PyTorch, torchvision and
transformers, and with the package on PYTHONPATH.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import sys
import tempfile
import time

from interval import interval
from ranks import chosen, model_of, parser_of, pause, ranks_on

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/system/testbed"), str(ROOT / "tests/system/training")]
CALM, MOST = 60, 60  # steps before the event, and after it until the end of waiting
STEPS, ROUNDS = 6, 9
BATCH = 32


# --- a rank ----------------------------------------------------------------------------------------------------------


class Job:
    """A copy of the model in training by a plan; with `replan` it takes over new shares."""

    def __init__(self, module, loss_fn, sample, plan, replan=False):
        import copy

        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader

        import agpcs.torch
        from agpcs._torch_steps import batch_size, resized

        data = range(100 * BATCH)
        self.sampler = agpcs.torch.PlanSampler(data, plan, dist.get_rank())
        self.told = []  # (step, Change)
        self.steps = 0
        options = {"sampler": self.sampler, "replan": True, "on_drift": self._hear} if replan else {"on_drift": None}
        self._ddp, self._loss = DistributedDataParallel(copy.deepcopy(module)), loss_fn
        self.state, hook = agpcs.torch.plan_hook(plan, self._ddp, **options)
        self._ddp.register_comm_hook(self.state, hook)
        self._optimizer = torch.optim.SGD(self._ddp.parameters(), lr=1e-3, momentum=0.9)
        loader = DataLoader(data, batch_sampler=self.sampler,
                            collate_fn=lambda samples: resized(sample, batch_size(sample), len(samples)))
        self._batches = (each for _ in itertools.count() for each in enumerate(loader))

    def _hear(self, changes):
        self.told += [(self.steps, change) for change in changes]

    def step(self):
        """Returns the seconds of a step."""
        i, batch = next(self._batches)
        begin = time.perf_counter()
        self._optimizer.zero_grad()
        self.sampler.weigh(self._loss(self._ddp, batch), i).backward()
        self._optimizer.step()
        self.steps += 1
        return time.perf_counter() - begin

    def median(self, steps):
        return statistics.median(self.step() for _ in range(steps))

    @property
    def changed(self):
        """Whether new shares hold."""
        replanning = self.state.replanning
        return len(replanning.plans) > 1 and replanning.settled


def rank_main(name, folder):
    import torch
    torch.set_num_threads(1)
    import torch.distributed as dist

    import agpcs.torch

    module, loss_fn, sample = model_of(name)
    dist.init_process_group("gloo")
    pause()

    def plan(cache):
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
        return agpcs.torch.autoplan(module, loss_fn, sample, batch=BATCH, optimizer=optimizer, seconds=30,
                                    cache=f"{folder}/{cache}")

    first = plan("first")
    job = Job(module, loss_fn, sample, first, replan=True)
    before = statistics.median([job.step() for _ in range(CALM)][CALM // 2:])
    early = len(job.told)
    pause()
    for _ in range(MOST):  # all ranks see the same steps, so they stop together
        job.step()
        if job.changed:
            break
    waited = job.steps - CALM
    told = [(step + 1 - CALM, change.text) for step, change in job.told[early:]]
    ways = {"old": Job(module, loss_fn, sample, first), "new": job,
            "fresh": Job(module, loss_fn, sample, fresh := plan("fresh"))}
    for way in ways.values():
        way.median(3)
    taken = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, of_way in ways.items():
            dist.barrier()
            taken[way].append(of_way.median(STEPS))
    if dist.get_rank() == 0:
        print(json.dumps({"before": before, "early": early, "told": told, "waited": waited if job.changed else None,
                          "taken": taken, "shares": [first.shares, job.sampler.shares, fresh.shares]}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


# --- the table -------------------------------------------------------------------------------------------------------


def events_of():
    """By name: the clusters before and after the event."""
    from clusters import uneven
    return {
        "rank": (uneven("rank", a=(60, 2000), b=(60, 2000)), uneven("rank", a=(60, 2000), b=(24, 2000))),
        "third-rank": (uneven("third-rank", a=(50, 2000), b=(50, 2000), c=(50, 2000)),
                       uneven("third-rank", a=(50, 2000), b=(20, 2000), c=(50, 2000))),
        "link": (uneven("link", a=(70, 2000), b=(70, 2000)), uneven("link", a=(70, 500), b=(70, 500))),
    }


def run_case(bed, name, folder, after):
    with ranks_on(bed, __file__, "--rank", name, "--folder", folder) as ranks:
        ranks.paused()
        bed.become(after)
        ranks.go()
        return json.loads(ranks.last_line())


HEAD = """\
| case | ms before | old shares | new shares | fresh plan | of its gain (95%) | named after | new shares after | \
shares: old, new, fresh | told |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def row(name, result):
    """(part of a fresh plan's gain or None, the line of the table)"""
    taken = result["taken"]
    old, new, fresh = (statistics.median(taken[way]) for way in ("old", "new", "fresh"))
    part, said = None, ""
    if fresh < 0.95 * old:  # there is something to gain
        parts = [(o - n) / (o - f) for o, n, f in zip(taken["old"], taken["new"], taken["fresh"])]
        part = statistics.median(parts)
        said = "{:.0%} ({:.0%} to {:.0%})".format(part, *interval(parts))
    told = result["told"]
    cells = [name, *(f"{1e3 * each:.0f}" for each in (result["before"], old, new, fresh)), said,
             str(told[0][0]) if told else "never", str(result["waited"] or ""),
             ", ".join("/".join(map(str, shares)) for shares in result["shares"]),
             "; ".join(text for _, text in told) + (f" ({result['early']} before the event)" if result["early"] else "")]
    return part, "| " + " | ".join(cells) + " |"


def main():
    parser = parser_of(__doc__, "rank/*")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return rank_main(options.rank, options.folder)
    import machines
    cases = chosen({f"{event}/{model}": (event, model) for event in events_of() for model in ("resnet18", "bert", "llama")},
                   options, HEAD)
    parts = []
    with machines.sole_user():
        for event, model in cases:
            before, after = events_of()[event]
            with machines.Bed(before) as bed, tempfile.TemporaryDirectory() as folder:
                part, text = row(f"{event}/{model}", run_case(bed, model, folder, after))
                print(text, flush=True)
                parts += [] if part is None else [part]
    if parts:
        print(f"\nmedian: {statistics.median(parts):.0%} of the gain of a fresh plan, in {len(parts)} cases where it gains 5%")
    return 0


if __name__ == "__main__":
    sys.exit(main())
