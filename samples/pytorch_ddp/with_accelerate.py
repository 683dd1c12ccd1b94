#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the network of train.py by a plan with Hugging Face accelerate (docs/start/pytorch.md).

    python3 train.py plan                                                     writes net.plan
    torchrun --standalone --nproc_per_node 2 with_accelerate.py               trains
"""

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import agpcs.torch
from train import EPOCHS, Net, make_data


def train():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(make_data(), batch_size=16, shuffle=True)  # 64 samples a step, by 2 ranks and 2 batches of each

    model, optimizer = accelerator.prepare(model, optimizer)
    loader = agpcs.torch.planned_loader(accelerator, model, loader, "net.plan")
    sampler = loader.batch_sampler
    for epoch in range(EPOCHS):
        losses = []
        for i, (images, labels) in enumerate(loader):
            with accelerator.accumulate(model):
                loss = sampler.weigh(cross_entropy(model(images), labels), i)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
        mean = accelerator.reduce(torch.stack(losses).mean(), "mean")
        accelerator.print(f"epoch {epoch}: loss {mean.item():.4f}")
    accelerator.wait_for_everyone()  # Gloo's thread lets go of the last tensor before Python ends; to free it, it would need Python
    accelerator.end_training()


if __name__ == "__main__":
    train()
