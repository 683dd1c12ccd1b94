# SPDX-License-Identifier: Apache-2.0
"""agpcs-run's jobs on the GPU: training by a plan beside training alone, moves to another plan, ranks that are lost."""

import array
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time

from work import CannotRun, CutOff, end_group

STEPS, TOLERANCE = 20, 1e-4
EXACT = {"NVIDIA_TF32_OVERRIDE": "0"}  # products in fp32 proper: rounding to tf32 depends on how work is divided
# Of several ranks: a kernel that is loaded late may wait for NCCL's kernels, which wait for other ranks. It takes seconds.
LOADED = {"CUDA_MODULE_LOADING": "EAGER"}
STALL_LIMIT, LIMIT = 3, 10  # seconds without a word; seconds from harm to the end of all ranks beyond that

# Layout, micro-batches, samples a step, whether passes are recomputed: a CPU, which draws Dropout's masks itself, then the
# splits of tests/system/training/equality_test.cc.
ON_A_CPU = "one CPU"
SPLITS = {
    ON_A_CPU: ("a/0", 4, 8, False),
    "data parallel, 3 to 1": ("a/0:3,a/1:1", 2, 8, False),
    "two stages": ("a/0|a/1", 4, 8, False),
    "four stages": ("a/0|a/1|a/2|a/3", 4, 8, False),
    "two stages of two replicas": ("a/0:2,a/1:2|a/2:3,a/3:1", 2, 8, False),
    "two stages, recomputed": ("a/0|a/1", 4, 8, True),
    "two stages of two replicas, a prime batch": ("a/0:2,a/1:2|a/2:3,a/3:1", 2, 7, False),
}
CLUSTER = """name: one
device_kinds:
  gpu: {{{kind}}}
hosts:
  - name: a
    devices: {{kind: gpu, count: {count}}}
    interconnect: {{kind: pcie, bandwidth: 12GB/s, latency: 5us}}
    nic: {{bandwidth: 1GB/s, latency: 10us}}
network: {{topology: switch}}
training: {{batch: {batch}, optimizer: {{kind: sgd, learning_rate: {rate}, momentum: 0.9, weight_decay: 1e-4}}}}
"""
ANY_KIND = "memory: 8GB, memory_bandwidth: 500GB/s, peak: {fp32: 10TFLOPS}, launch_overhead: 5us"
# Two processes on one device, of which the second is called far faster than it is: the plan gives it most of the samples, and
# a job that plans anew moves to another.
UNTRUE_CLUSTER = """name: untrue
device_kinds:
  core: {{{core}}}
  fast: {{{fast}}}
hosts:
  - name: local
    devices: [{{kind: core}}, {{kind: fast}}]
    interconnect: {{{link}}}
training: {{batch: {batch}, loss: softmax_cross_entropy, optimizer: {{kind: sgd, learning_rate: {rate}, momentum: 0.9}}}}
"""
# By transport. On a GPU, kernels must take longer than their launches, which take as long on either rank, and drift that
# is no quota must last for half a minute.
UNTRUE = {
    "tcp": {"model": "samples/models/small_cnn.onnxtxt", "steps": 400, "batch": 256, "rate": 0.01,
            "link": "kind: tcp, bandwidth: 2GB/s, latency: 1us", "layout": [],
            "core": "memory: 2GiB, memory_bandwidth: 10GB/s, peak: {fp32: 50GFLOPS}, launch_overhead: 100us",
            "fast": "memory: 2GiB, memory_bandwidth: 40GB/s, peak: {fp32: 200GFLOPS}, launch_overhead: 25us"},
    "nccl": {"model": "gpt2", "steps": 600, "batch": 16, "rate": 1e-4,
             "link": "kind: nvlink, bandwidth: 400GB/s, latency: 1us", "layout": ["--layout", "local/0:2,local/1:14"],
             "core": "memory: 40GiB, memory_bandwidth: 1TB/s, peak: {fp32: 10TFLOPS}, launch_overhead: 5us",
             "fast": "memory: 40GiB, memory_bandwidth: 8TB/s, peak: {fp32: 80TFLOPS}, launch_overhead: 1us"},
}


def cluster_of(count, batch, kind=ANY_KIND, rate=0.05):
    """The text of a cluster file: so many equal devices of one host."""
    return CLUSTER.format(count=count, batch=batch, kind=kind, rate=rate)


class Job:
    """What a job printed."""

    def __init__(self, output):
        self.events = []
        for line in output.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                self.events.append(json.loads(line))

    def of(self, name):
        return [event for event in self.events if event.get("event") == name]

    @property
    def losses(self):
        return [event["loss"] for event in self.of("step")]

    @property
    def summary(self):
        return self.of("summary")[-1]


def compile_plan(work, name, model, cluster, *options):
    """Writes a plan and its cluster file, and returns agpcs-compile's summary, whose "plan" is the plan's path."""
    plan, file = work.folder / f"{name}.plan", work.folder / f"{name}.yaml"
    file.write_text(cluster)
    said = work.need([work.machine.command("agpcs-compile"), model, file, "-o", plan, "--no-bound", "-q", "--json",
                      *options])
    return json.loads(said)


def words(work, plan, model, steps, transport=None):
    return [work.machine.command("agpcs-run"), plan, model, "--local", "--transport", transport or work.machine.transport,
            "--json", "--seed", 11, "--threads", 1, "--steps", steps]


def run_job(work, plan, model, steps=STEPS, options=(), environment=None, transport=None):
    return Job(work.need([*words(work, plan, model, steps, transport), *options], environment))


def read_npy(path):
    """The fp32 values of a .npy file."""
    data = path.read_bytes()
    length = int.from_bytes(data[8:10], "little")
    header = data[10:10 + length].decode("latin-1")
    if "'<f4'" not in header:
        raise RuntimeError(f"{path}: {header.strip()}: not fp32")
    values = array.array("f")
    values.frombytes(data[10 + length:])
    return values


def largest_differences(losses, expected, folder, expected_folder):
    """Relative differences: of the losses, and of parameters by the largest value of each."""
    of_losses = max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(losses, expected))
    of_values = 0.0
    for file in sorted(expected_folder.glob("*.npy")):
        want, got = read_npy(file), read_npy(folder / file.name)
        if len(want) != len(got):
            raise RuntimeError(f"{file.name}: {len(got)} values, {len(want)} in training alone")
        scale = max(map(abs, want), default=0) or 1
        of_values = max([of_values, *(abs(a - b) / scale for a, b in zip(got, want))])
    return of_losses, of_values


class Alone:
    """Training on one rank, by model, micro-batches and batch: what the others must equal."""

    def __init__(self, work):
        self._work = work

    def of(self, model, micro_batches, batch):
        work, name = self._work, f"{model}-alone-{micro_batches}-{batch}"
        folder = work.folder / name

        def train():
            path = work.machine.model(model)
            plan = compile_plan(work, name, path, cluster_of(1, batch), "--layout", "a/0",
                                "--micro-batches", micro_batches)["plan"]
            options = ["--save-parameters", folder, *([] if work.machine.rehearsal else ["--cuda-graph", "off"])]
            return run_job(work, plan, path, options=options, environment=EXACT).losses
        return work.once(name, train), folder


def graph_of(job):
    """Whether steps were replayed as CUDA graphs, or why not; empty where nobody asked."""
    recorded = job.of("recorded")
    return ("yes" if recorded[-1]["replayed"] else recorded[-1]["why"]) if recorded else ""


def equality(work):
    """The plans of the CPU tests: losses of 20 steps and the parameters afterwards, beside one rank's."""
    alone, worst = Alone(work), 0.0
    for model in ("conv", "bert"):
        path = work.machine.model(model)
        for name, (layout, micro_batches, batch, recompute) in SPLITS.items():
            losses, folder = alone.of(model, micro_batches, batch)
            key = re.sub(r"\W+", "-", f"{model}-{name}")

            def train():
                devices = len(re.findall(r"a/", layout))
                plan = pathlib.Path(compile_plan(work, key, path, cluster_of(devices, batch),
                                                 "--layout", layout, "--micro-batches", micro_batches)["plan"])
                if recompute:
                    plan.write_text(plan.read_text().replace("recompute=no", "recompute=yes"))
                job = run_job(work, plan, path, options=["--save-parameters", work.folder / key],
                              environment={**EXACT, **LOADED}, transport="tcp" if name == ON_A_CPU else None)
                return {"losses": job.losses, "graph": graph_of(job)}
            got = work.once(key, train)
            of_losses, of_values = largest_differences(got["losses"], losses, work.folder / key, folder)
            worst = max(worst, of_losses, of_values)
            work.row("Beside training alone", model=model, split=name, losses=of_losses, parameters=of_values,
                     graph=got["graph"])
            if max(of_losses, of_values) > TOLERANCE or losses[0] == losses[-1]:
                work.fault(f"{model}, {name}: losses are off by {of_losses:.2g}, parameters by {of_values:.2g}; at most "
                           f"{TOLERANCE}, and the loss has to change")
    work.figure("largest relative difference", worst, target=f"<= {TOLERANCE}")


def switch(work):
    """A plan that takes one of two equal ranks for far faster: the job notices, plans anew, and moves."""
    untrue, exactly = UNTRUE[work.machine.transport], {**EXACT, **LOADED}
    steps = untrue["steps"]
    model = work.machine.model(untrue["model"]) or work.machine.root / untrue["model"]
    if not model.exists():
        raise CannotRun(f"no {model.name} in the folder of --from")
    plan = compile_plan(work, "untrue", model, UNTRUE_CLUSTER.format(**untrue), *untrue["layout"])["plan"]
    still = work.once("still", lambda: run_job(work, plan, model, steps, environment=exactly).losses)
    job = run_job(work, plan, model, steps, ["--replan", work.folder / "untrue.yaml"], exactly)
    for name in ("drift", "proposed", "kept", "switched", "recorded"):
        work.figure(f"{name} events", len(job.of(name)))
    if not job.of("drift"):
        work.fault("no drift was noticed, although one of two equal ranks is called far faster than the other")
    for event in job.of("switched"):
        work.row("Moves", step=event["step"], seconds=event["seconds"], bytes=event["bytes_moved"])
    for event in job.of("kept"):
        work.note(f"step {event['step']}: the plan stays: {event['why']}")
    off = max(abs(a - b) / abs(b) for a, b in zip(job.losses, still))
    work.figure("largest relative difference of losses", off, target="<= 1e-3")
    if off > 1e-3 or len(job.losses) != steps:
        work.fault(f"{len(job.losses)} losses, off by {off:.2g} from those of a job that does not plan anew")


def children_of(pid):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []  # it has just ended


def harmed(work, plan, model, number):
    """Starts a job without an end, sends `number` to its last rank after some steps; returns (seconds, code, words)."""
    out, said = work.folder / "harmed.out", work.folder / "harmed.err"
    with out.open("w") as stdout, said.open("w") as stderr:
        process = work.start([*words(work, plan, model, 10**8), "--stall-limit", STALL_LIMIT], LOADED, stdout=stdout, stderr=stderr,
                             stdin=subprocess.DEVNULL)
    try:
        while len(Job(out.read_text()).losses) < 8:  # also replays of a graph, over NCCL
            if process.poll() is not None or work.seconds_left() <= 0:
                raise CutOff if process.poll() is None else RuntimeError(f"the job ended by itself:\n{said.read_text()}")
            time.sleep(0.05)
        ranks = children_of(process.pid)
        begin = time.monotonic()
        os.kill(ranks[-1], number)
        try:
            code = process.wait(4 * LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        return time.monotonic() - begin, code, said.read_text()
    finally:
        end_group(process)


def lost_rank(work):
    """A rank that is killed, and one that is stopped: the others end within the limits, and say which one it was."""
    model = work.machine.model("conv")
    plan = compile_plan(work, "pair", model, cluster_of(2, 8), "--layout", "a/0,a/1")["plan"]
    for what, number, limit in (("killed", signal.SIGKILL, LIMIT), ("stopped", signal.SIGSTOP, LIMIT + STALL_LIMIT)):
        seconds, code, said = harmed(work, plan, model, number)
        line = next((line for line in said.splitlines() if "rank 1" in line), "")
        work.row("Harms", harm=f"rank 1 is {what}", ended_after=seconds, limit=limit, code=code, said=line)
        if code in (None, 0) or seconds > limit or not line:
            work.fault(f"rank 1 was {what}: the job ended after {seconds:.1f} s (limit {limit}) with {code}:\n{said}")
