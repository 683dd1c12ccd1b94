#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of how kernel_errors reads a list of tests/gpu/kernels.py. $AGPCS_BENCH_DIR has it."""

import os
import pathlib
import subprocess
import tempfile
import unittest

BENCH = pathlib.Path(os.environ["AGPCS_BENCH_DIR"]) / "kernel_errors"
HEADER = "device,precision,class,pass,ms,s0,s1,s2,s3,s4,s5,s6\n"
HINT = "  hint: it is to be what tests/gpu/kernels.py writes\n"


class OwnLists(unittest.TestCase):
    def run_on(self, rows, *words):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "kernels.csv"
            path.write_text(HEADER + "".join(f"{row}\n" for row in rows))
            done = subprocess.run([BENCH, path, *words], capture_output=True, text=True)
            return done.returncode, done.stdout, done.stderr.replace(str(path), "FILE")

    def table_of(self, rows):
        """Precision, class, pass and number of kernels by row, and the errors of each."""
        code, out, err = self.run_on(rows)
        self.assertEqual((code, err), (0, ""))
        lines = [line.split()[2:] for line in out.splitlines()[1:]]  # without "NVIDIA H200"
        return [" ".join(line[:4]) for line in lines], [line[4:] for line in lines]

    def test_each_class_and_pass_has_its_row(self):
        rows, errors = self.table_of([
            "NVIDIA H200,tf32,linear,forward,0.3,32,128,4096,4096,,,", "NVIDIA H200,tf32,linear,backward,0.9,32,128,4096,4096,,,",
            "NVIDIA H200,fp16,bmm,forward,0.07,384,512,512,64,,,", "NVIDIA H200,bf16,conv,backward,0.3,128,64,64,3,56,1,1",
            "NVIDIA H200,bf16,add,forward,0.3,65536,3072,,,,,", "NVIDIA H200,bf16,relu,forward,0.2,65536,3072,,,,,",
            "NVIDIA H200,bf16,gelu,forward,0.2,65536,3072,,,,,", "NVIDIA H200,bf16,softmax,forward,0.2,65536,3072,,,,,",
            "NVIDIA H200,bf16,ln,backward,0.5,65536,3072,,,,,"])
        self.assertEqual(rows, ["tf32 linear forward 1", "tf32 linear backward 1", "fp16 bmm forward 1", "bf16 conv backward 1",
                                "bf16 add forward 1", "bf16 relu forward 1", "bf16 gelu forward 1", "bf16 softmax forward 1",
                                "bf16 ln backward 1"])
        for columns in errors:
            sizes = [float(column.rstrip("%")) for column in columns]
            self.assertEqual(len(sizes), 5)
            self.assertTrue(all(abs(size) < 100 for size in sizes), sizes)  # the shapes were read as they are

    def test_short_kernels_do_not_count_and_products_have_two_backward(self):
        rows, _ = self.table_of([
            "NVIDIA H200,tf32,relu,forward,0.019,4096,2048,,,,,", "NVIDIA H200,tf32,relu,forward,0.021,4096,2048,,,,,",
            "NVIDIA H200,tf32,relu,backward,0.021,4096,2048,,,,,", "NVIDIA H200,tf32,linear,backward,0.039,8,128,768,768,,,",
            "NVIDIA H200,tf32,bmm,backward,0.041,96,512,64,512,,,", "NVIDIA H200,tf32,ln,forward,0.019,4096,2048,,,,,"])
        self.assertEqual(rows, ["tf32 relu forward 1", "tf32 relu backward 1", "tf32 bmm backward 1"])

    def test_what_is_no_list(self):
        self.assertEqual(self.run_on([]), (1, "", "FILE: error: has no measured kernels\n" + HINT))
        for row in ("NVIDIA T1000,tf32,relu,forward,0.1,1024,512,,,,,", "NVIDIA H200,fp8,relu,forward,0.1,1024,512,,,,,",
                    "NVIDIA H200,tf32,tanh,forward,0.1,1024,512,,,,,", "NVIDIA H200,tf32,relu,twice,0.1,1024,512,,,,,",
                    "NVIDIA H200,tf32,relu,forward,,1024,512,,,,,", ""):
            self.assertEqual(self.run_on([row]), (1, "", f"FILE:2: error: no kernel that is known: '{row}'\n{HINT}"))

    def test_nothing_is_fitted_to_it(self):
        code, out, err = self.run_on(["NVIDIA H200,tf32,relu,forward,0.1,1024,512,,,,,"], "both")
        self.assertEqual((code, out), (1, ""))
        self.assertTrue(err.startswith("kernel_errors: error: nothing is fitted to a list of our own\n"), err)


if __name__ == "__main__":
    unittest.main()
