# SPDX-License-Identifier: Apache-2.0
"""Steps of PyTorch alone: the model of an ONNX file of the proof, eager or compiled, in fp32 with SGD and momentum.

    torch_steps.py MODEL SAMPLES eager|compile DEVICE

Prints one line of JSON: the median seconds of a step, and the peak of allocated bytes. samples/zoo has the models.
"""

import json
import pathlib
import statistics
import sys
import time

import torch
from torch.nn.functional import cross_entropy

ROOT = pathlib.Path(__file__).resolve().parents[2]
WARM, STEPS = 10, 20


class Bert(torch.nn.Module):
    """BERT-base for two classes as samples/models/bert_base.onnx has it: 128 tokens, dropout 0.1."""

    def __init__(self):
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification
        self.model = BertForSequenceClassification(BertConfig(attn_implementation="eager"))

    def forward(self, tokens):
        return self.model(input_ids=tokens).logits

    @staticmethod
    def batch(samples):
        return torch.randint(0, 30000, (samples, 128)), torch.randint(0, 2, (samples,))


class Gpt(torch.nn.Module):
    """GPT-2 small on 256 tokens, without dropout, as prepare.py exports it."""

    def __init__(self):
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel
        self.model = GPT2LMHeadModel(GPT2Config(use_cache=False, attn_implementation="eager", resid_pdrop=0, embd_pdrop=0,
                                                attn_pdrop=0))

    def forward(self, tokens):
        return self.model(input_ids=tokens).logits

    @staticmethod
    def batch(samples):
        tokens = torch.randint(0, 50257, (samples, 256))
        return tokens, tokens


class ResNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        import torchvision
        self.model = torchvision.models.resnet50(weights=None)

    def forward(self, images):
        return self.model(images)

    @staticmethod
    def batch(samples):
        return torch.randn(samples, 3, 224, 224), torch.randint(0, 1000, (samples,))


def of_tests(name):
    """The small models of a rehearsal, those of tests/system/training/models.py."""
    sys.path.insert(0, str(ROOT / "tests/system/training"))
    import models
    module = {"conv": models.Conv, "bert": models.Bert}[name]

    class Small(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = module()

        def forward(self, *inputs):
            return self.model(*inputs)

        @staticmethod
        def batch(samples):
            return tuple(module.samples(samples, torch.Generator().manual_seed(0)).values())
    return Small


def main():
    name, samples, way, device = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.manual_seed(0)
    kind = {"resnet50": ResNet, "bert_base": Bert, "gpt2": Gpt}.get(name) or of_tests(name)
    module = kind().to(device).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    *inputs, labels = (part.to(device) for part in kind.batch(samples))
    forward = torch.compile(module) if way == "compile" else module
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def step():
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = cross_entropy(forward(*inputs).flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        wait()
        return time.perf_counter() - begin

    for _ in range(WARM):
        step()
    seconds = statistics.median(step() for _ in range(STEPS))
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    print(json.dumps({"seconds": seconds, "peak_memory_bytes": peak}))


if __name__ == "__main__":
    main()
