#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_layers.py: right and wrong includes in a small tree of its own."""

import pathlib
import tempfile
import unittest

import check_layers

TABLE = """
set(AGPCS_ARROWS_ir)
set(AGPCS_ARROWS_cost_model ir)
set(AGPCS_ARROWS_frontend ir)
set(AGPCS_ARROWS_runtime ir)
"""


def errors_of(files):
    """The checker's errors on a tree of `files`, {path: text}, in which ir installs <agpcs/plan.h>."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        tree = {"cmake/AgpcsLibrary.cmake": TABLE, "ir/include/agpcs/plan.h": "#include <string>\n",
                "runtime/include/agpcs/replayer.h": "#include <agpcs/plan.h>\n"}
        for path, text in {**tree, **files}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        return check_layers.Checker(root).run()


class CheckLayersTest(unittest.TestCase):
    def assert_refused(self, path, include, why):
        errors = errors_of({path: f"// a comment\n{include}\n"})
        self.assertEqual(len(errors), 1, errors)
        self.assertIn(f"{path}:2: {include}: ", errors[0])
        self.assertIn(why, errors[0])

    def assert_accepted(self, path, *includes):
        self.assertEqual(errors_of({path: "\n".join(includes) + "\n"}), [])

    def test_accepts_includes_along_the_arrows(self):
        self.assert_accepted("cost_model/a.cc", '#include "cost_model/a.h"', '#include "ir/graph.h"',
                             "#include <agpcs/plan.h>", "#include <vector>", "#include <fmt/format.h>",
                             "#include <Eigen/Dense>", "#include <sys/stat.h>", "#include <unistd.h>")

    def test_refuses_an_internal_header_against_the_arrows(self):
        self.assert_refused("ir/a.cc", '#include "cost_model/a.h"', "ir may not use cost_model, only nothing")
        self.assert_refused("cost_model/a.cc", '#include "runtime/a.h"', "cost_model may not use runtime, only ir")

    def test_refuses_an_installed_header_against_the_arrows(self):
        self.assert_refused("ir/a.cc", "#include <agpcs/replayer.h>", "ir may not use runtime")

    def test_refuses_an_installed_header_that_nobody_installs(self):
        self.assert_refused("ir/a.cc", "#include <agpcs/plam.h>", "no folder installs it")

    def test_refuses_an_installed_header_by_its_path(self):
        self.assert_refused("runtime/a.cc", '#include "ir/include/agpcs/plan.h"', "as <agpcs/...>")

    def test_refuses_a_path_that_does_not_start_at_the_root(self):
        self.assert_refused("ir/a.cc", '#include "graph.h"', "by its path from the root")
        self.assert_refused("ir/a.cc", '#include "ir/../cost_model/a.h"', "by its path from the root")

    def test_refuses_a_test_header_in_a_library(self):
        self.assert_refused("ir/a.cc", '#include "tests/builders.h"', "ir may not use tests")

    def test_refuses_a_third_party_outside_its_owner(self):
        for header in ("onnx/onnx_pb.h", "google/protobuf/message.h", "yaml-cpp/yaml.h"):
            self.assert_refused("runtime/a.cc", f"#include <{header}>", "frontend owns")
        for header in ("torch/torch.h", "ATen/ATen.h", "c10/util/Optional.h", "gloo/context.h", "nccl.h",
                       "cuda_runtime.h"):
            self.assert_refused("ir/a.cc", f"#include <{header}>", "runtime owns")
        self.assert_refused("ir/a.cc", "#include <Eigen/Dense>", "cost_model owns Eigen, not ir")
        self.assert_refused("ir/a.cc", "#include <metis.h>", "planner owns metis.h, not ir")
        self.assert_refused("ir/a.cc", "#include <CLI/CLI.hpp>", "tools owns CLI, not ir")
        self.assert_refused("ir/a.cc", "#include <gtest/gtest.h>", "tests owns gtest, not ir")

    def test_refuses_a_third_party_that_it_does_not_know(self):
        self.assert_refused("ir/a.cc", "#include <boost/any.hpp>", "an unknown third party")

    def test_refuses_anything_but_std_and_agpcs_in_an_installed_header(self):
        path = "ir/include/agpcs/status.h"
        for include in ("#include <fmt/format.h>", '#include "ir/graph.h"', "#include <unistd.h>"):
            self.assert_refused(path, include, "only the standard library and <agpcs/...>")
        self.assert_accepted(path, "#include <cstdint>", "#include <agpcs/plan.h>")

    def test_refuses_an_installed_header_with_two_owners(self):
        self.assertEqual(errors_of({"runtime/include/agpcs/plan.h": ""}),
                         ["<agpcs/plan.h> is installed by ir and by runtime"])

    def test_lets_tests_use_everything(self):
        self.assert_accepted("tests/ir/a_test.cc", '#include "runtime/a.h"', '#include "tests/builders.h"',
                             "#include <onnx/onnx_pb.h>", "#include <gtest/gtest.h>")


if __name__ == "__main__":
    unittest.main()
