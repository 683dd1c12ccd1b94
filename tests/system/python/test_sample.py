#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""samples/pytorch_ddp, as its first lines say to run it."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import cases  # skips without PyTorch

SAMPLE = cases.ROOT / "samples/pytorch_ddp/train.py"
AUTOPLAN = cases.ROOT / "samples/pytorch_ddp/autoplan.py"


class Sample(unittest.TestCase):
    def run_in(self, folder, *words):
        done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.errors = done.stderr
        return done.stdout

    def test_plans_and_trains_on_two_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertRegex(self.run_in(folder, SAMPLE, "plan"), r"shares \(48, 16\), \d+ groups, step \d")
            self.assertTrue((pathlib.Path(folder) / "net.plan").exists())
            said = self.run_in(folder, SAMPLE)
            losses = [float(loss) for loss in re.findall(r"epoch \d: loss (\S+)", said)]
            self.assertEqual(len(losses), 3, said)
            self.assertLess(losses[-1], 0.7 * losses[0])

    def test_measures_plans_and_trains(self):
        with tempfile.TemporaryDirectory() as folder:
            said = self.run_in(folder, AUTOPLAN)
            shares = re.search(r"shares: \S+/0 (\d+), \S+/1 (\d+)", self.errors)
            # A busy machine may measure any speeds; that shares follow them, test_autoplan.py proves.
            self.assertEqual(int(shares[1]) + int(shares[2]), 64, self.errors)
            losses = [float(loss) for loss in re.findall(r"epoch \d+: loss (\S+)", said)]
            self.assertEqual(len(losses), 3, said)
            self.assertLess(losses[-1], 0.7 * losses[0])
            self.assertIn("agpcs: the last 50 steps took", self.errors)
            again = self.run_in(folder, AUTOPLAN)
            self.assertIn("by the measurements of", self.errors)
            self.assertEqual(again.count("epoch"), 3)


if __name__ == "__main__":
    unittest.main()
