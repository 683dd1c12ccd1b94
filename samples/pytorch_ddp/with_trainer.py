#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the network of train.py by a plan with the Trainer of transformers (docs/start/pytorch.md).

    python3 train.py plan                                                     writes net.plan
    torchrun --standalone --nproc_per_node 2 with_trainer.py                  trains
"""

import tempfile

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset
from transformers import TrainingArguments

import agpcs.torch
from train import EPOCHS, Net, make_data


class Classifier(Net):
    """Returns its loss, as models of transformers do."""

    def forward(self, image, labels=None):
        logits = super().forward(image)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class Named(Dataset):
    def __init__(self):
        self.data = make_data()

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        image, label = self.data[index]
        return {"image": image, "labels": label}


def train(folder):
    args = TrainingArguments(
        folder, per_device_train_batch_size=16, gradient_accumulation_steps=2,  # 64 samples a step, by 2 ranks
        num_train_epochs=EPOCHS, learning_rate=0.1, lr_scheduler_type="constant", optim="sgd", optim_args="momentum=0.9",
        logging_strategy="epoch", save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True)
    torch.manual_seed(0)
    trainer = agpcs.torch.planned_trainer("net.plan")(Classifier(), args, train_dataset=Named())
    trainer.train()
    if trainer.is_world_process_zero():
        for entry in trainer.state.log_history[:EPOCHS]:
            print(f"epoch {entry['epoch'] - 1:.0f}: loss {entry['loss']:.4f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        train(folder)
