# SPDX-License-Identifier: Apache-2.0
"""Figures of steps on the GPU: profiles, predicted steps beside measured ones, the executor beside PyTorch, kernels."""

import csv
import json
import statistics

from jobs import LOADED, cluster_of, compile_plan, graph_of, run_job
from mps import part_of_device
from work import CannotRun

# Model, and two numbers of samples a step.
MODELS = {"resnet50": (32, 128), "bert_base": (8, 32), "gpt2": (4, 16)}
SMALL_MODELS = {"conv": (8, 16), "bert": (8, 16)}  # of a rehearsal
SHARES = (100, 50)  # percent of the device's threads
STEPS = 30
OURS = {"replayed as graphs": [], "launched": ["--cuda-graph", "off"]}  # agpcs-run's ways
RATE = 1e-4  # fresh weights of large models must not diverge


def models(work):
    chosen = SMALL_MODELS if work.machine.rehearsal else MODELS
    found = {name: samples for name, samples in chosen.items() if work.machine.model(name)}
    for name in sorted(set(chosen) - set(found)):
        work.note(f"{name} is left out: no {name}.onnx in the folder of --from")
    return found


def profile_of(work, name, samples, percent, environment):
    """A profile of the model on the device, or on a part of it; made once for all parts of the proof."""
    path = work.machine.work / f"profiles/{name}-{percent}.yaml"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        work.need([work.machine.command("agpcs-profile"), work.machine.model(name), "--kind", "gpu", "--transport",
                   work.machine.transport, "--samples", ",".join(map(str, samples)), "--seconds",
                   4 if work.machine.rehearsal else 8, "--threads", 1, "-o", path], environment)
    return path


def profile(work):
    for name, samples in models(work).items():
        path = profile_of(work, name, samples, 100, {})
        (work.folder / f"{name}.txt").write_text(work.need([work.machine.command("agpcs-profile"), "--show", path]))
        work.row("Profiles", model=name, samples=", ".join(map(str, samples)), operators=path.read_text().count("operator:"))
    quick = work.machine.work / "profiles/quick.yaml"
    if not quick.exists():
        work.need([work.machine.command("agpcs-profile"), "--quick", "--kind", "gpu", "--transport", work.machine.transport,
                   "--threads", 1, *(["--seconds", 6] if work.machine.rehearsal else []), "-o", quick])
    work.note("the profiles are in profiles/, beside the report; what is in them, in parts/profile/")


def measured(work, name, batch, path, environment, options=()):
    """Predicted and measured seconds and bytes of a plan for one device with this profile."""
    memory = f"{work.machine.gpus[0]['memory']}MiB" if work.machine.gpus else "4GB"
    cluster = cluster_of(1, batch, f"memory: {memory}, profile: {path}", rate=RATE)
    planned = compile_plan(work, f"{name}-{batch}-{path.stem}", work.machine.model(name), cluster, "--seeder",
                           "data_parallel", "--refiner", "none", "--micro-batches", 1)
    job = run_job(work, planned["plan"], work.machine.model(name), STEPS, ["--fixed-batch", *options], environment)
    steady = [event["seconds"] for event in job.of("step")[STEPS // 3:]]
    return {"predicted": planned["step_seconds"], "measured": statistics.median(steady),
            "peak predicted": planned["peak_memory_bytes"], "peak measured": job.summary.get("peak_memory_bytes"),
            "graph": graph_of(job)}


def predictions(work):
    """Twelve plans of one rank: models, batches, and parts of the device, each a profiled kind."""
    errors, memory = [], []
    for percent in SHARES:
        try:
            with part_of_device(work, percent) as environment:
                for name, samples in models(work).items():
                    path = profile_of(work, name, samples, percent, environment)
                    for batch in samples:
                        found = work.once(f"{name}-{batch}-{percent}",
                                          lambda: measured(work, name, batch, path, environment))
                        errors.append(found["predicted"] / found["measured"] - 1)
                        if found["peak measured"]:
                            memory.append(found["peak predicted"] / found["peak measured"] - 1)
                        work.row("Steps", model=name, batch=batch, percent_of_device=percent,
                                 predicted_ms=1e3 * found["predicted"], measured_ms=1e3 * found["measured"],
                                 error=f"{errors[-1]:+.1%}", peak_predicted_mb=found["peak predicted"] / 1e6,
                                 peak_measured_mb=found["peak measured"] and found["peak measured"] / 1e6,
                                 graph=found["graph"])
        except CannotRun as reason:
            work.note(f"{percent}% of the device: {reason}")
    if not errors:
        raise RuntimeError("no model was measured")
    work.figure("plans", len(errors), target=">= 12")
    work.figure("median error of a step", statistics.median(map(abs, errors)), target="<= 0.05")
    if memory:
        work.figure("median error of peak memory", statistics.median(map(abs, memory)), target="<= 0.05")


def executor(work):
    """agpcs-run on one rank beside PyTorch, eager and compiled, with the same model, samples and optimizer."""
    script = work.machine.root / "tests/gpu/torch_steps.py"
    chosen, seconds = models(work), {}
    try:
        for way in ("replayed as graphs", "launched", "eager", "compile"):  # compiling takes longest
            for name, samples in chosen.items():
                found = work.once(f"{name} {way}", lambda: steps_of(work, script, name, samples, way))
                if "seconds" in found:
                    seconds[name, way] = found["seconds"]
                else:
                    work.note(f"{name}, {way}: {found['why']}")
    finally:
        for name, samples in chosen.items():
            of = {way: taken for (model, way), taken in seconds.items() if model == name}
            work.row("Steps", model=name, batch=samples[-1], **{f"{way}, ms": 1e3 * taken for way, taken in of.items()})
            ours = min((of[way] for way in OURS if way in of), default=None)
            if ours and "eager" in of:
                work.figure(f"speed to PyTorch eager, {name}", of["eager"] / ours, target=">= 0.95")
            if ours and "compile" in of:
                work.figure(f"speed to torch.compile, {name}", of["compile"] / ours)


def steps_of(work, script, name, samples, way):
    """The seconds of a step, and for PyTorch's ways its peak memory; or why there are none."""
    batch = samples[-1]
    if way in OURS:
        found = measured(work, name, batch, profile_of(work, name, samples, 100, {}), {}, OURS[way])
        if way == "replayed as graphs" and found["graph"] != "yes":
            return {"why": found["graph"]}
        return {"seconds": found["measured"]}
    done = work.call([work.machine.torch["python"], script, name, batch, way, "cpu" if work.machine.rehearsal else "cuda"])
    if done.code != 0:
        return {"why": done.last_lines(3)}
    return json.loads(done.output.splitlines()[-1])


def kernels(work):
    """A list of measured kernels, forward and backward, by precision; it goes on where it was cut off."""
    path = work.machine.work / "kernels.csv"
    script = work.machine.root / "tests/gpu/kernels.py"
    try:
        work.need([work.machine.torch["python"], script, path, "cpu" if work.machine.rehearsal else "cuda"])
    finally:
        rows = list(csv.DictReader(path.open())) if path.exists() else []
        counts = {}
        for row in rows:
            counts[row["precision"], row["class"]] = counts.get((row["precision"], row["class"]), 0) + 1
        for (precision, kind), count in sorted(counts.items()):
            work.row("Kernels", precision=precision, kernel_class=kind, measured=count)
    work.note("the list is kernels.csv, beside the report")


def replay(work):
    """What the replayer adds to the calls of NCCL that it makes, and its graph to a graph of the same calls."""
    program = "nccl_replay_emulated" if work.machine.rehearsal else "nccl_replay_bench"
    path = work.machine.program(f"tests/{program}")
    if path is None:
        raise CannotRun(f"{program} is not built")
    said = work.need([path, *(["--divide", 1000] if work.machine.rehearsal else [])], LOADED)
    for row in map(json.loads, filter(lambda line: line.startswith("{"), said.splitlines())):
        work.row("Steps", **row)
        work.figure(f"added to raw NCCL, {row['buckets']}", row["added_us_an_operation"], "us an operation", "<= 5")
        if row.get("graph_ratio") is not None:
            work.figure(f"replay to a graph's, {row['buckets']}", row["graph_ratio"], target="<= 1.02")
