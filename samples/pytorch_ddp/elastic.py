#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goes on with the ranks that are left when a machine is lost, and with more when it is back (docs/start/pytorch.md).

On each of two machines, of which one may come, go and come back:

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --nnodes 1:2 --nproc_per_node 1 --max_restarts 10 --rdzv_backend c10d --rdzv_endpoint HOST:29400 elastic.py

HOST is the machine that stays. The current folder is one that both see: it gets the checkpoint, and autoplan's files.

    python3 elastic.py                                            trains in two processes of this machine
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import agpcs.torch
from train import make_data, on_ranks

BATCH, EPOCHS = 64, 3
CHECKPOINT = "elastic.pt"


class Net(nn.Module):
    """Without batch norm, whose statistics are a rank's own: so that losses do not depend on the number of ranks."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1, stride=2)
        self.norm1, self.norm2 = nn.GroupNorm(4, 16), nn.GroupNorm(4, 32)
        self.fc = nn.Linear(32, 4)

    def forward(self, image):
        x = torch.relu(self.norm1(self.conv1(image)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.fc(x.mean((2, 3)))


def loss_fn(model, batch):
    images, labels = batch
    return cross_entropy(model(images), labels)


def save(model, optimizer, sampler):
    """Writes the checkpoint. Whoever loses this process half way finds the one before."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sampler": sampler.state_dict()}
    torch.save(state, CHECKPOINT + ".new")
    os.replace(CHECKPOINT + ".new", CHECKPOINT)


def train():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data, model = make_data(), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    sample_batch = next(iter(DataLoader(data, batch_size=4)))
    plan = agpcs.torch.autoplan(model, loss_fn, sample_batch, batch=BATCH, optimizer=optimizer, seconds=10)
    sampler = agpcs.torch.PlanSampler(data, plan)
    if os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT, map_location="cpu")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])

    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(*agpcs.torch.plan_hook(plan))
    loader = DataLoader(data, batch_sampler=sampler)
    for epoch in range(sampler.epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for i, batch in enumerate(loader):
            optimizer.zero_grad()
            loss = loss_fn(ddp, batch)
            sampler.weigh(loss, i).backward()
            optimizer.step()
            total = loss.detach() * len(batch[1]) / BATCH
            dist.all_reduce(total)
            if plan.rank == 0:
                save(model, optimizer, sampler)
                now = sampler.state_dict()
                print(f"{plan.ranks} ranks came to epoch {now['epoch']}, step {now['steps']}: loss {total.item():.8f}",
                      flush=True)
    dist.barrier()  # Gloo's thread lets go of the last tensor before Python ends; to free it, it would need Python
    dist.destroy_process_group()


if __name__ == "__main__":
    on_ranks(train, 2)
