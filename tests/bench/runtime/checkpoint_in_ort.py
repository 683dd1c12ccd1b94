#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a checkpoint's model is a model: ONNX's checker accepts it, ONNX Runtime runs it, and its first loss there is what
agpcs-run says of the next step.

    checkpoint_in_ort.py CHECKPOINT --plan model.plan [--run build/release/bin/agpcs-run] [--data INPUT.npy --labels LABELS.npy]

Samples are random, of the plan's batch, unless they are given; agpcs-run trains on the same ones for one step, from the saved model, and says the loss
before the step, which is the forward pass of training. Models with dropout or batch normalization compute otherwise in training than in
inference: for these the losses are printed and not compared.

Needs: pip install onnx onnxruntime numpy.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    import numpy
    import onnx
    import onnxruntime
except ImportError as error:
    sys.exit(f"{error}\n  hint: python3 -m venv venv && venv/bin/pip install onnx onnxruntime numpy")

TRAINS_OTHERWISE = {"BatchNormalization", "Dropout"}


def samples_of(session, batch, generator):
    """Random samples for each input, by name."""
    made = {}
    for entry in session.get_inputs():
        shape = [batch] + [dim if isinstance(dim, int) else 1 for dim in entry.shape[1:]]
        if entry.type == "tensor(float)":
            made[entry.name] = generator.standard_normal(shape, dtype=numpy.float32)
        else:
            made[entry.name] = generator.integers(0, 2, shape)
    return made


def cross_entropy(logits, labels):
    logits = logits.astype(numpy.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_sum = numpy.log(numpy.exp(shifted).sum(axis=1))
    return float(numpy.mean(log_sum - shifted[numpy.arange(len(labels)), labels]))


def loss_of_step(run, plan, model, folder, samples, labels):
    """What agpcs-run says of the first step on these samples."""
    command = [run, plan, model, "--transport", "loopback", "--steps", "1", "--json", "--threads", "1"]
    for name, values in {**samples, "labels": labels}.items():
        path = folder / (re.sub(r"\W", "_", name) + ".npy")
        numpy.save(path, values)
        command += ["--labels", str(path)] if name == "labels" else ["--data", f"{name}={path}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return next(event["loss"] for event in events if event["event"] == "step")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--plan", required=True, help="a plan with one stage or more for the same model")
    parser.add_argument("--run", default="build/release/bin/agpcs-run")
    args = parser.parse_args()

    path = str(args.checkpoint / "model.onnx")
    onnx.checker.check_model(path)
    model = onnx.load(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    batch = int(re.search(r"^training batch=(\d+)", pathlib.Path(args.plan).read_text(), re.M).group(1))
    generator = numpy.random.default_rng(1)
    samples = samples_of(session, batch, generator)
    logits = session.run(None, samples)[0]
    labels = generator.integers(0, logits.shape[1], batch)
    with tempfile.TemporaryDirectory() as folder:
        trained = loss_of_step(args.run, args.plan, path, pathlib.Path(folder), samples, labels)
    inferred = cross_entropy(logits, labels)
    difference = abs(trained - inferred) / max(abs(inferred), 1e-12)
    otherwise = sorted(TRAINS_OTHERWISE & {node.op_type for node in model.graph.node})
    print(f"{path}: {len(model.graph.node)} nodes, {len(model.graph.initializer)} initializers, "
          f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}")
    print(f"  loss of {batch} samples: ONNX Runtime {inferred:.9g}, agpcs-run {trained:.9g}, relative difference {difference:.2g}")
    if otherwise:
        print(f"  not compared: {', '.join(otherwise)} computes otherwise in training")
    elif difference > 1e-5:
        sys.exit("  they differ by more than 1e-5")


if __name__ == "__main__":
    main()
