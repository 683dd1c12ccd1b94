#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job on a test bed of unequal machines: steps as planned by agpcs.torch.profile, and as measured.

    job_bed.py [CASE...]      needs root, as the test bed does (docs/design/testbed.md); CASE is a pattern
    job_bed.py --list

Each case is a model on a cluster. Its ranks, of one thread each, measure a profile once. By it, the bench plans several
pipelines: as agpcs.torch.plan does for the ranks' devices (`search`), with a machine a stage (`pipeline`), with two stages
of two machines (`2x2`), and with a machine a stage and as many layers in each (`equal`), where machines that are all alike
would have such stages. All of them train in turns, in rounds. The table has
the medians of steps. "Slower now" is how many times longer the profile's passes take between the jobs' steps than they took for
the profile, by rank: a shared machine changes its speed within minutes. "At this speed" is the error of what the same plans take
by the profile with times that are so much longer. Gains are those of `pipeline` over `equal`, with the same stages and
micro-batches.
Run it with a Python that has PyTorch 2.6 or newer, and with the package on PYTHONPATH.
"""

import contextlib
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time
import warnings

from ranks import chosen, keep_memory, parser_of, pause, ranks_on

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/system/testbed"), str(ROOT / "tests/system/python")]
BATCH, LAYERS, WORDS, CLASSES = 64, 12, 1000, 10
MEMORY_BYTES = 4 << 30  # of all ranks

# --- the models ------------------------------------------------------------------------------------------------------


def models():
    """By name: (module, loss_fn, a batch)"""
    import torch
    from torch import nn
    from torch.nn import functional

    class Encoder(nn.Module):
        """A transformer for classification."""

        def __init__(self, width=128):
            super().__init__()
            self.table = nn.Embedding(WORDS, width)
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True) for _ in range(LAYERS))
            self.head = nn.Linear(width, CLASSES)

        def forward(self, tokens):
            x = self.table(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.head(x.mean(1))

    class Convolutions(nn.Module):
        """Of equal layers behind the first, with group norm."""

        def __init__(self, width=32):
            super().__init__()
            self.first = nn.Conv2d(3, width, 3, 1, 1)
            self.layers = nn.ModuleList(nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.GroupNorm(4, width), nn.ReLU())
                                        for _ in range(LAYERS))
            self.head = nn.Linear(width, CLASSES)

        def forward(self, x):
            x = self.first(x)
            for layer in self.layers:
                x = layer(x)
            return self.head(x.mean((2, 3)))

    class Block(nn.Module):
        def __init__(self, width, heads=4):
            super().__init__()
            self.heads, self.before, self.between = heads, nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            return x + self.mlp(self.between(x))

    class Gpt(nn.Module):
        """A decoder: a label for each position."""

        def __init__(self, width=96, tokens=48):
            super().__init__()
            self.table, self.position = nn.Embedding(WORDS, width), nn.Parameter(torch.zeros(1, tokens, width))
            self.layers = nn.ModuleList(Block(width) for _ in range(LAYERS))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

        def forward(self, tokens):
            x = self.table(tokens) + self.position
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x)).transpose(1, 2)

    def words(tokens):
        return torch.randint(0, WORDS, (BATCH, tokens))

    def classes():
        return torch.randint(0, CLASSES, (BATCH,))

    torch.manual_seed(0)
    loss = functional.cross_entropy
    return {"encoder": (Encoder, loss, lambda: (words(32), classes())),
            "cnn": (Convolutions, loss, lambda: (torch.randn(BATCH, 3, 24, 24), classes())),
            "gpt": (Gpt, loss, lambda: (words(48), words(48)))}


MODELS = ("encoder", "cnn", "gpt")

# --- a rank ----------------------------------------------------------------------------------------------------------


def rank_main(name, folder, options):
    from unittest import mock

    import torch
    torch.set_num_threads(1)
    import torch.distributed as dist

    import agpcs.torch
    from agpcs import _torch_job, _torch_profile
    keep_memory()
    kind, loss_fn, batch_of = models()[name]
    model, batch = kind(), batch_of()

    def optimizer_of(parameters):
        return torch.optim.SGD([parameter for _, parameter in parameters], lr=1e-3, momentum=0.9)

    dist.init_process_group("gloo")
    # Exporting takes half a minute on a slow machine: it is done once, and while machines are fast.
    known = _torch_job.exported(model, batch, None, ("logits",), {})
    for module in (_torch_job, _torch_profile):
        mock.patch.object(module, "exported", lambda *_: known).start()
    noted = []  # the Passes of the profile

    def noting(*arguments, of=_torch_profile.Passes):
        noted.append(of(*arguments))
        return noted[0]

    mock.patch.object(_torch_profile, "Passes", noting).start()
    pause()
    begin = time.monotonic()
    agpcs.torch.profile(model, loss_fn, optimizer_of, batch, cluster=f"{folder}/datasheet.yaml",
                        path=f"{folder}/job.profile.yaml", seconds=options.seconds)
    measuring = time.monotonic() - begin
    times = min(noted[0].times(), key=lambda one: abs(one.samples - 4))
    profiled = sum(map(sum, times.nodes.values()))
    pause()
    with open(f"{folder}/plans.json", encoding="utf-8") as file:
        plans = json.load(file)
    jobs = {way: agpcs.torch.Job(kind(), f"{folder}/{way}.plan", loss_fn, optimizer_of, batch, trace=options.drift)
            for way in plans}
    pause()
    taken, alone = {way: [] for way in jobs}, []
    for job in jobs.values():
        for _ in range(2):
            job.step(batch)
    for i in range(options.rounds):
        for way in list(jobs)[::-1 if i % 2 else 1]:
            dist.barrier()
            alone += [sum(noted[0].step(times.samples)[:2]) for _ in range(3)]
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(options.steps):
                jobs[way].step(batch)
            taken[way].append((time.perf_counter() - begin) / options.steps)
    for way, job in jobs.items() if options.drift else ():
        job.write_trace(f"{folder}/{way}.json")
    slower = [None] * dist.get_world_size()
    dist.all_gather_object(slower, statistics.median(alone) / profiled)
    if dist.get_rank() == 0:
        print(json.dumps({"taken": taken, "measuring": measuring, "slower": slower}), flush=True)
    dist.barrier()
    os._exit(0)  # nothing is left to do


# --- the bench -------------------------------------------------------------------------------------------------------


def clusters_of():
    from clusters import uneven
    return {cluster.name: cluster for cluster in (
        # Looked at while profiles and costs were made.
        uneven("tune", a=(70, 800), b=(45, 800), c=(30, 800)),
        uneven("two", a=(80, 500), b=(40, 500)),
        uneven("three", a=(80, 1000), b=(50, 1000), c=(25, 1000)),
        uneven("four", a=(50, 1000), b=(50, 1000), c=(30, 1000), d=(20, 1000)),
        # These judged without fillers, with 32 samples a step.
        uneven("pair", a=(75, 300), b=(45, 300)),
        uneven("trio", a=(65, 500), b=(45, 500), c=(35, 500)),
        uneven("quad", a=(45, 800), b=(40, 800), c=(35, 800), d=(25, 800)),
        # These judge.
        uneven("duo", a=(70, 400), b=(50, 400)),
        uneven("triad", a=(70, 600), b=(50, 600), c=(30, 600)),
        uneven("tetrad", a=(50, 1000), b=(45, 1000), c=(35, 1000), d=(30, 1000)),
    )}


def file_of(name, folder):
    """The exported model, and its module."""
    from agpcs import _torch_job
    kind, _, batch_of = models()[name]
    model, batch = kind(), batch_of()
    return _torch_job.exported(model, batch, None, ("logits",), {})[2]


def plans_of(cluster, file, folder):
    """The plans by name; `equal` is that of machines that are all alike, with what it takes on these."""
    import clusters

    import agpcs
    text = cluster_file(cluster, "job.profile.yaml")
    (folder / "cluster.yaml").write_text(text)
    devices = clusters.devices(cluster)
    fastest = max(machine.cpu for machine in cluster.machines)
    alike = re.sub(r"(?m)^  (cpu-[0-9.]+): \{", rf"  \1: {{profile: job.profile.yaml#{clusters.kind(fastest)}, ", text)
    (folder / "alike.yaml").write_text(alike)

    machines = "|".join(devices)
    plans = {"pipeline": planned(file, folder / "cluster.yaml", layout=machines),
             "search": planned(file, folder / "cluster.yaml", on_all(devices))}
    if len(devices) == 4:
        plans["2x2"] = planned(file, folder / "cluster.yaml", layout=f"{devices[0]},{devices[2]}|{devices[1]},{devices[3]}")
    of_alike = planned(file, folder / "alike.yaml", layout=machines, micro_batches=plans["pipeline"].micro_batches,
                       cut_at="modules")
    counts = layers_of(of_alike, file, folder / "alike.yaml")
    if max(counts) == min(counts):
        plans["equal"] = on_cluster_of(of_alike, plans["pipeline"])
    else:
        print(f"no plan of equal layers: {counts}", file=sys.stderr)
    found = {}
    for way, plan in plans.items():
        if plan.text not in [other.text for other in found.values()]:
            found[way] = plan
            plan.save(folder / f"{way}.plan")
    (folder / "plans.json").write_text(json.dumps(list(found)))
    return found, {way: simulated(plan, file, folder / "cluster.yaml") for way, plan in found.items()}


def planned(file, cluster, by=None, **options):
    import agpcs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (by or agpcs.plan)(model=file, cluster=cluster, all_reduce="ring", bound=False, without=["state"], **options)


def on_cluster_of(plan, other):
    """A plan, which says that it is for the cluster file of the other one."""
    import agpcs
    own = re.search(r"(?m)^cluster .*$", other.text)[0]
    return agpcs.Plan(re.sub(r"(?m)^cluster .*$", own, plan.text))


def at_this_speed(cluster, plans, file, folder, slower):
    """What the plans take on ranks that are `slower` than they were for the profile, by way."""
    import clusters

    from agpcs import _agpcs
    factors = {}
    for (machine, _), factor in zip(clusters.ranks(cluster), slower):
        factors.setdefault(clusters.kind(machine.cpu), []).append(factor)
    lines, factor = [], 1.0
    for line in (folder / "job.profile.yaml").read_text().splitlines():
        if re.fullmatch(r"  cpu-\S+:", line):
            factor = statistics.fmean(factors[line.strip(" :")])
        if re.match(r" +(- \{(samples|optimizer)|message_compute): ", line):
            line = re.sub(r"(forward|backward|update|begin|message_compute): ([-+.0-9e]+)",
                          lambda found: f"{found[1]}: {float(found[2]) * factor!r}", line)
        lines += [] if line.startswith("digest:") else [line]
    (folder / "now.profile.yaml").write_text(_agpcs.sealed_profile("\n".join(lines) + "\n", "the profile at this speed"))
    (folder / "now.yaml").write_text(cluster_file(cluster, "now.profile.yaml"))
    of_now = planned(file, folder / "now.yaml", layout=",".join(clusters.devices(cluster)))
    return {way: simulated(on_cluster_of(plan, of_now), file, folder / "now.yaml") for way, plan in plans.items()}


def on_all(devices):
    """As agpcs.torch.plan plans for these devices."""
    from agpcs._job.replan import plan_on
    return lambda model, cluster, **options: plan_on(devices, model, cluster, **options)


def cluster_file(cluster, profile=None):
    """The cluster file's text."""
    import clusters
    text = clusters.cluster_yaml(cluster, MEMORY_BYTES, profile)
    training = f"training: {{batch: {BATCH}, loss: softmax_cross_entropy, optimizer: {{kind: sgd, momentum: 0.9}}}}\n"
    return text.replace(clusters.training_yaml(), training)


def layers_of(plan, file, cluster):
    """How many layers each stage has, a layer's first operator telling where it is."""
    data = json.loads(plan._command("json", [plan, "--model", file, "--cluster", str(cluster)]))
    first = {}
    for operator in data["operators"]:
        number = re.match(r"layers\.(\d+)\b", operator["name"])
        if number:
            first.setdefault(int(number[1]), operator["stage"])
    return [list(first.values()).count(stage["name"]) for stage in data["stages"]]


def simulated(plan, file, cluster):
    return json.loads(plan._command("explain", [plan, file, str(cluster)], "--json"))["step_seconds"]


def run_case(bed, name, options):
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(options.work or stack.enter_context(tempfile.TemporaryDirectory())).absolute()
        folder.mkdir(exist_ok=True)
        (folder / "datasheet.yaml").write_text(cluster_file(bed.cluster))
        file = file_of(name, folder)
        words = ["--rank", name, "--work", str(folder), "--seconds", str(options.seconds), "--rounds", str(options.rounds),
                 "--steps", str(options.steps), *["--drift"] * options.drift]
        ranks = stack.enter_context(ranks_on(bed, __file__, *words))
        ranks.paused()
        bed.lift_speeds()
        plans, predicted = plans_of(bed.cluster, file, folder)
        ranks.go()
        ranks.paused()
        bed.set_speeds()
        ranks.go()
        result = json.loads(ranks.last_line())
        bed.lift_speeds()
        for way, plan in plans.items() if options.drift else ():
            print(plan._command("drift", [plan, str(folder / f"{way}.json")]), file=sys.stderr)
        now = at_this_speed(bed.cluster, plans, file, folder, result["slower"])
    return plans, predicted, now, result


HEAD = """\
| case | plan | stages, samples | micro-batches | predicted ms | measured ms | rounds ms | error | slower now | at this speed |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def rows(name, plans, predicted, now, result):
    """Signed errors by way, as predicted and at this speed, and the lines of the table."""
    errors, lines = {}, []
    for way, plan in plans.items():
        taken = result["taken"][way]
        measured = statistics.median(taken)
        errors[way] = predicted[way] / measured - 1, now[way] / measured - 1
        stages = " \\| ".join(
            " ".join(f"{device.partition('/')[0]} {samples}" for device, samples in zip(stage.devices, stage.samples))
            for stage in plan.stages)
        lines.append(f"| {name} | {way} | {stages} | {plan.micro_batches} | {1e3 * predicted[way]:.1f} | {1e3 * measured:.1f} | "
                     f"{1e3 * min(taken):.1f} to {1e3 * max(taken):.1f} | {errors[way][0]:+.1%} | "
                     f"{', '.join(f'{one:.2f}' for one in result['slower'])} | {errors[way][1]:+.1%} |")
    return errors, lines


def main():
    parser = parser_of(__doc__, "two/*")
    parser.add_argument("--seconds", type=float, default=45, help="of measuring a profile (default: %(default)g)")
    parser.add_argument("--rounds", type=int, default=8, help="of each case (default: %(default)d)")
    parser.add_argument("--steps", type=int, default=3, help="of a round, by each plan (default: %(default)d)")
    parser.add_argument("--drift", action="store_true", help="says what was off in each plan's steps, which are traced for it")
    parser.add_argument("--work", metavar="FOLDER", help="keeps cluster files, profiles and plans there")
    options = parser.parse_args()
    if options.rank:
        return rank_main(options.rank, options.work, options)
    import compare
    import machines
    cases = chosen({f"{cluster.name}/{model}": (cluster, model) for cluster in clusters_of().values() for model in MODELS},
                   options, HEAD)
    errors, gains = [], []
    with machines.sole_user():
        for cluster in dict.fromkeys(cluster for cluster, _ in cases):
            with machines.Bed(cluster) as bed:
                for model in (model for where, model in cases if where is cluster):
                    plans, predicted, now, result = run_case(bed, model, options)
                    found, lines = rows(f"{cluster.name}/{model}", plans, predicted, now, result)
                    print("\n".join(lines), flush=True)
                    errors += found.values()
                    if "equal" in plans:
                        measured = {way: statistics.median(result["taken"][way]) for way in ("pipeline", "equal")}
                        gains.append((f"{cluster.name}/{model}", *(1 - times["pipeline"] / times["equal"]
                                                                   for times in (predicted, now, measured))))
    print()
    for what, signed in zip(("as predicted", "at this speed"), zip(*errors)):
        sizes = [abs(error) for error in signed]
        print(f"error of {len(sizes)} plans {what}: median {statistics.median(sizes):.1%}, 90th percentile "
              f"{compare.quantile(sizes, 0.9):.1%}, signed median {statistics.median(signed):+.1%}")
    for case, predicted, now, measured in gains:
        print(f"{case}: planned stages gain {predicted:.1%} as predicted, {now:.1%} at this speed, {measured:.1%} as measured "
              f"({100 * (predicted - measured):+.1f} points, {100 * (now - measured):+.1f} at this speed)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
