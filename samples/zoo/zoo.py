#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports the models of the zoo, imports, counts, plans and trains them, and prints the table of docs/results/zoo.md.

    python3 samples/zoo/zoo.py --build build/release                     # all models, all exporters
    python3 samples/zoo/zoo.py --build build/release --small --models vit_b16,llama --exporters default,agpcs
    python3 samples/zoo/zoo.py --build build/release --losses            # beside a loop in PyTorch

Needs PyTorch 2.15, onnx, onnxscript, transformers 5, timm and torchvision from PyPI. Weights are random; nothing is
downloaded. Exports stay in --folder, unless --drop deletes them, and are made again only with --again. A run
that ended early goes on where it was if it is given the same --json FILE.
"""

import argparse
import contextlib
import copy
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import warnings

import numpy
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from models import MODELS

ROOT = pathlib.Path(__file__).resolve().parents[2]


BATCH = 3  # unlike other extents, such as two experts a token, from which a fixed batch is to be told
EXPORTERS = {
    "default": "`torch.onnx.export` with all defaults: a fixed batch",
    "dynamic": "the same with `dynamic_shapes`",
    "plain": "`optimize=False`, a fixed batch",
    "agpcs": "`agpcs.torch.export`",
    "script": "`dynamo=False`, in training mode without constant folding, `dynamic_axes`",
}
LOSSES = ("resnet50", "vit_b16", "unet", "bert_base", "gpt2_small", "llama")
LOSS_STEPS, LOSS_BATCH, LEARNING_RATE = 10, 8, 0.001
LOSS_CLUSTER = """\
device_kinds:
  cpu: {peak: {fp32: 40 GFLOPS}, memory: 16 GiB, memory_bandwidth: 10 GB/s, launch_overhead: 5 us}
hosts:
  - {name: local, devices: {kind: cpu, count: 2}}
training: {batch: 8, optimizer: {kind: sgd, learning_rate: %s, momentum: 0.9}}
"""
CLUSTER = """\
device_kinds:
  cpu: {peak: {fp32: 40 GFLOPS}, memory: 16 GiB, memory_bandwidth: 10 GB/s, launch_overhead: 5 us}
hosts:
  - {name: local, devices: {kind: cpu, count: 2}}
training: {batch: 4, optimizer: {kind: adam, learning_rate: %s}}
"""
SHAPES_ONLY = ("llama3_8b",)  # too large to hold: exported without weights, in its full size, and not trained
LARGE_CLUSTER = CLUSTER.replace("fp32: 40 GFLOPS", "fp16: 40 TFLOPS").replace("16 GiB", "1024 GiB")


def example(name, small):
    torch.manual_seed(0)
    model = MODELS[name](small, BATCH)
    model.module.train()
    with torch.no_grad():  # as in a trained model, no two scales or shifts are equal
        for parameter in model.module.parameters():
            if parameter.dim() < 2:
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model


def arguments_of(model):
    """Returns positional and named arguments, and the shapes that make axis 0 the batch."""
    axes = {key: {0: "batch"} for key in model.inputs}
    if hasattr(model.module, "fixed"):  # takes its inputs by name
        return (), model.inputs, {"inputs": axes}
    return tuple(model.inputs.values()), None, tuple(axes.values())


def exporter_of_agpcs():
    """The exporter of the package agpcs, which need not be installed."""
    path = ROOT / "tools" / "python" / "agpcs" / "_torch_export.py"
    spec = importlib.util.spec_from_file_location("_torch_export", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def export(model, exporter, path):
    args, kwargs, axes = arguments_of(model)
    if exporter == "agpcs":
        _torch_export = exporter_of_agpcs()
        with _torch_export.training(model.module):
            names = list(model.inputs) if kwargs is None else None
            return _torch_export.by_dynamo(model.module, args, kwargs or {}, path, names, model.outputs, True, {})
    if exporter == "script":
        names = [*model.inputs, *model.outputs]
        if kwargs is not None:  # TorchScript passes inputs by position alone
            by_name, args = model.module.forward, tuple(kwargs.values())
            model.module.forward = lambda *values: by_name(**dict(zip(kwargs, values)))
        return torch.onnx.export(
            model.module, args, path, dynamo=False, input_names=list(model.inputs),
            output_names=list(model.outputs), training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
            dynamic_axes={name: {0: "batch"} for name in names})
    options = {"dynamic": {"dynamic_shapes": axes}, "plain": {"optimize": False}}.get(exporter, {})
    return torch.onnx.export(model.module, args, path, kwargs=kwargs, verbose=False, **options)


def counted(model):
    """Multiply-adds of the forward pass, by PyTorch's own counter. It does not count oneDNN's LSTM."""
    from torch.utils.flop_counter import FlopCounterMode
    args, kwargs, _ = arguments_of(model)
    without_lstm = torch.backends.mkldnn.flags(enabled=False)
    with torch.no_grad(), without_lstm, FlopCounterMode(display=False) as counter:
        model.module(*args, **(kwargs or {}))
    return counter.get_total_flops() / 2


def run(command, seconds=1800):
    began = time.time()
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return 124, "", f"no end after {seconds} s", time.time() - began
    return done.returncode, done.stdout, done.stderr, time.time() - began


def first_line(text):
    lines = [line for line in text.strip().split("\n") if "error" in line] or text.strip().split("\n")
    return re.sub(r"\s+", " ", lines[0])[:160] if lines else ""


def imported(build, path, model, row):
    code, out, err, seconds = run([build / "tests" / "graph_figures", path, BATCH, "--forward"])
    row["imported"] = code == 0
    if code != 0:
        row["why"] = first_line(err)
        return
    row["seconds"] = round(seconds, 1)
    names = {line.split()[1] for line in out.split("\n") if line.startswith("parameter ")}
    own = {name for name, value in model.module.named_parameters(remove_duplicate=False) if value.requires_grad}
    distinct = {name for name, value in model.module.named_parameters() if value.requires_grad}
    row["parameters"], row["named"], row["foreign"] = len(distinct), len(names & own), len(names - own)
    row["multiply_adds"] = int(re.search(r"multiply_adds (\d+)", out).group(1))


def planned(build, path, folder, row, cluster_text):
    cluster = folder / f"{path.stem}.yaml"
    cluster.write_text(cluster_text)
    plan = path.with_suffix(".plan")
    command = [build / "bin" / "agpcs-compile", path, cluster, "-o", plan, "--seeder", "data_parallel",
               "--refiner", "none"]
    code, _, err, _ = run(command)
    row["inference_graph"] = code != 0 and "--inference-graph" in err
    if row["inference_graph"]:
        code, _, err, _ = run([*command, "--inference-graph"])
    row["planned"] = code == 0
    if code != 0:
        row.setdefault("why", first_line(err))
    return plan


def trained(build, path, plan, row):
    code, out, err, _ = run([build / "bin" / "agpcs-run", plan, path, "--local", "--steps", 10, "--fixed-batch",
                            "--json"])
    events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    losses = [event["loss"] for event in events if event["event"] == "step"]
    row["trained"] = code == 0 and len(losses) > 1 and None not in losses and losses[-1] < losses[0]
    row["losses"] = losses[:1] + losses[-1:]
    if code == 0 and not row["trained"]:
        row.setdefault("why", f"the loss goes from {losses[0]} to {losses[-1]}")
    if code != 0:
        row.setdefault("why", first_line(err))


def measure(name, exporter, options):
    folder = options.folder / ("small" if options.small else "full")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{exporter}.onnx"
    shapes_only = name in SHAPES_ONLY and not options.small
    row = {"model": name, "exporter": exporter}
    with FakeTensorMode(allow_non_fake_inputs=True) if shapes_only else contextlib.nullcontext():
        model = example(name, options.small)
        row["counted"] = counted(model)
        if options.again or not path.exists():
            try:
                began = time.time()
                export(model, exporter, path)
                row["export_seconds"] = round(time.time() - began, 1)
            except Exception as error:  # whatever PyTorch raises: it belongs to the table
                drop(path)
                row["why"] = "PyTorch: " + re.sub(r"\s+", " ", str(cause_of(error)))[-160:]
                return row
    imported(options.build, path, model, row)
    plan = planned(options.build, path, folder, row, (LARGE_CLUSTER if shapes_only else CLUSTER) % options.learning_rate)
    if row["planned"] and options.train and not shapes_only:
        trained(options.build, path, plan, row)
    if options.drop:
        drop(path)
    return row


def cause_of(error):
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def drop(path):
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".data").unlink(missing_ok=True)


def without_dropout(module):
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        for name in ("attention_dropout", "dropout", "dropout_p"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)


def losses_of_torch(model, data, labels):
    """Losses of a loop in one process. Each half of a batch is a forward pass of its own, as batch norm sees it."""
    optimizer = torch.optim.SGD(model.module.parameters(), lr=LEARNING_RATE, momentum=0.9)
    losses = []
    for begin in range(0, LOSS_STEPS * LOSS_BATCH, LOSS_BATCH):
        optimizer.zero_grad()
        loss = 0
        for first in (begin, begin + LOSS_BATCH // 2):
            half = slice(first, first + LOSS_BATCH // 2)
            logits = logits_of(model, {key: value[half] for key, value in data.items()})
            loss = loss + nn.functional.cross_entropy(logits, labels[half]) / 2
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def logits_of(model, inputs):
    """Returns logits with their classes along axis 1."""
    named = hasattr(model.module, "fixed")
    logits = model.module(**inputs) if named else model.module(*inputs.values())
    return logits.movedim(-1, 1) if logits.dim() == 3 else logits


def losses_of_agpcs(build, folder, path, data, labels):
    """Losses of agpcs-run: two local ranks, each with half of a batch."""
    cluster, plan = folder / "losses.yaml", path.with_suffix(".plan")
    cluster.write_text(LOSS_CLUSTER % LEARNING_RATE)
    code, _, err, _ = run([build / "bin" / "agpcs-compile", path, cluster, "-o", plan, "--seeder", "data_parallel",
                           "--refiner", "none"])
    if code != 0:
        sys.exit(err)
    command = [build / "bin" / "agpcs-run", plan, path, "--local", "--steps", LOSS_STEPS, "--json"]
    for option, name, value in [*(("--data", name, value) for name, value in data.items()), ("--labels", None, labels)]:
        file = folder / f"{path.stem}.{name or 'labels'}.npy"
        numpy.save(file, value.numpy())
        command += [option, f"{name}={file}" if name else file]
    code, out, err, _ = run(command)
    if code != 0:
        sys.exit(err)
    events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [event["loss"] for event in events if event["event"] == "step"]


def compare_losses(options):
    folder = options.folder / "losses"
    folder.mkdir(parents=True, exist_ok=True)
    print("| model | first loss | last loss | largest relative difference | of PyTorch, samples reversed |\n"
          "| --- | --- | --- | --- | --- |")
    for name in LOSSES:
        model = example(name, True)
        without_dropout(model.module)
        data = MODELS[name](True, LOSS_STEPS * LOSS_BATCH).inputs
        with torch.no_grad():
            logits = logits_of(model, model.inputs)
        labels = torch.randint(0, logits.shape[1], (LOSS_STEPS * LOSS_BATCH, *logits.shape[2:]))
        path = folder / f"{name}.onnx"
        export(model, "agpcs", path)
        ours = losses_of_agpcs(options.build, folder, path, data, labels)
        other = copy.deepcopy(model)
        theirs = losses_of_torch(model, data, labels)
        if len(ours) != len(theirs):
            sys.exit(f"{name}: {len(ours)} steps")
        # The same samples in each half, added in another order: how far rounding alone takes PyTorch from itself.
        order = torch.arange(len(labels)).view(-1, LOSS_BATCH // 2).flip(1).flatten()
        again = losses_of_torch(other, {key: value[order] for key, value in data.items()}, labels[order])
        ours_off, again_off = (max(abs(a / b - 1) for a, b in zip(losses, theirs)) for losses in (ours, again))
        print(f"| {name} | {theirs[0]:.6f} | {theirs[-1]:.6f} | {ours_off:.1e} | {again_off:.1e} |", flush=True)


def yes(value):
    return "-" if value is None else "yes" if value else "**no**"


def table(rows):
    lines = ["| model | exporter | imported | parameters named | multiply-adds to PyTorch's count | planned | trained | "
             "why not |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        names = f"{row['named']} of {row['parameters']}" if "named" in row else "-"
        if row.get("foreign"):
            names += f", {row['foreign']} others"
        both = row.get("multiply_adds") and row["counted"]
        ratio = f"{row['multiply_adds'] / row['counted'] - 1:+.2%}" if both else "-"
        plan = yes(row.get("planned"))
        if row.get("planned") and row.get("inference_graph"):
            plan += " (`--inference-graph`)"
        lines.append(f"| {row['model']} | {row['exporter']} | {yes(row.get('imported'))} | {names} | {ratio} | {plan} | "
                     f"{yes(row.get('trained'))} | {row.get('why', '').replace('|', '/')} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help="the build folder, such as build/release")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("zoo"), help="where exports are kept")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--exporters", default=",".join(EXPORTERS))
    parser.add_argument("--small", action="store_true", help="models of less depth and width")
    parser.add_argument("--train", action="store_true", help="train 10 steps on two local ranks")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="of Adam (default 0.001)")
    parser.add_argument("--losses", action="store_true",
                        help=f"compare the losses of {LOSS_STEPS} steps with a loop in PyTorch, for {', '.join(LOSSES)}")
    parser.add_argument("--again", action="store_true", help="export again what is in --folder")
    parser.add_argument("--drop", action="store_true", help="delete each export when its row is measured")
    parser.add_argument("--json", type=pathlib.Path, help="write the rows there, too, and measure none that is there")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.losses:
        return compare_losses(options)
    rows = measured_before(options)
    for name in options.models.split(","):
        for exporter in options.exporters.split(","):
            if any((row["model"], row["exporter"]) == (name, exporter) for row in rows):
                continue
            rows.append(measure(name, exporter, options))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
    print(table(rows))


def measured_before(options):
    if options.again or options.json is None or not options.json.exists():
        return []
    return json.loads(options.json.read_text())


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
