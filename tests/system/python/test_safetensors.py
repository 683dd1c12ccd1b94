#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs-run --save-parameters FILE.safetensors: PyTorch's modules load what agpcs-run trained."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

try:
    import numpy
    import torch
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {sys.executable} has no {error.name}")
    sys.exit(77)

import agpcs.torch

BIN = pathlib.Path(os.environ["AGPCS_BIN_DIR"])
CLUSTER = pathlib.Path(__file__).resolve().parents[3] / "samples/clusters/local-2.yaml"
BATCH, STEPS = 8, 4


class Net(torch.nn.Module):
    """Linear and convolutional weights, a frozen one, a buffer and running statistics."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.still = torch.nn.Linear(4, 6)
        self.still.weight.requires_grad_(False)
        self.register_buffer("window", torch.arange(1.0, 7.0) / 6)
        self.head = torch.nn.Linear(6, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.head(torch.relu(self.still(x)) * self.window)


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


class Safetensors(unittest.TestCase):
    def test_a_module_goes_on_where_the_job_ended(self):
        torch.manual_seed(1)
        module, x, y = Net(), torch.randn(BATCH, 3, 6, 6), torch.randint(0, 5, (BATCH,))
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                agpcs.torch.export(module, (x,), str(folder / "net.onnx"), input_names=["x"])
            numpy.savez(folder / "train.npz", x=x.numpy(), labels=y.numpy())
            # One rank, because batch normalization normalizes by a rank's samples.
            run(BIN / "agpcs-compile", folder / "net.onnx", CLUSTER, "-q", "--batch", BATCH, "--refiner", "none",
                "--layout", "local/0", "-o", folder / "net.plan")
            file = folder / "net.safetensors"
            lines = []
            for steps in (STEPS, STEPS + 1):
                lines = run(BIN / "agpcs-run", folder / "net.plan", folder / "net.onnx", "--transport", "loopback",
                            "--data", folder / "train.npz", "--json", "--steps", steps,
                            *(["--save-parameters", file] if steps == STEPS else [])).splitlines()
            state = load_file(file)
        steps = [event for event in map(json.loads, lines) if event["event"] == "step"]
        self.assertEqual(set(state) | {"norm.num_batches_tracked"}, set(module.state_dict()))
        still, head = module.still.weight.clone(), module.head.weight.clone()
        missing, unexpected = module.load_state_dict(state, strict=False)
        self.assertEqual(unexpected, [])
        self.assertLessEqual(set(missing), {"norm.num_batches_tracked"})
        self.assertTrue(torch.equal(module.still.weight, still))
        self.assertFalse(torch.equal(module.head.weight, head))
        # The next step's loss is that of the parameters that were saved.
        loss = torch.nn.functional.cross_entropy(module(x), y).item()
        self.assertAlmostEqual(loss, steps[STEPS]["loss"], delta=1e-5)
        self.assertNotAlmostEqual(loss, steps[0]["loss"], delta=1e-4)


if __name__ == "__main__":
    unittest.main()
