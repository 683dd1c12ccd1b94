#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Training by agpcs-run beside PyTorch's own loop of the same LibTorch, one thread a rank.

    executor_bench.py [--model resnet50|bert|gpt2]... [--beside eager|compile]... [--ranks 1|2]... [--rounds 5] [--steps 3]
                      [--opset 13] [--bin build/release/bin] [--compiler build/release/bin]

PyTorch exports each model; agpcs-compile plans it for equal devices, whose ranks hold the whole model. The ways take turns,
a process a rank: agpcs-run replays the plan, and the loop calls the module, the loss, backward and torch.optim, on the same
shapes, with the same optimizer; `compile` passes the module through torch.compile, and two ranks through
DistributedDataParallel over Gloo. Each rank has the batch of one. Attention is `scaled_dot_product_attention`, which
PyTorch 1.13 does not have: there it is products and a softmax. Of a process's steps, the first does not count. The table
has medians of the rounds: milliseconds of a step by the clock and of processor time of rank 0, the peak of its memory
(VmHWM), and ratios of the rounds, ours over theirs in speed (above 1: agpcs-run is faster) and in memory.

Run it with the Python whose LibTorch agpcs-run was built of: Debian's PyTorch (python3-torch), or with
PYTHONPATH=build/release/python that of PyPI.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import torch
from torch import nn

TICK = os.sysconf("SC_CLK_TCK")
HAS_ATTENTION = hasattr(nn.functional, "scaled_dot_product_attention")
WORDS = {"bert": 30522, "gpt2": 50257}


class Block(nn.Module):
    """A layer of a transformer: `causal` and normalized before (GPT-2), or neither (BERT)."""

    def __init__(self, width, heads, tokens, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        if causal and not HAS_ATTENTION:
            self.register_buffer("mask", torch.full((tokens, tokens), -1e9).triu(1))

    def attention(self, x):
        n, t, width = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        if HAS_ATTENTION:
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            return self.out(y.transpose(1, 2).reshape(n, t, width))
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
        if self.causal:
            scores = scores + self.mask
        return self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(n, t, width))

    def mlp(self, x):
        return self.narrow(nn.functional.gelu(self.wide(x), approximate="tanh" if self.causal else "none"))

    def forward(self, x):
        if self.causal:
            x = x + self.attention(self.first(x))
            return x + self.mlp(self.second(x))
        x = self.first(x + self.attention(x))
        return self.second(x + self.mlp(x))


class Transformer(nn.Module):
    def __init__(self, kind, layers, tokens=128, width=768, heads=12):
        super().__init__()
        self.causal = kind == "gpt2"
        self.word, self.position = nn.Embedding(WORDS[kind], width), nn.Parameter(0.02 * torch.randn(tokens, width))
        self.layers = nn.ModuleList(Block(width, heads, tokens, self.causal) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, WORDS[kind] if self.causal else 2, bias=not self.causal)
        if self.causal:
            self.head.weight = self.word.weight

    def forward(self, ids):
        x = self.word(ids) + self.position
        if not self.causal:
            x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)) if self.causal else self.head(x[:, 0])


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride):
        super().__init__()
        self.parts = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
        self.shortcut = nn.Identity()
        if inside != 4 * width:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        return torch.relu(self.parts(x) + self.shortcut(x))


def resnet50():
    parts = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            parts.append(Bottleneck(inside, width, stride if i == 0 else 1))
            inside = 4 * width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def module_of(kind):
    torch.manual_seed(0)
    return resnet50() if kind == "resnet50" else Transformer(kind, 4 if kind == "bert" else 12)


def samples_of(kind, count):
    """The inputs and the labels of a batch."""
    if kind == "resnet50":
        return torch.randn(count, 3, 224, 224), torch.randint(0, 1000, (count,))
    ids = torch.randint(0, WORDS[kind], (count, 128))
    return ids, ids if kind == "gpt2" else torch.randint(0, 2, (count,))


BATCH = {"resnet50": 8, "bert": 8, "gpt2": 2}
OPTIMIZER = {"resnet50": "{kind: sgd, learning_rate: 0.001, momentum: 0.9}", "bert": "{kind: adamw, learning_rate: 0.0001}",
             "gpt2": "{kind: adamw, learning_rate: 0.0001}"}


def rank_of(pid):
    """The process that computes: agpcs-run starts its rank as a child."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


def peak_of(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def loop(kind, way, steps):
    """The loop: rank 0 prints a line after each step, as agpcs-run does."""
    torch.set_num_threads(1)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    model = module_of(kind).train()
    inputs, labels = samples_of(kind, BATCH[kind])
    if kind == "resnet50":
        optimizer = torch.optim.SGD(model.parameters(), 0.001, 0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    if way == "compile":
        model = torch.compile(model)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(json.dumps({"event": "step", "step": step, "loss": loss.item()}), flush=True)
    sys.stdin.read()  # until its memory has been read


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def measured(commands, steps):
    """Seconds of a step by the clock and of rank 0's processor time, and the peak of its memory. There is a command for each
    process; the first prints the steps."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    if len(commands) > 1:
        environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), WORLD_SIZE=str(len(commands)))
    processes = []
    for rank, command in enumerate(commands):
        if len(commands) > 1:
            environment["RANK"] = str(rank)
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment))
    marks, rank = [], None
    for line in processes[0].stdout:
        if len(marks) > steps or not line.startswith("{") or json.loads(line)["event"] != "step":
            continue
        rank = rank or rank_of(processes[0].pid)
        marks.append((time.monotonic(), processor_seconds(rank)))
        if len(marks) == steps + 1:
            peak = peak_of(rank)
            for process in processes:
                process.stdin.close()  # the loop waits for it
    ended = [process.wait() for process in processes]
    if any(ended) or len(marks) != steps + 1:
        sys.exit(f"{' '.join(commands[0])} ended with {ended} after {len(marks)} steps")
    clock, processor = ((marks[-1][i] - marks[0][i]) / steps for i in (0, 1))
    return clock, processor, peak


def export(kind, model, opset):
    inputs, _ = samples_of(kind, 2)
    warnings.simplefilter("ignore")
    if HAS_ATTENTION:
        import agpcs.torch
        return agpcs.torch.export(module_of(kind), (inputs,), model, input_names=["input"], opset_version=opset)
    return torch.onnx.export(module_of(kind).train(), (inputs,), model, opset_version=opset,
                             training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, input_names=["input"],
                             output_names=["logits"], dynamic_axes={name: {0: "batch"} for name in ("input", "logits")})


def prepared(kind, ranks, options, folder):
    """Plans an exported model; the command that trains it."""
    model, plan, cluster = (str(folder / name) for name in (f"{kind}.onnx", f"{kind}{ranks}.plan", f"{kind}{ranks}.yaml"))
    if not pathlib.Path(model).exists():
        export(kind, model, options.opset)
    pathlib.Path(cluster).write_text(
        "name: one\ndevice_kinds:\n  core: {memory: 16GiB, memory_bandwidth: 10GB/s, peak: {fp32: 100GFLOPS}}\n"
        f"hosts:\n  - name: local\n    devices: {{kind: core, count: {ranks}}}\n"
        "    interconnect: {kind: pcie, bandwidth: 2GB/s, latency: 20us}\n"
        f"training: {{batch: {ranks * BATCH[kind]}, loss: softmax_cross_entropy, optimizer: {OPTIMIZER[kind]}}}\n")
    class_axis = ["--class-axis", "-1"] if kind == "gpt2" else []
    subprocess.run([f"{options.compiler or options.bin}/agpcs-compile", model, cluster, "-o", plan, "-q", "--micro-batches",
                    "1", "--seeder", "data_parallel", "--refiner", "none", *class_axis], check=True)
    return [f"{options.bin}/agpcs-run", plan, model, "--local", "--threads", "1", "--json", "--fixed-batch",
            "--steps", str(options.steps + 2)]  # the last one runs while its memory is read


def compare(kind, ranks, options, folder):
    """Prints a row for each of PyTorch's ways."""
    ours = [prepared(kind, ranks, options, folder)]
    ways = options.beside or ["eager"]
    theirs = {way: [[sys.executable, __file__, "--loop", kind, "--beside", way, "--steps", str(options.steps)]] * ranks
              for way in ways}
    rounds = [[measured(ours, options.steps), *(measured(theirs[way], options.steps) for way in ways)]
              for _ in range(options.rounds)]
    own = tuple(statistics.median(r[0][i] for r in rounds) for i in range(3))
    for which, way in enumerate(ways, 1):
        other = tuple(statistics.median(r[which][i] for r in rounds) for i in range(3))
        ratio = [statistics.median(r[which][i] / r[0][i] for r in rounds) for i in range(3)]
        print(f"| {kind} | {ranks} | {way} | {own[0] * 1e3:.0f} | {own[1] * 1e3:.0f} | {own[2] / 1e6:.0f} | "
              f"{other[0] * 1e3:.0f} | {other[1] * 1e3:.0f} | {other[2] / 1e6:.0f} | {ratio[0]:.2f} | {ratio[1]:.2f} | "
              f"{1 / ratio[2]:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", action="append", choices=sorted(BATCH))
    parser.add_argument("--beside", action="append", choices=["eager", "compile"])
    parser.add_argument("--ranks", action="append", type=int, choices=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--opset", type=int, default=20 if HAS_ATTENTION else 13)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--compiler", help="where agpcs-compile is, if not in --bin")
    parser.add_argument("--loop", choices=sorted(BATCH), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loop:
        return loop(options.loop, options.beside[0], options.steps + 1)
    print(f"PyTorch {torch.__version__}, opset {options.opset}, {options.rounds} rounds of {options.steps} steps")
    print("| model | ranks | beside | agpcs-run: ms | processor ms | peak MB | loop: ms | processor ms | peak MB | speed by the "
          "clock | by processor time | memory |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind in options.model or sorted(BATCH):
        with tempfile.TemporaryDirectory() as folder:
            for ranks in options.ranks or [1]:
                compare(kind, ranks, options, pathlib.Path(folder))
    return None


if __name__ == "__main__":
    main()
