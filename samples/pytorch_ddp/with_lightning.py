#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the network of train.py by a plan with Lightning (docs/start/pytorch.md).

    python3 train.py plan                                                     writes net.plan
    torchrun --standalone --nproc_per_node 2 with_lightning.py                trains
"""

import pytorch_lightning as L  # or: import lightning as L
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import agpcs.torch
from train import EPOCHS, Net, make_data


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = cross_entropy(self.net(images), labels)
        self.log("loss", loss, on_epoch=True, sync_dist=True)  # the mean over ranks, whose shares differ
        return loss

    def on_train_epoch_end(self):
        self.print(f"epoch {self.current_epoch}: loss {self.trainer.callback_metrics['loss_epoch']:.4f}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def train():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = make_data()
    sampler = agpcs.torch.PlanSampler(data, "net.plan", micro_batches=2)
    by_plan = agpcs.torch.planned_callback(sampler, L.Callback, rename="net.{}".format)  # the plan is that of Module.net
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=EPOCHS, accumulate_grad_batches=2,
        use_distributed_sampler=False, callbacks=[by_plan],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Module(), DataLoader(data, batch_sampler=sampler))
    dist.barrier()  # Gloo's thread lets go of the last tensor before Python ends; to free it, it would need Python
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
