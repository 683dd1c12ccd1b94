# SPDX-License-Identifier: Apache-2.0
"""Compares the activations that AGPCS says a training step keeps with those that PyTorch keeps.

Each model is exported to ONNX in training mode; `graph_figures` gives what the operator table says, and
torch.autograd.graph.saved_tensors_hooks what autograd saves in one forward pass: every storage once, without parameters and
buffers. Dropout is measured with the fused kernel that GPUs use (a mask of one byte per element).

    /usr/bin/python3 tests/bench/planning/kept_bytes.py --tool build/dev/tests/graph_figures
"""

import argparse
import math
import subprocess
import sys
import tempfile
import warnings

try:
    import onnx  # noqa: F401: the exporter wants it
    import torch
    from torch import nn
except ImportError as missing:
    print(f"skipped: {missing} (apt-get install python3-torch python3-onnx)")
    sys.exit(77)
try:
    import torchvision
except ImportError:
    torchvision = None  # the two models of this file alone


class SmallConvNet(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.Sigmoid(), nn.AvgPool2d(2), nn.Dropout(0.2),
            nn.Flatten(), nn.Linear(32 * 8 * 8, 64), nn.Tanh(), nn.Linear(64, 10))


class EncoderLayer(nn.Module):
    """A BERT layer."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.dense = (nn.Linear(hidden, hidden) for _ in range(4))
        self.wide, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norm1, self.norm2, self.drop = nn.LayerNorm(hidden), nn.LayerNorm(hidden), nn.Dropout(0.1)

    def split(self, x):
        n, tokens, hidden = x.shape
        return x.view(n, tokens, self.heads, hidden // self.heads).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        weights = self.drop(torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)), -1))
        x = self.norm1(x + self.drop(self.dense((weights @ v).transpose(1, 2).reshape(x.shape))))
        return self.norm2(x + self.drop(self.narrow(nn.functional.gelu(self.wide(x)))))


class SmallEncoder(nn.Module):
    def __init__(self, hidden=256, heads=4, layers=2, words=1000):
        super().__init__()
        self.words = nn.Embedding(words, hidden)
        self.norm, self.drop = nn.LayerNorm(hidden), nn.Dropout(0.1)
        self.layers = nn.Sequential(*(EncoderLayer(hidden, heads) for _ in range(layers)))
        self.classifier = nn.Linear(hidden, 10)

    def forward(self, ids):
        return self.classifier(self.layers(self.drop(self.norm(self.words(ids)))).mean(1))


def image_model(name):
    return lambda: (getattr(torchvision.models, name)(weights=None), torch.randn(2, 3, 224, 224))


MODELS = {
    "small conv net": lambda: (SmallConvNet(), torch.randn(4, 3, 32, 32)),
    "2-layer encoder": lambda: (SmallEncoder(), torch.randint(0, 1000, (4, 64))),
}
if torchvision is not None:
    names = ("resnet50", "vgg11", "squeezenet1_1", "mobilenet_v2", "densenet121")
    MODELS |= {name: image_model(name) for name in names}


def fused_dropout(x, p=0.5, training=True, inplace=False):
    return torch.native_dropout(x, p, training)[0]


def storage_of(tensor):
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def autograd_bytes(model, x):
    """Bytes of all storages that autograd saves, parameters and buffers apart."""
    standing = {storage_of(t).data_ptr() for t in [*model.parameters(), *model.buffers()]}
    saved = {}

    def pack(tensor):
        storage = storage_of(tensor)
        if storage.data_ptr() not in standing:
            saved[storage.data_ptr()] = storage  # held, so that no other tensor takes its place
        return tensor

    labels = torch.zeros(len(x), dtype=torch.int64)
    plain, nn.functional.dropout = nn.functional.dropout, fused_dropout
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = nn.functional.cross_entropy(model(x), labels)
    finally:
        nn.functional.dropout = plain
    del loss
    return sum(storage.nbytes() for storage in saved.values())


def table_bytes(model, x, tool, show_ops):
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/model.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model, x, path, opset_version=17, training=torch.onnx.TrainingMode.TRAINING,
                do_constant_folding=False, input_names=["input"], output_names=["logits"],
                dynamic_axes={"input": {0: "batch"}, "logits": {0: "batch"}})
        command = [tool, path, str(len(x))] + (["--ops"] if show_ops else [])
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if show_ops:
        print(text)
    return int(text.split("kept_bytes ")[1].split()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", required=True, help="the built graph_figures")
    parser.add_argument("--only", help="one model of the list")
    parser.add_argument("--ops", action="store_true", help="print what each operator keeps")
    parser.add_argument("--within", type=float, help="fail beyond this difference in percent")
    options = parser.parse_args()
    print(f"{'model':<18}{'samples':>8}{'autograd MB':>14}{'table MB':>12}{'difference':>12}")
    worst = 0
    for name, make in MODELS.items():
        if options.only not in (None, name):
            continue
        torch.manual_seed(0)
        model, x = make()
        for module in model.modules():
            if hasattr(module, "inplace"):
                module.inplace = False  # a runtime that keeps values by name overwrites none
        model.train()
        table = table_bytes(model, x, options.tool, options.ops)
        measured = autograd_bytes(model, x)
        difference = 100 * (table - measured) / measured
        worst = max(worst, abs(difference))
        print(f"{name:<18}{len(x):>8}{measured / 1e6:>14.2f}{table / 1e6:>12.2f}{difference:>11.2f}%", flush=True)
    if options.within is not None and worst > options.within:
        print(f"the largest difference is {worst:.2f}%, more than {options.within}%")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
