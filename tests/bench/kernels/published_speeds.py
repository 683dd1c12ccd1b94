#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Predicts the training speeds that NVIDIA publishes for one GPU (github.com/NVIDIA/DeepLearningExamples, as listed in
published_speeds.csv), from the catalog's figures alone, and prints them beside what is published.

    tests/bench/kernels/published_speeds.py [--bin build/release/bin] [--models FOLDER] [--use choose|judge]

The list was made, and divided, before any of it was computed: rows `choose` set parameters of the kernel model that
measured kernels cannot tell, rows `judge` set none. Goal: at least 6 of 8 rows `judge` within 20%.

The models are made here, with PyTorch 1.13 and onnx as Debian has them: ResNet-50 and ResNeXt-101 (32x4d) with images
of 224 x 224, BERT-large with 128 tokens (words are predicted at 20 positions, as in pre-training) or 384 (questions and
answers). NVIDIA pre-trains with LAMB, whose state and bytes are those of Adam; gradients are accumulated, so that its
step hardly counts. FOLDER keeps the exported models for the next run.
"""
import argparse
import csv
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import onnx
import torch
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
CLUSTER = """name: published
device_kinds: {{gpu: {{hardware: {accelerator}}}}}
hosts: [{{name: host, devices: {{kind: gpu, count: 1}}}}]
training: {{batch: {batch}, precision: {precision}, optimizer: {optimizer}}}
"""
OPTIMIZERS = {"sgd": "{kind: sgd, momentum: 0.9}", "adam": "{kind: adam}"}
PREDICTED_WORDS = 20  # of 128 tokens, in pre-training


class Bottleneck(nn.Module):
    def __init__(self, width_in, middle, width_out, stride, groups):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width_in, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(),
            nn.Conv2d(middle, middle, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(middle), nn.ReLU(),
            nn.Conv2d(middle, width_out, 1, bias=False), nn.BatchNorm2d(width_out))
        self.shortcut = nn.Identity() if width_in == width_out else nn.Sequential(
            nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def residual_network(depths, groups, width):
    """ResNet of bottlenecks (He et al., 2015; strides in the 3x3 convolution), or ResNeXt (Xie et al., 2016)."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    last = 64
    for i, depth in enumerate(depths):
        for j in range(depth):
            stride = 2 if i > 0 and j == 0 else 1
            layers.append(Bottleneck(last, width * 2**i, 256 * 2**i, stride, groups))
            last = 256 * 2**i
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 1000))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, mask):
        def split(y):
            return y.view(y.shape[0], y.shape[1], self.heads, -1).transpose(1, 2)

        scores = split(self.query(x)) @ split(self.key(x)).transpose(-1, -2) / math.sqrt(x.shape[-1] / self.heads)
        weights = self.dropout(torch.softmax(scores + mask, -1))
        return self.dropout(self.out((weights @ split(self.value(x))).transpose(1, 2).reshape(x.shape)))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention, self.norm = Attention(width, heads), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))
        self.last_norm = nn.LayerNorm(width)

    def forward(self, x, mask):
        x = self.norm(x + self.attention(x, mask))
        return self.last_norm(x + self.feed(x))


class BertLarge(nn.Module):
    """24 layers, width 1,024, 16 heads (Devlin et al., 2018)."""

    def __init__(self, pretrains, words=30522, width=1024):
        super().__init__()
        self.pretrains = pretrains
        self.word, self.position, self.segment = nn.Embedding(words, width), nn.Embedding(512, width), nn.Embedding(2, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        self.layers = nn.ModuleList([Layer(width, 16) for _ in range(24)])
        if pretrains:
            self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, words))
        else:
            self.head = nn.Linear(width, 2)

    def forward(self, tokens, mask, segments):
        places = torch.arange(tokens.shape[1]).unsqueeze(0)
        x = self.dropout(self.norm(self.word(tokens) + self.position(places) + self.segment(segments)))
        bias = (1 - mask[:, None, None, :].float()) * -10000.0
        for layer in self.layers:
            x = layer(x, bias)
        return self.head(x[:, :PREDICTED_WORDS] if self.pretrains else x)


def tokens(length):
    ids = torch.randint(0, 30000, (2, length))
    return ids, torch.ones_like(ids), torch.zeros_like(ids)


MODELS = {
    "resnet50": lambda: (residual_network([3, 4, 6, 3], 1, 64), (torch.zeros(2, 3, 224, 224),)),
    "resnext101_32x4d": lambda: (residual_network([3, 4, 23, 3], 32, 128), (torch.zeros(2, 3, 224, 224),)),
    "bert_large_pretraining": lambda: (BertLarge(True), tokens(128)),
    "bert_large_squad": lambda: (BertLarge(False), tokens(384)),
}


def without_weights(path):
    """Leaves the shape of every large weight in the file, and a reference to a file that need not be there."""
    model = onnx.load(path, load_external_data=False)
    for weight in model.graph.initializer:
        if math.prod(weight.dims) <= 256 or weight.data_type != onnx.TensorProto.FLOAT:
            continue
        weight.ClearField("raw_data")
        weight.ClearField("external_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="weights")
        weight.external_data.add(key="length", value=str(4 * math.prod(weight.dims)))
    path.write_bytes(model.SerializeToString())


def exported(name, folder):
    path = folder / f"{name}.onnx"
    if path.exists():
        return path
    model, inputs = MODELS[name]()
    names = [f"in{i}" for i in range(len(inputs))]
    torch.onnx.export(model.train(), inputs, str(path), opset_version=17, training=torch.onnx.TrainingMode.TRAINING,
                      do_constant_folding=False, input_names=names, output_names=["logits"],
                      dynamic_axes={each: {0: "batch"} for each in [*names, "logits"]})
    without_weights(path)
    return path


def predicted(binaries, row, model, folder):
    """Samples a second of the plan for one device."""
    cluster = folder / "cluster.yaml"
    cluster.write_text(CLUSTER.format(**{**row, "optimizer": OPTIMIZERS[row["optimizer"]]}))
    words = [binaries / "agpcs-compile", model, cluster, "--micro-batches", row["micro_batches"], "--seeder",
             "data_parallel", "--refiner", "none", "--no-bound", "--json", "-o", folder / "plan"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stderr}")
    return float(row["batch"]) / json.loads(done.stdout)["step_seconds"]


def main():
    parser = argparse.ArgumentParser(description="Predicts published training speeds of one GPU.")
    parser.add_argument("--bin", type=pathlib.Path, default=HERE.parents[2] / "build/release/bin")
    parser.add_argument("--models", type=pathlib.Path, help="folder that keeps the exported models")
    parser.add_argument("--use", choices=["choose", "judge"], action="append", help="default: both")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, open(HERE / "published_speeds.csv", encoding="utf-8") as file:
        folder = pathlib.Path(temporary)
        models = arguments.models or folder
        models.mkdir(parents=True, exist_ok=True)
        print("| use | model | accelerator | precision | published | predicted | error |")
        print("| --- | --- | --- | --- | ---: | ---: | ---: |")
        for row in csv.DictReader(file):
            if arguments.use and row["use"] not in arguments.use:
                continue
            speed = predicted(arguments.bin, row, exported(row["model"], models), folder)
            published = float(row["samples_per_second"])
            print(f"| {row['use']} | {row['model']} | {row['accelerator']} | {row['precision']} | {published:g} | "
                  f"{speed:.4g} | {100 * (speed / published - 1):+.1f}% |", flush=True)


if __name__ == "__main__":
    main()
