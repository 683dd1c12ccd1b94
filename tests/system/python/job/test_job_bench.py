# SPDX-License-Identifier: Apache-2.0
"""The bench that compares a step of Job with one of PyTorch's own pipelining runs, and its ways give the same gradients: it
calls parts of Job that may get other names."""

import pathlib
import subprocess
import sys
import unittest

BENCH = pathlib.Path(__file__).resolve().parents[3] / "bench/torch/job_bench.py"
SHORT = ("--width", "16", "--micro-batches", "2", "--rounds", "1", "--steps", "1")


class JobBench(unittest.TestCase):
    def test_prints_all_its_figures(self):
        done = subprocess.run([sys.executable, BENCH, *SHORT], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for figure in ("| agpcs.torch.Job |", "| torch.distributed.pipelining |", "| plain loop |",
                       "own share beside a plain loop", "own share outside of calls"):
            self.assertIn(figure, done.stdout)


if __name__ == "__main__":
    unittest.main()
