#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network in PyTorch by a plan, on two processes of this machine (docs/start/pytorch.md).

    python3 train.py plan                          writes net.onnx and net.plan
    python3 train.py                               trains, in as many processes as the plan has ranks
    torchrun --standalone --nproc_per_node 2 train.py    the same, with PyTorch's launcher
"""

import os
import pathlib
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import agpcs
import agpcs.torch

CLUSTER = pathlib.Path(__file__).resolve().parents[1] / "clusters/local-2.yaml"
EPOCHS = 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1, stride=2)
        self.norm1, self.norm2 = nn.BatchNorm2d(16), nn.BatchNorm2d(32)
        self.fc = nn.Linear(32, 4)

    def forward(self, image):
        x = torch.relu(self.norm1(self.conv1(image)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.fc(x.mean((2, 3)))


def make_plan():
    agpcs.torch.export(Net(), (torch.randn(2, 3, 16, 16),), "net.onnx", input_names=["image"])
    # The first process takes three samples of four. On a real cluster: data_parallel=True, and the shares that are fastest.
    plan = agpcs.plan("net.onnx", CLUSTER, batch=64, layout="local/0:3,local/1:1")
    plan.save("net.plan")
    print(f"shares {plan.shares}, {len(plan.groups)} groups, step {plan.estimates.step_seconds * 1e3:.3g} ms")


def make_data():
    """Images whose label is the quarter that is brightest."""
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(512, 3, 16, 16, generator=generator)
    labels = torch.randint(0, 4, (512,), generator=generator)
    for image, label in zip(images, labels.tolist()):
        row, column = 8 * (label // 2), 8 * (label % 2)
        image[label % 3, row:row + 8, column:column + 8] += 0.5 * (label + 1)
    return TensorDataset(images, labels)


def train():
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data, plan = make_data(), agpcs.load("net.plan")

    ddp = DistributedDataParallel(Net())
    ddp.register_comm_hook(*agpcs.torch.plan_hook(plan))
    sampler = agpcs.torch.PlanSampler(data, plan, rank)
    loader = DataLoader(data, batch_sampler=sampler)

    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for i, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(images), labels)
            sampler.weigh(loss, i).backward()
            optimizer.step()
            total += loss.detach() * len(labels) / len(data)
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: loss {total.item():.4f}")
    dist.barrier()  # Gloo's thread lets go of the last tensor before Python ends; to free it, it would need Python
    dist.destroy_process_group()


def train_as(rank, ranks, folder, train):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    train()


def on_ranks(train, ranks):
    """Calls `train` in a process for each rank: those of torchrun, or else `ranks` new ones."""
    if "RANK" in os.environ:  # torchrun
        dist.init_process_group("gloo")
        train()
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train_as, (ranks, folder, train), nprocs=ranks)


if __name__ == "__main__":
    if sys.argv[1:] == ["plan"]:
        make_plan()
    else:
        on_ranks(train, agpcs.load("net.plan").ranks)
