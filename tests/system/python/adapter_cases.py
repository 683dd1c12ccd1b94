# SPDX-License-Identifier: Apache-2.0
"""What the tests of adapters to libraries share: ranks as torchrun starts them, and what one process does without them."""

import itertools
import os
import re
import subprocess
import sys
import tempfile

from cases import BATCH, ROOT, Data
from test_loops import made, size_of

import torch
from torch import nn

SAMPLES, EPOCHS, SEED = 2 * BATCH + 5, 2, 5  # an epoch has two whole batches and a rest


def launched(rank, ranks):
    """Makes this process look like one of torchrun's, for libraries that ask the environment. The group is there."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                      GROUP_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", TORCHELASTIC_RUN_ID="test",
                      OMP_NUM_THREADS="1")


def alone(rank, kind, loss_fn, clip=None, epochs=EPOCHS, left_out=()):
    """The losses of steps over the same batches in one process, and what they leave of the parameters: plain PyTorch.
    `left_out`: numbers of steps, over all epochs, that are not done."""
    data, module, losses = Data(kind, SAMPLES), made(kind), []
    optimizer = optimizer_of(module)
    steps = itertools.count()
    for epoch in range(epochs):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(SEED + epoch)).tolist()
        for begin in range(0, SAMPLES, BATCH):
            if next(steps) in left_out:
                continue
            batch = torch.utils.data.default_collate([data[i] for i in order[begin:begin + BATCH]])
            loss = loss_fn(module, *batch)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, size_of(module)


def optimizer_of(module):
    """SGD: a gradient of the wrong size shows, which Adam would not mind."""
    return torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.5, momentum=0.9)


def compare(test, found, expected, tolerance=1e-5):
    """Compares losses and sizes of parameters."""
    (losses, size), (losses_alone, size_alone) = found, expected
    test.assertEqual(len(losses), len(losses_alone))
    for value, wanted in zip([*losses, size], [*losses_alone, size_alone]):
        test.assertAlmostEqual(value, wanted, delta=tolerance * wanted)


def check_other_plan(test, results, prefix=""):
    """Whether the hook refused the plan of Adapted for a Tagger; `results` are those of ranks."""
    names = ", ".join(f"'{prefix}{name}'" for name in ("words.weight", "inner.weight", "inner.bias"))
    for result in results:
        test.assertEqual(result, ("PlanMismatch", f"the plan lacks {names} of the module\n  hint: plan the module that is "
                                  "trained; unplanned='last' reduces them after the plan's groups"))


def check_sample(test, name):
    """Plans and trains with a script of samples/pytorch_ddp, as its first lines say."""
    folder_of = ROOT / "samples/pytorch_ddp"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    with tempfile.TemporaryDirectory() as folder:
        for command in ([sys.executable, folder_of / "train.py", "plan"], [*torchrun, folder_of / name]):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100,
                                  env={**os.environ, "OMP_NUM_THREADS": "1"})
            test.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    losses = [float(loss) for loss in re.findall(r"epoch \d: loss (\S+)", done.stdout)]
    test.assertEqual(len(losses), 3, done.stdout)
    test.assertLess(losses[-1], 0.7 * losses[0])
