#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the models of this folder: small networks as PyTorch exports them, without their weights.

    python3 export_fixtures.py [FOLDER]        # needs torch 2.15, onnx, onnxscript

Each is exported for a fixed batch of 3 samples and for any batch (`_any`), with all defaults and with `optimize=False`
(`_plain`), or by the older exporter (`_script`). The values of weights are dropped; of the notes, those stay that the
importer reads.
"""

import pathlib
import sys
import warnings

import onnx
import torch
from torch import nn
from torch.nn import functional

BATCH = 3
KEPT_NOTES = ("pkg.torch.onnx.name_scopes", "pkg.torch.onnx.stack_trace", "pkg.onnxscript.rewriter.rule_name",
              "pkg.onnxscript.optimizer.folded_from", "pkg.torch.export.ExportedProgram.graph_signature")


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask=None):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(b, t, w))


class Vision(nn.Module):
    """A class token, a table of positions, windows, and attention."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.position = nn.Parameter(torch.zeros(1, 17, 16))
        self.norm, self.attn, self.head = nn.LayerNorm(16), Attention(16, 4), nn.Linear(16, 10)

    def forward(self, image):
        x = self.patch(image)
        b, c, h, w = x.shape
        x = x.view(b, c, 2, h // 2, 2, w // 2).permute(0, 2, 4, 3, 5, 1).reshape(4 * b, 4, c)
        x = functional.relu(x).view(b, 16, c)
        x = torch.cat([self.token.expand(b, -1, -1), x], 1) + self.position
        return self.head(self.attn(self.norm(x))[:, 0])


class Words(nn.Module):
    """Positions that are computed, a mask, and a head that is tied to the table of words."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 16)
        self.register_buffer("inv_freq", 1 / 10 ** torch.arange(0.0, 1.0, 0.125), persistent=False)
        self.attn = Attention(16, 4)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens, keep):
        b, t = tokens.shape
        angles = torch.arange(t, dtype=torch.float32)[:, None] * self.inv_freq
        x = self.table(tokens) + torch.cat([angles.sin(), angles.cos()], -1)
        causal = torch.ones(t, t, dtype=torch.bool).tril().expand(b, 1, t, t)
        return self.head(self.attn(x, causal & keep[:, None, None, :].bool())[torch.arange(b), -1])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Normalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, image):
        return self.head(functional.relu(self.bn(self.conv(image))).mean((2, 3)))


class Half(nn.Module):
    """Two layers in bfloat16, and an output that no loss takes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8, dtype=torch.bfloat16), nn.Linear(8, 4, dtype=torch.bfloat16)

    def forward(self, x):
        hidden = functional.relu(self.first(x))
        return self.second(hidden), hidden


def strip(path):
    """Drops values of weights and what nobody reads; keeps small tensors and integers."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        count = 1
        for dim in tensor.dims:
            count *= dim
        if tensor.data_type != onnx.TensorProto.FLOAT or count <= 24:
            continue
        for field in ("raw_data", "float_data", "external_data"):
            tensor.ClearField(field)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.absent")
    for part in [model.graph, *model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output]:
        notes = [(note.key, note.value) for note in part.metadata_props if note.key in KEPT_NOTES]
        part.ClearField("metadata_props")
        for key, value in notes:
            if key.endswith("stack_trace"):
                value = value.replace(str(pathlib.Path(__file__).resolve().parent) + "/", "")
                value = "\n".join(line for line in value.split("\n") if "File" in line and "/torch/" not in line)
            part.metadata_props.add(key=key, value=value)
    pathlib.Path(str(path) + ".data").unlink(missing_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


def main(folder):
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    image = {"image": torch.randn(BATCH, 3, 16, 16)}
    half = (Half(), {"x": torch.randn(BATCH, 8, dtype=torch.bfloat16)})
    models = {
        "vision": (Vision(), image),
        "words": (Words(), {"tokens": torch.randint(0, 20, (BATCH, 6)), "keep": torch.ones(BATCH, 6, dtype=torch.int64)}),
        "recurrent": (Recurrent(), {"x": torch.randn(BATCH, 6, 4)}),
        "normalized": (Normalized(), image),
    }
    for name, (module, inputs) in models.items():
        module.train()
        axes = {key: {0: "batch"} for key in inputs}
        kinds = {"": {}, "_any": {"dynamic_shapes": axes}, "_plain": {"optimize": False},
                 "_plain_any": {"optimize": False, "dynamic_shapes": axes}}
        for kind, options in kinds.items():
            path = folder / f"{name}{kind}.onnx"
            torch.onnx.export(module, tuple(inputs.values()), path, verbose=False, **options)
            strip(path)
        for kind, options in {"_script": {}, "_script_any": {"dynamic_axes": {**axes, "logits": {0: "batch"}}}}.items():
            path = folder / f"{name}{kind}.onnx"
            torch.onnx.export(module, tuple(inputs.values()), path, dynamo=False, input_names=list(inputs),
                              output_names=["logits"], training=torch.onnx.TrainingMode.TRAINING,
                              do_constant_folding=False, **options)
            strip(path)
    path = folder / "half.onnx"
    torch.onnx.export(half[0], tuple(half[1].values()), path, verbose=False, optimize=False,
                      dynamic_shapes={"x": {0: "batch"}}, output_names=["logits", "hidden"])
    strip(path)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent))
