#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of what benchmarks say to a wrong call, before they measure anything. $AGPCS_BENCH_DIR has them."""

import os
import pathlib
import subprocess
import tempfile
import unittest

BENCHES = pathlib.Path(os.environ["AGPCS_BENCH_DIR"])


class Mistakes(unittest.TestCase):
    def assert_refused(self, words, message):
        done = subprocess.run([BENCHES / words[0], *words[1:]], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "", message + "\n"))

    def test_a_folder_that_is_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in (f"{folder}/no", __file__):
                self.assert_refused(["coordination_bench", "--charts", path],
                                    f"{path}: error: not a folder\n  hint: make it first: mkdir -p {path}")
            for bench in (["refiner_bench", "--list", "unseen"], ["flow_policy_bench"]):
                self.assert_refused([*bench, "--csv", f"{folder}/no/a.csv"],
                                    f"{folder}/no/a.csv: error: cannot be written: No such file or directory")

    def test_a_model_that_is_none(self):
        folder = os.path.dirname(__file__)
        done = subprocess.run([BENCHES / "coordination_bench", "--model", folder], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertTrue(done.stderr.startswith(f"{folder}: error: "), done.stderr)

    def test_data_that_nobody_named(self):
        self.assert_refused(["allreduce_vs_nccl"], "allreduce_vs_nccl: error: no folder of measurements\n"
                            "  hint: allreduce_vs_nccl FOLDER, of what nccl-tests prints")
        self.assert_refused(["kernel_errors"], "kernel_errors: error: no measurements\n"
                            "  hint: kernel_errors FOLDER [both|v100_pcie|t4], or FILE.csv")
        self.assert_refused(["grouping_bench"], "grouping_bench: error: two folders are needed\n"
                            "  hint: grouping_bench PROFILES MEASUREMENTS, of PipeDream and of nccl-tests")
        self.assert_refused(["replan_bench"], "replan_bench: error: no models, or no clusters\n"
                            "  hint: replan_bench FOLDER MODEL... -- CLUSTER.yaml..., such as samples/models resnet50 "
                            "-- samples/clusters/mixed-32.yaml")
        self.assert_refused(["chain_bench", "9"], "chain_bench: error: wrong numbers\n"
                            "  hint: chain_bench [DEVICES [THREADS [TIMES [BUDGET]]]], DEVICES a multiple of 8")
        with tempfile.TemporaryDirectory() as folder:
            self.assert_refused(["kernel_errors", folder], f"{folder}: error: has no measured kernels\n"
                                "  hint: it is to hold v100_pcie_*.csv and t4_*.csv of NeuSight")
            self.assert_refused(["kernel_errors", folder, "p4"], "kernel_errors: error: unknown device 'p4'\n"
                                "  hint: kernel_errors FOLDER [both|v100_pcie|t4], or FILE.csv")
            self.assert_refused(["allreduce_vs_nccl", folder],
                                f"{folder}/v100_allreduce_4gpu.txt: error: there is nothing\n"
                                "  hint: it is to be what nccl-tests prints of all-reduces on V100")

    def test_options_that_are_none(self):
        self.assert_refused(["refiner_bench", "--budget", "500"], "refiner_bench: error: unknown option '--budget'")
        self.assert_refused(["refiner_bench", "--budgets"], "refiner_bench: error: '--budgets' has no value")
        self.assert_refused(["find_best_known", "select", "none.txt", "--budget", "500"],
                            "find_best_known: error: unknown option '--budget'")
        self.assert_refused(["find_best_known", "improve", "none.txt", "--first"],
                            "find_best_known: error: '--first' has no value")

    def test_numbers_that_are_none(self):
        for bench, *words in (("refiner_bench", "--budgets", "x"), ("refiner_bench", "--threads", "x"),
                              ("find_best_known", "select", "none.txt", "--first", "x"), ("flow_bench", "exact", "x"), ("chain_bench", "x")):
            self.assert_refused([bench, *words], f"{bench}: error: 'x' is not a whole number in range")
        self.assert_refused(["refiner_bench", "--seeds", "-1"],
                            "refiner_bench: error: '-1' is not a whole number in range")


if __name__ == "__main__":
    unittest.main()
