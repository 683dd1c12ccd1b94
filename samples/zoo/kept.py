#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what a training step keeps from its forward for its backward pass: by AGPCS's operator table, by autograd when
the LibTorch executor computes the same graph, and by autograd in eager PyTorch. Prints the tables of docs/results/zoo.md.

    python3 samples/zoo/kept.py --build build/release

Models are those of zoo.py --small, exported by agpcs.torch.export. Every storage counts once, for the operator that
keeps it first; parameters and buffers do not count. Eager dropout is the fused kernel that GPUs use, with a mask of one
byte for each element; attention on CPUs composes its own.
"""

import argparse
import os
import pathlib
import sys
import warnings
from collections import defaultdict

import torch
from torch import nn

import zoo
from models import MODELS

SAMPLES = 4
GROUPS = {  # of ONNX operators, and of the nodes of autograd
    "convolution": "Conv ConvTranspose Convolution SlowConv",
    "product": "MatMul Gemm Einsum Mm Addmm Bmm Baddbmm",
    "attention": "Attention ScaledDotProduct",
    "recurrent layer": "LSTM GRU RNN MkldnnRnnLayer",
    "normalization": "BatchNormalization LayerNormalization RMSNormalization GroupNormalization "
                     "InstanceNormalization NativeBatchNorm NativeLayerNorm CudnnBatchNorm FusedRmsNorm",
    "dropout": "Dropout NativeDropout",
    "pooling": "MaxPool AveragePool GlobalAveragePool MaxPool2D AvgPool2D AdaptiveAvgPool2D MaxPool2DWithIndices",
    "activation": "Relu Gelu Sigmoid Tanh HardSwish HardSigmoid Clip Erf Swish Hardswish Hardsigmoid Hardtanh Silu "
                  "Clamp LeakyRelu Elu Softplus",
    "softmax and loss": "Softmax SafeSoftmax LogSoftmax SoftmaxCrossEntropyLoss NllLoss NllLoss2D Nll",
    "indexing": "Gather GatherElements GatherND TopK ScatterElements ScatterND Topk Embedding Index IndexSelect Scatter "
                "IndexPut Where",
    "elementwise": "Add Sub Mul Div Pow Sqrt Rsqrt Exp Log Neg Reciprocal Cos Sin Max Min Sum Mean ReduceMean ReduceSum",
}
GROUP_OF = {name: group for group, names in GROUPS.items() for name in names.split()}


def group_of(name):
    """Returns the group of an ONNX operator ("MatMul") or of a node of autograd ("NativeBatchNormBackward0")."""
    name = name.split("Backward")[0]
    if name.startswith("ScaledDotProduct"):
        name = "ScaledDotProduct"
    return GROUP_OF.get(name, GROUP_OF.get(name.rstrip("0123456789D"), name))


def of_executor(build, path):
    """Returns bytes by group, of the table and of the executor, their sums, and the bytes that stayed allocated."""
    code, out, err, _ = zoo.run([build / "tests" / "kept_figures", path, SAMPLES])
    if code != 0:
        sys.exit(err)
    table, saved, sums = defaultdict(int), defaultdict(int), {}
    for line in out.splitlines():
        words = line.split()
        if words[0] == "op":
            table[group_of(words[-3])] += int(words[-2])
            saved[group_of(words[-3])] += int(words[-1])
        else:
            sums[words[0]] = int(words[1])
    return table, saved, sums


def loss_of(model):
    """The loss that AGPCS attaches by itself: cross entropy of every output."""
    args, kwargs, _ = zoo.arguments_of(model)
    outputs = model.module(*args, **(kwargs or {}))
    loss = 0
    for logits in outputs if isinstance(outputs, tuple) else (outputs,):
        logits = logits.movedim(-1, 1) if logits.dim() == 3 else logits
        labels = torch.zeros(logits.shape[:1] + logits.shape[2:], dtype=torch.int64)
        loss = loss + nn.functional.cross_entropy(logits, labels)
    return loss


def saved_by(node):
    for name in dir(node):
        if not name.startswith("_saved_") and name != "saved_tensors":
            continue
        value = getattr(node, name)
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, torch.Tensor):
                yield tensor


def nodes_of(loss):
    """All nodes of autograd's graph, in the order in which the forward pass made them."""
    nodes, todo = {loss.grad_fn}, [loss.grad_fn]
    while todo:
        for node, _ in todo.pop().next_functions:
            if node is not None and node not in nodes:
                nodes.add(node)
                todo.append(node)
    return sorted(nodes, key=lambda node: node._sequence_nr())


def of_eager(model):
    """Returns bytes by group, and their sum by the hooks of saved tensors."""
    seen = {tensor.untyped_storage().data_ptr() for tensor in [*model.module.parameters(), *model.module.buffers()]}
    hooked = {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in seen:
            hooked[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    def dropout(x, p=0.5, training=True, inplace=False):
        return x if p == 0 or not training else torch.native_dropout(x, p, training)[0]

    plain, nn.functional.dropout = nn.functional.dropout, dropout
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = loss_of(model)
    finally:
        nn.functional.dropout = plain
    groups = defaultdict(int)
    for node in nodes_of(loss):
        for tensor in saved_by(node):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                groups[group_of(node.name())] += storage.nbytes()
    return groups, sum(storage.nbytes() for storage in hooked.values())


def differences(eager, ours, total):
    """Names the groups in which eager PyTorch keeps more or less than 0.5% of all, the largest first."""
    changes = {group: eager[group] - ours[group] for group in {*eager, *ours}}
    shown = sorted((group for group in changes if abs(changes[group]) > 0.005 * total), key=lambda g: -abs(changes[g]))
    return ", ".join(f"{group} {changes[group] / total:+.1%}" for group in shown)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help="the build folder, such as build/release")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("zoo"), help="where exports are kept")
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    folder = options.folder / "small"
    folder.mkdir(parents=True, exist_ok=True)
    print("| model | executor, MB | table | eager PyTorch, MB | to the executor | by operator |\n"
          "| --- | --- | --- | --- | --- | --- |")
    zoo.BATCH = SAMPLES
    for name in options.models.split(","):
        path = folder / f"{name}.agpcs.onnx"
        if not path.exists():
            zoo.export(zoo.example(name, True), "agpcs", path)
        _, ours, sums = of_executor(options.build, path)
        eager, hooked = of_eager(zoo.example(name, True))
        saved = sums["saved"]
        if abs(sum(eager.values()) - hooked) > 0.001 * hooked:
            print(f"{name}: the nodes of autograd name {sum(eager.values())} of {hooked} bytes", file=sys.stderr)
        print(f"| {name} | {saved / 1e6:.3f} | {sums['table'] / saved - 1:+.2%} | {hooked / 1e6:.3f} | "
              f"{hooked / saved - 1:+.1%} | {differences(eager, ours, saved)} |", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
