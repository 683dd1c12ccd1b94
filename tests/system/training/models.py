#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The two small models of the training tests: exports them, and trains them with a plain PyTorch loop.

    models.py export FOLDER              writes conv.onnx and bert.onnx, weights included
    models.py train NAME MODEL FOLDER [MAX_NORM]    loads MODEL's weights, trains, clips gradients if told, writes to FOLDER
                                                    as .npy: the samples, the losses and the final parameters

Runs with Debian's python3-torch and python3-onnx. Training never drops out: the test sets the ratio to 0, too.
"""

import math
import pathlib
import sys

import numpy
import onnx
import onnx.numpy_helper
import torch
from torch import nn

BATCH, STEPS, SAMPLES = 8, 20, 24
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 1e-4


class Conv(nn.Module):
    """Convolutions with a skip connection, no batch norm."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.conv3 = nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.fc = nn.Linear(16, 10)

    def forward(self, image):
        x = nn.functional.max_pool2d(torch.relu(self.conv1(image)), 2)
        x = x + torch.relu(self.conv2(x))
        x = torch.relu(self.conv3(x))
        return self.fc(x.mean((2, 3)))

    @staticmethod
    def samples(count, generator):
        return {"image": torch.randn(count, 3, 16, 16, generator=generator),
                "labels": torch.randint(0, 10, (count,), generator=generator)}


class Attention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.dense = (nn.Linear(hidden, hidden) for _ in range(4))
        self.norm, self.drop = nn.LayerNorm(hidden, eps=1e-12), nn.Dropout(0.1)

    def split(self, x):
        batch, length, hidden = x.shape
        return x.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)

    def forward(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        p = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + mask, -1)
        y = (self.drop(p) @ v).transpose(1, 2).reshape(x.shape)
        return self.norm(x + self.drop(self.dense(y)))


class Layer(nn.Module):
    def __init__(self, hidden, heads, inner):
        super().__init__()
        self.attention = Attention(hidden, heads)
        self.intermediate, self.output = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.norm, self.drop = nn.LayerNorm(hidden, eps=1e-12), nn.Dropout(0.1)

    def forward(self, x, mask):
        x = self.attention(x, mask)
        return self.norm(x + self.drop(self.output(nn.functional.gelu(self.intermediate(x)))))


class Bert(nn.Module):
    """BERT for classification with two layers."""

    LENGTH, WORDS = 12, 50

    def __init__(self, hidden=32, heads=4, inner=64, labels=3):
        super().__init__()
        self.word, self.position = nn.Embedding(self.WORDS, hidden), nn.Embedding(self.LENGTH, hidden)
        self.token_type = nn.Embedding(2, hidden)
        self.norm, self.drop = nn.LayerNorm(hidden, eps=1e-12), nn.Dropout(0.1)
        self.layer = nn.ModuleList([Layer(hidden, heads, inner) for _ in range(2)])
        self.pooler, self.classifier = nn.Linear(hidden, hidden), nn.Linear(hidden, labels)

    def forward(self, input_ids, attention_mask, token_type_ids):
        position = torch.arange(input_ids.size(1), device=input_ids.device).unsqueeze(0)
        x = self.word(input_ids) + self.position(position) + self.token_type(token_type_ids)
        x = self.drop(self.norm(x))
        mask = (1.0 - attention_mask[:, None, None, :].float()) * -10000.0
        for layer in self.layer:
            x = layer(x, mask)
        return self.classifier(self.drop(torch.tanh(self.pooler(x[:, 0]))))

    @classmethod
    def samples(cls, count, generator):
        lengths = torch.randint(cls.LENGTH // 2, cls.LENGTH + 1, (count, 1), generator=generator)
        return {"input_ids": torch.randint(0, cls.WORDS, (count, cls.LENGTH), generator=generator),
                "attention_mask": (torch.arange(cls.LENGTH).unsqueeze(0) < lengths).long(),
                "token_type_ids": torch.randint(0, 2, (count, cls.LENGTH), generator=generator),
                "labels": torch.randint(0, 3, (count,), generator=generator)}


MODELS = {"conv": Conv, "bert": Bert}


def export(folder):
    for name, model in MODELS.items():
        torch.manual_seed(1)
        inputs = model.samples(2, torch.Generator().manual_seed(1))
        del inputs["labels"]
        torch.onnx.export(
            model().train(), tuple(inputs.values()), folder / f"{name}.onnx", opset_version=17,
            training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, input_names=list(inputs),
            output_names=["logits"], dynamic_axes={key: {0: "batch"} for key in [*inputs, "logits"]})


def train(name, path, folder, max_norm=None):
    torch.set_num_threads(1)
    model = MODELS[name]().train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    weights = {w.name: torch.from_numpy(onnx.numpy_helper.to_array(w).copy()) for w in onnx.load(path).graph.initializer}
    model.load_state_dict({key: weights[key] for key in model.state_dict()})
    samples = model.samples(SAMPLES, torch.Generator().manual_seed(2))
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM, weight_decay=WEIGHT_DECAY)
    losses = []
    for step in range(STEPS):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % SAMPLES
        batch = {key: value[rows] for key, value in samples.items()}
        labels = batch.pop("labels")
        loss = nn.functional.cross_entropy(model(**batch), labels)
        optimizer.zero_grad()
        loss.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        losses.append(loss.item())
    results = {f"sample.{key}": value for key, value in samples.items()}
    results.update({f"final.{key}": value.detach() for key, value in model.named_parameters()})
    for key, value in results.items():
        numpy.save(folder / f"{key}.npy", value.numpy())
    numpy.save(folder / "losses.npy", numpy.array(losses))


def main():
    if sys.argv[1] == "export":
        export(pathlib.Path(sys.argv[2]))
    else:
        train(sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4]), *map(float, sys.argv[5:]))


if __name__ == "__main__":
    main()
