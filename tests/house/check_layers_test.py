#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_layers.py: right and wrong includes in a small tree of its own."""

import pathlib
import tempfile
import unittest

import check_layers

TABLE = """
agpcs_room(ir/plan)
agpcs_room(ir/graph ir/plan)
agpcs_room(cost_model/fit ir/*)
agpcs_room(frontend ir/*)
agpcs_room(runtime ir/plan)
agpcs_room(runtime/job ir/plan runtime)
"""


def errors_of(files, table=TABLE):
    """The checker's errors on a tree of `files`, {path: text}, in which ir/plan installs <agpcs/plan.h>."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        tree = {"cmake/AgpcsLibrary.cmake": table, "ir/plan/include/agpcs/plan.h": "#include <string>\n",
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
        self.assert_accepted("cost_model/fit/a.cc", '#include "cost_model/fit/a.h"', '#include "ir/graph/graph.h"',
                             "#include <agpcs/plan.h>", "#include <vector>", "#include <fmt/format.h>",
                             "#include <Eigen/Dense>", "#include <sys/stat.h>", "#include <unistd.h>")

    def test_refuses_an_internal_header_against_the_arrows(self):
        self.assert_refused("ir/plan/a.cc", '#include "ir/graph/a.h"', "ir/plan may not use ir/graph, only nothing")
        self.assert_refused("cost_model/fit/a.cc", '#include "runtime/job/a.h"',
                            "cost_model/fit may not use runtime/job, only ir/graph ir/plan")
        self.assert_refused("runtime/job/inner/a.cc", '#include "ir/graph/a.h"', "runtime/job may not use ir/graph")

    def test_refuses_an_installed_header_against_the_arrows(self):
        self.assert_refused("ir/plan/a.cc", "#include <agpcs/replayer.h>", "ir/plan may not use runtime")

    def test_refuses_a_file_in_no_room(self):
        self.assertEqual(errors_of({"cost_model/a.cc": ""}),
                         ["cost_model/a.cc: cost_model has no row in the arrow table of cmake/AgpcsLibrary.cmake"])

    def test_refuses_an_arrow_that_points_up(self):
        with self.assertRaisesRegex(SystemExit, "the row of ir/plan .* names ir/graph, which has no row above it"):
            errors_of({}, table="agpcs_room(ir/plan ir/graph)\nagpcs_room(ir/graph)\n")

    def test_refuses_a_folder_with_too_many_files(self):
        files = {f"ir/graph/{i}.cc": "" for i in range(31)}
        self.assertEqual(errors_of(files), ["ir/graph has 31 files, more than 30: give some of them a folder of their own"])
        self.assertEqual(errors_of({f"tests/golden/{i}.txt": "" for i in range(31)}), [])

    def test_refuses_an_installed_header_that_nobody_installs(self):
        self.assert_refused("ir/plan/a.cc", "#include <agpcs/plam.h>", "no room installs it")

    def test_refuses_an_installed_header_by_its_path(self):
        self.assert_refused("runtime/job/a.cc", '#include "ir/plan/include/agpcs/plan.h"', "as <agpcs/...>")

    def test_refuses_a_path_that_does_not_start_at_the_root(self):
        self.assert_refused("ir/plan/a.cc", '#include "graph.h"', "by its path from the root")
        self.assert_refused("ir/plan/a.cc", '#include "ir/plan/../graph/a.h"', "by its path from the root")

    def test_refuses_a_test_header_in_a_library(self):
        self.assert_refused("ir/plan/a.cc", '#include "tests/support/builders.h"', "ir/plan may not use tests")

    def test_refuses_a_third_party_outside_its_owner(self):
        for header in ("onnx/onnx_pb.h", "google/protobuf/message.h"):
            self.assert_refused("runtime/job/a.cc", f"#include <{header}>", "frontend owns")
        for header, owners in {"torch/torch.h": "planner/learn runtime/torch", "ATen/ATen.h": "planner/learn runtime/torch",
                               "c10/util/Optional.h": "planner/learn runtime/torch", "yaml-cpp/yaml.h": "frontend/cluster",
                               "gloo/context.h": "runtime/transport", "openssl/hmac.h": "runtime/bootstrap", "nccl.h": "runtime/nccl",
                               "cuda_runtime.h": "runtime/nccl runtime/torch", "Eigen/Dense": "cost_model/fit", "metis.h": "planner/seed",
                               "CLI/CLI.hpp": "tools", "gtest/gtest.h": "tests"}.items():
            self.assert_refused("ir/plan/a.cc", f"#include <{header}>", f"{owners} owns")

    def test_refuses_a_third_party_that_it_does_not_know(self):
        self.assert_refused("ir/plan/a.cc", "#include <boost/any.hpp>", "an unknown third party")

    def test_refuses_anything_but_std_and_agpcs_in_an_installed_header(self):
        path = "ir/plan/include/agpcs/status.h"
        for include in ("#include <fmt/format.h>", '#include "ir/graph/graph.h"', "#include <unistd.h>"):
            self.assert_refused(path, include, "only the standard library and <agpcs/...>")
        self.assert_accepted(path, "#include <cstdint>", "#include <agpcs/plan.h>")

    def test_refuses_an_installed_header_with_two_owners(self):
        self.assertEqual(errors_of({"runtime/include/agpcs/plan.h": ""}),
                         ["<agpcs/plan.h> is installed by ir/plan and by runtime"])

    def test_the_lean_runtime_sees_base_and_plan_of_ir_and_no_other_folder(self):
        arrows = check_layers.read_arrows(pathlib.Path(__file__).resolve().parents[2])
        for room in (room for room in arrows if room.split("/")[0] == "runtime" and room != "runtime/torch"):
            self.assertLessEqual({use for use in arrows[room] if not use.startswith("runtime")}, {"ir/base", "ir/plan"}, room)

    def test_lets_tests_use_everything(self):
        self.assert_accepted("tests/ir/a_test.cc", '#include "runtime/a.h"', '#include "tests/support/builders.h"',
                             "#include <onnx/onnx_pb.h>", "#include <gtest/gtest.h>")


if __name__ == "__main__":
    unittest.main()
