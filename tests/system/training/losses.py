#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A tiny model for each loss: exports them, and trains them with a plain PyTorch loop.

    losses.py export FOLDER              writes words.onnx, tagger.onnx, ... with weights
    losses.py train NAME MODEL FOLDER    loads MODEL's weights, trains, writes to FOLDER as .npy:
                                         the samples, the losses and the final parameters

Runs with Debian's python3-torch and python3-onnx. Labels that do not count are spread as unevenly as can be: some
samples have none, others have nothing else.
"""

import pathlib
import sys

import numpy
import onnx
import onnx.numpy_helper
import torch
from torch import nn
from torch.nn import functional

BATCH, STEPS, SAMPLES, HELD_OUT = 8, 10, 24, 21
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 1e-4


def prefixes(count, length, generator):
    """For each sample which positions come before its end; ends lie anywhere, the first sample's behind position 1."""
    ends = torch.randint(0, length + 1, (count, 1), generator=generator)
    ends[0], ends[1], ends[2] = 2, length, 0
    return torch.arange(length).unsqueeze(0) < ends


class Words(nn.Module):
    """A language model: a causal convolution over words predicts the next one. Word 0 fills texts up."""

    LENGTH, WORDS = 12, 30
    INPUTS, OUTPUTS = ["ids"], ["logits"]

    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(self.WORDS, 16)
        self.conv, self.norm, self.head = nn.Conv1d(16, 16, 3), nn.LayerNorm(16), nn.Linear(16, self.WORDS)

    def forward(self, ids):
        x = functional.pad(self.word(ids).transpose(1, 2), (2, 0))
        return self.head(self.norm(torch.relu(self.conv(x)).transpose(1, 2)))

    @classmethod
    def samples(cls, count, generator):
        ids = torch.randint(1, cls.WORDS, (count, cls.LENGTH), generator=generator)
        return {"ids": torch.where(prefixes(count, cls.LENGTH, generator), ids, 0)}

    @staticmethod
    def loss(logits, batch):
        ids = batch["ids"]
        labels = torch.cat([ids[:, 1:], torch.zeros_like(ids[:, :1])], 1)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0)


class Tagger(nn.Module):
    """A class for each word of a text, by the words around it."""

    LENGTH, WORDS, CLASSES = 10, 20, 5
    INPUTS, OUTPUTS = ["ids"], ["logits"]

    def __init__(self):
        super().__init__()
        self.word, self.conv = nn.Embedding(self.WORDS, 12), nn.Conv1d(12, 12, 3, padding=1)
        self.head = nn.Linear(12, self.CLASSES)

    def forward(self, ids):
        return self.head(torch.relu(self.conv(self.word(ids).transpose(1, 2))).transpose(1, 2))

    @classmethod
    def samples(cls, count, generator):
        labels = torch.randint(0, cls.CLASSES, (count, cls.LENGTH), generator=generator)
        return {"ids": torch.randint(0, cls.WORDS, (count, cls.LENGTH), generator=generator),
                "labels": torch.where(prefixes(count, cls.LENGTH, generator), labels, -100)}

    @staticmethod
    def loss(logits, batch):
        return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1)


class Pixels(nn.Module):
    """A class for each pixel; pixels of class 255 are unlabelled."""

    INPUTS, OUTPUTS = ["image"], ["logits"]

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, image):
        return self.conv2(torch.relu(self.conv1(image)))

    @staticmethod
    def samples(count, generator):
        labels = torch.randint(0, 4, (count, 6, 8), generator=generator)
        labelled = prefixes(count, 48, generator).view(count, 6, 8)
        return {"image": torch.randn(count, 3, 6, 8, generator=generator),
                "labels": torch.where(labelled, labels, 255)}

    @staticmethod
    def loss(logits, batch):
        return functional.cross_entropy(logits, batch["labels"], ignore_index=255)


class Mlp(nn.Module):
    INPUTS, OUTPUTS = ["x"], ["y"]

    def __init__(self, outputs):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 16), nn.Linear(16, outputs)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class Regression(Mlp):
    """Three quantities."""

    def __init__(self):
        super().__init__(3)

    @staticmethod
    def samples(count, generator):
        return {"x": torch.randn(count, 6, generator=generator), "target": torch.randn(count, 3, generator=generator)}

    @staticmethod
    def loss(y, batch):
        return functional.mse_loss(y, batch["target"])


class Binary(Mlp):
    """Yes or no: one logit."""

    def __init__(self):
        super().__init__(1)

    @staticmethod
    def samples(count, generator):
        truth = torch.randint(0, 2, (count, 1), generator=generator)
        return {"x": torch.randn(count, 6, generator=generator), "target": truth.float()}

    @staticmethod
    def loss(y, batch):
        return functional.binary_cross_entropy_with_logits(y, batch["target"])


class Own(Mlp):
    """A model that computes its loss itself, and gives its prediction, too."""

    INPUTS, OUTPUTS = ["x", "wanted"], ["prediction", "cost"]

    def __init__(self):
        super().__init__(3)

    def forward(self, x, wanted):
        y = super().forward(x)
        return y, ((y - wanted) * (y - wanted)).mean()

    @staticmethod
    def samples(count, generator):
        return {"x": torch.randn(count, 6, generator=generator), "wanted": torch.randn(count, 3, generator=generator)}

    @staticmethod
    def loss(outputs, batch):
        del batch
        return outputs[1]


class Heads(nn.Module):
    """Two classifications with weights; the second one's label is often unknown."""

    INPUTS, OUTPUTS = ["x"], ["kind", "color"]

    def __init__(self):
        super().__init__()
        self.fc, self.kind, self.color = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 4)

    def forward(self, x):
        x = torch.relu(self.fc(x))
        return self.kind(x), self.color(x)

    @staticmethod
    def samples(count, generator):
        color = torch.randint(0, 4, (count,), generator=generator)
        color[torch.rand(count, generator=generator) < 0.6] = -100
        return {"x": torch.randn(count, 6, generator=generator),
                "labels": torch.randint(0, 3, (count,), generator=generator), "labels_color": color}

    @staticmethod
    def loss(outputs, batch):
        kind, color = outputs
        return functional.cross_entropy(kind, batch["labels"]) + \
            0.3 * functional.cross_entropy(color, batch["labels_color"])


class Tied(nn.Module):
    """A language model whose table of words is its head, too, so that both ends of a pipeline read it."""

    LENGTH, WORDS = 12, 30
    INPUTS, OUTPUTS = ["ids"], ["logits"]
    samples, loss = Words.samples, staticmethod(Words.loss)

    def __init__(self):
        super().__init__()
        self.word, self.norm = nn.Embedding(self.WORDS, 16), nn.LayerNorm(16)
        self.first, self.second, self.third = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, ids):
        x = self.word(ids)
        for layer in (self.first, self.second, self.third):
            x = x + torch.tanh(layer(x))
        return functional.linear(self.norm(x), self.word.weight)


MODELS = {"words": Words, "tagger": Tagger, "pixels": Pixels, "regression": Regression, "binary": Binary, "own": Own,
          "heads": Heads, "tied": Tied}


def export(folder):
    for name, model in MODELS.items():
        torch.manual_seed(1)
        samples = model.samples(4, torch.Generator().manual_seed(1))
        batched = model.INPUTS + [output for output in model.OUTPUTS if output != "cost"]
        torch.onnx.export(
            model().train(), tuple(samples[key] for key in model.INPUTS), folder / f"{name}.onnx", opset_version=17,
            training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, input_names=model.INPUTS,
            output_names=model.OUTPUTS, dynamic_axes={key: {0: "batch"} for key in batched})


def correct(name, outputs, batch):
    """How many labels the model knows, and of how many that count; none if there is no class, or more than one."""
    if name == "binary":
        return int(((outputs > 0) == (batch["target"] > 0.5)).sum()), outputs.numel()
    if name in ("words", "tied"):
        labels, ignored = torch.cat([batch["ids"][:, 1:], torch.zeros_like(batch["ids"][:, :1])], 1), 0
    elif name in ("tagger", "pixels"):
        labels, ignored = batch["labels"], 255 if name == "pixels" else -100
    else:
        return 0, 0
    guesses = outputs.argmax(1 if name == "pixels" else 2)
    counting = labels != ignored
    return int(((guesses == labels) & counting).sum()), int(counting.sum())


def train(name, path, folder):
    torch.set_num_threads(1)
    model = MODELS[name]().train()
    weights = {w.name: torch.from_numpy(onnx.numpy_helper.to_array(w).copy()) for w in onnx.load(path).graph.initializer}
    model.load_state_dict({key: weights[key] for key in model.state_dict()})
    samples = model.samples(SAMPLES, torch.Generator().manual_seed(2))
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM, weight_decay=WEIGHT_DECAY)
    losses = []
    for step in range(STEPS):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % SAMPLES
        batch = {key: value[rows] for key, value in samples.items()}
        loss = model.loss(model(*(batch[key] for key in model.INPUTS)), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    held_out = model.samples(HELD_OUT, torch.Generator().manual_seed(3))
    with torch.no_grad():
        outputs = model.eval()(*(held_out[key] for key in model.INPUTS))
        evaluation = [model.loss(outputs, held_out).item(), *correct(name, outputs, held_out), HELD_OUT]
    results = {f"sample.{key}": value for key, value in samples.items()}
    results.update({f"held_out.{key}": value for key, value in held_out.items()})
    results.update({f"final.{key}": value.detach() for key, value in model.named_parameters()})
    for key, value in results.items():
        numpy.save(folder / f"{key}.npy", value.numpy())
    numpy.save(folder / "losses.npy", numpy.array(losses))
    numpy.save(folder / "evaluation.npy", numpy.array(evaluation, dtype=numpy.float64))


def main():
    if sys.argv[1] == "export":
        export(pathlib.Path(sys.argv[2]))
    else:
        train(sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4]))


if __name__ == "__main__":
    main()
