#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on processes of unequal speed, as their measurements say (docs/start/pytorch.md).

    python3 autoplan.py                                           trains, in two processes
    torchrun --standalone --nproc_per_node 2 autoplan.py          the same, with PyTorch's launcher

The second process computes each pass twice, so that it is half as fast.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import agpcs.torch
from train import EPOCHS, Net, make_data, on_ranks

BATCH = 64


class SlowNet(Net):
    """Stands for a device of half the speed."""

    def forward(self, image):
        return (super().forward(image) + super().forward(image)) / 2


def loss_fn(model, batch):
    images, labels = batch
    return cross_entropy(model(images), labels)


def train():
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = make_data()
    model = SlowNet() if rank == 1 else Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    sample_batch = next(iter(DataLoader(data, batch_size=4)))
    plan = agpcs.torch.autoplan(model, loss_fn, sample_batch, batch=BATCH, optimizer=optimizer, seconds=20)

    sampler = agpcs.torch.PlanSampler(data, plan)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(*agpcs.torch.plan_hook(plan, sampler=sampler))
    loader = DataLoader(data, batch_sampler=sampler)
    for epoch in range(8 * EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for i, batch in enumerate(loader):
            optimizer.zero_grad()
            loss = loss_fn(ddp, batch)
            sampler.weigh(loss, i).backward()
            optimizer.step()
            total += loss.detach() * len(batch[1]) / len(data)
        dist.all_reduce(total)
        if rank == 0 and epoch % 8 == 7:
            print(f"epoch {epoch}: loss {total.item():.4f}")
    dist.barrier()  # Gloo's thread lets go of the last tensor before Python ends; to free it, it would need Python
    dist.destroy_process_group()


if __name__ == "__main__":
    on_ranks(train, 2)
