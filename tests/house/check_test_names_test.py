#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_test_names.py: right and wrong names, as ctest and GoogleTest list them."""

import unittest

from check_test_names import faults_of_listing, faults_of_names

PRINTED = """Plain.
  HasAName
All/ReducerOver.  # TypeParam = float
  Sums/loopbackPlanned  # GetParam() = loopback Planned
  Sums/gloo_2  # GetParam() = ("gloo", 2)
"""
UNPRINTED = """Table/Refiners.
  AreGood/greedy  # GetParam() = 40-byte object <06-00 00-00 00-00 00-00 2B-7E 18-5C C1-D9 00-00>
  AreFast/greedy  # GetParam() = 40-byte object <06-00 00-00 00-00 00-00 2B-7E 18-5C C1-D9 00-00>
  AreFast/none  # GetParam() = 0x55d0c1d92b7e pointing to "none"
"""
NUMBERED = """Samples/Models.
  Import/0  # GetParam() = resnet50.onnx
  Print/0  # GetParam() = resnet50.onnx
"""


class CheckTestNamesTest(unittest.TestCase):
    def test_accepts_names(self):
        names = ["Plain.HasAName", "All/ReducerOver.Sums/loopbackPlanned", "House.CompilesAlone<ir/include/agpcs/plan.h>",
                 "python.plan", "models_x_clusters"]
        self.assertEqual(list(faults_of_names(names)), [])
        self.assertEqual(faults_of_listing(PRINTED), [])

    def test_refuses_what_ctest_makes_of_parameters(self):
        name = "Table/Refiners.AreGood/greedy  # GetParam() = 40-byte object <C1-D9>"
        self.assertEqual(list(faults_of_names(["a.B", name])),
                         [f"ctest lists '{name}': a name has letters, digits and _ . / < > - only"])

    def test_refuses_bytes_and_addresses(self):
        bytes_of_it = "40-byte object <06-00 00-00 00-00 00-00 2B-7E 18-5C C1-D9 00-00>"
        self.assertEqual(faults_of_listing(UNPRINTED), [
            f"Table/Refiners.*/greedy: its parameter is printed as '{bytes_of_it}': give its type a PrintTo",
            "Table/Refiners.*/none: its parameter is printed as '0x55d0c1d92b7e pointing to \"none\"': give its type a "
            "PrintTo"])

    def test_refuses_numbers(self):
        self.assertEqual(faults_of_listing(NUMBERED), [
            "Samples/Models.*/0: its name is a number: give INSTANTIATE_TEST_SUITE_P a function for names"])

    def test_refuses_a_binary_that_is_not_there(self):
        self.assertEqual(list(faults_of_names(["planner_test_NOT_BUILT"])),
                         ["planner_test: is not built, so nobody knows its tests"])


if __name__ == "__main__":
    unittest.main()
