#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.autoplan on a test bed of unequal machines: predicted steps, measured steps, and plain DDP beside them.

    autoplan_bench.py [CASE...]      needs root, as the test bed does (docs/design/testbed.md); CASE is a pattern
    autoplan_bench.py --list

Each case is a model on a cluster. Every rank runs `autoplan`, then trains in turns by the plan, with equal shares in
plain DistributedDataParallel, and with equal shares in FSDP2, where PyTorch has it. Every other round takes its turns in
reverse. The table has the medians of steps; the intervals are those of the rounds' ratios (95%, by bootstrap). "At this
speed" adds to the prediction what steps without communication, in turns with the others, take longer than they did for
autoplan: a shared machine changes its speed within minutes. Run it with a Python that has PyTorch, torchvision and
transformers, and with the package on PYTHONPATH.
"""

import itertools
import json
import pathlib
import statistics
import sys
import time

from interval import interval
from ranks import chosen, layers_of, model_of, parser_of, pause, ranks_on

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/system/testbed"), str(ROOT / "tests/system/training")]
MOST_STEPS = 10000  # of a case
STEPS = {"alone": 2, "plan": 3, "ddp": 3, "fsdp2": 1}  # of a round; FSDP2's take several times as long


# --- a rank ----------------------------------------------------------------------------------------------------------


def trainer(module, batch, loss_of, weigh=lambda loss: loss):
    """A function that trains `module` for a number of steps, and returns the seconds of each."""
    import torch
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)

    def steps(count):
        taken = []
        for _ in range(count):
            begin = time.perf_counter()
            optimizer.zero_grad()
            weigh(loss_of(module, batch)).backward()
            optimizer.step()
            taken.append(time.perf_counter() - begin)
        return taken
    return steps


def rank_main(name, batch, options):
    import copy

    import torch
    torch.set_num_threads(1)
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # before PyTorch 2.6
        fully_shard = None

    import agpcs.torch
    from agpcs._torch_steps import Steps, batch_size, resized

    module, loss_fn, sample = model_of(name)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pause()

    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
    begin = time.monotonic()
    plan = agpcs.torch.autoplan(module, loss_fn, sample, batch=batch, optimizer=optimizer, seconds=options.seconds,
                                cache=None)
    measuring = time.monotonic() - begin

    sampler = agpcs.torch.PlanSampler(batch * MOST_STEPS, plan)  # it weighs losses; samples are always the same here
    numbers = itertools.count()

    def by_plan(mine):
        ddp = DistributedDataParallel(mine)
        ddp.register_comm_hook(*agpcs.torch.plan_hook(plan, sampler=sampler))
        return ddp

    def by_sampler(loss):
        return sampler.weigh(loss, next(numbers))

    def sharded(mine):
        mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
        for part in [*layers_of(mine), mine]:
            fully_shard(part, mesh=mesh)
        return mine

    def alone(count):
        """This rank's steps without communication, as autoplan measured them: how fast the machine is just now."""
        steps = Steps(module, loss_fn, sample)
        data = steps.batch_of(plan.shares[rank])
        return [sum(steps.step(data)[:2]) for _ in range(count)]

    equal = [batch // ranks + (i < batch % ranks) for i in range(ranks)]
    planned, even = (resized(sample, batch_size(sample), shares[rank]) for shares in (plan.shares, equal))
    ways = {"alone": alone, "plan": trainer(by_plan(copy.deepcopy(module)), planned, loss_fn, by_sampler),
            "ddp": trainer(DistributedDataParallel(copy.deepcopy(module)), even, loss_fn)}
    if fully_shard is not None:
        ways["fsdp2"] = trainer(sharded(copy.deepcopy(module)), even, loss_fn)
    taken = {way: [] for way in ways}
    for steps in ways.values():
        steps(3)
    for i in range(options.rounds):
        for way in list(ways)[::-1 if i % 2 else 1]:
            dist.barrier()
            taken[way].append(statistics.median(ways[way](STEPS[way])))
    now = [None] * ranks
    dist.all_gather_object(now, statistics.median(taken["alone"]))
    if rank == 0:
        print(json.dumps({
            "predicted": plan.estimates.step_seconds, "equal": plan.equal_step_seconds, "taken": taken,
            "slower": max(now) - computing_of(plan), "shares": plan.shares, "measuring": measuring}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def computing_of(plan):
    """The seconds that a plan of one stage expects the slowest rank to compute in a step, without the update."""
    return sum(float(line.split()[2].rstrip("mus")) * {"ms": 1e-3, "us": 1e-6}.get(line[-2:], 1)
               for line in plan.text.splitlines() if line.startswith(("  forward s0", "  backward s0")))


# --- the table -------------------------------------------------------------------------------------------------------


def clusters_of():
    from clusters import uneven
    return {cluster.name: cluster for cluster in (
        uneven("two", a=(80, 2000), b=(40, 2000)),
        uneven("two-slow-link", a=(80, 400), b=(50, 400)),
        uneven("three", a=(80, 1000), b=(50, 1000), c=(25, 1000)),
        uneven("four", a=(50, 1000), b=(50, 1000), c=(30, 1000), d=(15, 1000)),
        uneven("equal", a=(60, 1000), b=(60, 1000)),
    )}


BATCHES = {"resnet18": 32, "bert": 32, "llama": 32}


def run_case(bed, name, options):
    arguments = ["--rank", name, "--seconds", str(options.seconds), "--rounds", str(options.rounds)]
    with ranks_on(bed, __file__, *arguments) as ranks:
        return json.loads(ranks.last_line())


HEAD = """\
| case | shares | predicted ms | measured ms | error | at this speed | plain DDP ms | plan / DDP (95%) | plan / FSDP2 (95%) | of the gain | measuring s |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def ratio(taken, way):
    """The plan's steps to those of another way, with the interval, as text."""
    ratios = [mine / other for mine, other in zip(taken["plan"], taken.get(way, []))]
    if not ratios:
        return ""
    low, high = interval(ratios)
    return f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"


def row(name, result):
    """((error, error at this speed), part of the predicted gain or None, the line of the table)"""
    measured, ddp = (statistics.median(result["taken"][way]) for way in ("plan", "ddp"))
    predicted, equal = result["predicted"], result["equal"]
    gained = (1 - measured / ddp) / (1 - predicted / equal) if equal / predicted > 1.02 else None
    errors = predicted / measured - 1, (predicted + result["slower"]) / measured - 1
    cells = [name, "/".join(map(str, result["shares"])), f"{1e3 * predicted:.1f}", f"{1e3 * measured:.1f}",
             *(f"{error:+.1%}" for error in errors), f"{1e3 * ddp:.1f}",
             ratio(result["taken"], "ddp"), ratio(result["taken"], "fsdp2"), "" if gained is None else f"{gained:.0%}",
             f"{result['measuring']:.0f}"]
    return errors, gained, "| " + " | ".join(cells) + " |"


def main():
    parser = parser_of(__doc__, "two/*")
    parser.add_argument("--seconds", type=float, default=60, help="of measuring, at most (default: %(default)g)")
    parser.add_argument("--rounds", type=int, default=20, help="of each case (default: %(default)d)")
    options = parser.parse_args()
    if options.rank:
        return rank_main(options.rank, BATCHES[options.rank], options)
    import machines
    cases = chosen({f"{cluster.name}/{model}": (cluster, model) for cluster in clusters_of().values() for model in BATCHES},
                   options, HEAD)
    errors, gains = [], []
    with machines.sole_user():
        for cluster in dict.fromkeys(cluster for cluster, _ in cases):
            with machines.Bed(cluster) as bed:
                for model in (model for where, model in cases if where is cluster):
                    error, gained, text = row(f"{cluster.name}/{model}", run_case(bed, model, options))
                    print(text, flush=True)
                    errors.append([abs(each) for each in error])
                    gains += [] if gained is None else [gained]
    raw, adjusted = (statistics.median(column) for column in zip(*errors))
    print(f"\nmedian error {raw:.1%} of {len(errors)} cases, {adjusted:.1%} at the speed of the machine just then"
          + (f"; median part of the predicted gain {statistics.median(gains):.0%} of {len(gains)}" if gains else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
