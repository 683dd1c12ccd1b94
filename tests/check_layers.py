#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on an #include against the house's layers.

The arrows are read from the table in cmake/AgpcsLibrary.cmake. Rules:
  * "folder/x.h" and <agpcs/x.h> are included only along an arrow; a library never includes from tests/;
  * an internal header is "folder/x.h", an installed one <agpcs/x.h>, and has one folder that installs it;
  * a third-party header is included only in its owner folder (tests/ may use all), and is in the table below;
  * an installed header includes nothing but the standard library and <agpcs/...>.
"""

import argparse
import pathlib
import re
import sys

# Third-party headers by the start of their path, and the folders that may include them.
ANYWHERE = None
THIRD_PARTIES = {
    "fmt/": ANYWHERE,
    "onnx/": {"frontend"},
    "google/protobuf/": {"frontend"},
    "yaml-cpp/": {"frontend"},
    "Eigen/": {"cost_model"},
    "metis.h": {"planner"},
    "torch/": {"planner", "runtime"},
    "ATen/": {"planner", "runtime"},
    "c10/": {"planner", "runtime"},
    "gloo/": {"runtime"},
    "nccl.h": {"runtime"},
    "cuda": {"runtime"},
    "CLI/": {"tools"},
    "pybind11/": {"tools"},
    "gtest/": {"tests"},
    "gmock/": {"tests"},
    "benchmark/": {"tests"},
    "simgrid/": {"tests"},
}

STANDARD = re.compile(r"[a-z_0-9]+$")
SYSTEM = re.compile(
    r"(arpa|linux|net|netinet|sys)/[a-z_0-9]+\.h$"
    r"|(cpuid|dirent|dlfcn|execinfo|fcntl|fnmatch|ifaddrs|immintrin|malloc|netdb|poll|pthread|sched|signal|spawn|unistd)\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = {".h", ".cc", ".cu"}


def read_arrows(root):
    """The arrow table: {folder: {folders that it may include from}}."""
    text = (root / "cmake/AgpcsLibrary.cmake").read_text()
    arrows = {m[1]: set(m[2].split()) for m in re.finditer(r"^set\(AGPCS_ARROWS_(\w+)([^)]*)\)", text, re.M)}
    if not arrows:
        sys.exit("check_layers: no arrow table in cmake/AgpcsLibrary.cmake")
    return arrows


class Checker:
    def __init__(self, root):
        self.root = root
        self.arrows = read_arrows(root)
        self.errors = []
        self.owners = {}  # installed header, "agpcs/plan.h" -> folder
        self.files = 0

    def run(self):
        for folder in self.arrows:
            self.find_installed(folder)
        for folder in [*self.arrows, "tests"]:
            for path in sorted((self.root / folder).rglob("*")):
                if path.suffix in SOURCES:
                    self.check_file(folder, path)
        return self.errors

    def find_installed(self, folder):
        include = self.root / folder / "include"
        for header in sorted(include.rglob("*.h")):
            name = header.relative_to(include).as_posix()
            if name in self.owners:
                self.errors.append(f"<{name}> is installed by {self.owners[name]} and by {folder}")
            self.owners[name] = folder

    def check_file(self, folder, path):
        self.files += 1
        installed = (self.root / folder / "include") in path.parents
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := INCLUDE.match(line):
                why = self.check_include(folder, installed, match[1] == '"', match[2])
                if why:
                    where = path.relative_to(self.root).as_posix()
                    self.errors.append(f"{where}:{number}: {line.strip()}: {why}")

    def check_include(self, folder, installed, quoted, header):
        """Why a file of `folder` may not include `header`; None if it may."""
        if quoted:
            return self.check_internal(folder, installed, header)
        if header.startswith("agpcs/"):
            owner = self.owners.get(header)
            return self.check_arrow(folder, owner) if owner else "no folder installs it"
        if STANDARD.match(header):
            return None
        if installed:
            return "an installed header includes only the standard library and <agpcs/...>"
        if SYSTEM.match(header):
            return None
        return self.check_third_party(folder, header)

    def check_internal(self, folder, installed, header):
        target = header.split("/")[0]
        if installed:
            return "an installed header includes only the standard library and <agpcs/...>"
        if "/include/agpcs/" in header:
            return "an installed header is included as <agpcs/...>"
        if ".." in header.split("/") or "/" not in header or target not in {*self.arrows, "tests"}:
            return "an internal header is included by its path from the root, \"folder/x.h\""
        return self.check_arrow(folder, target)

    def check_arrow(self, folder, target):
        if folder in (target, "tests") or target in self.arrows[folder]:
            return None
        allowed = " ".join(sorted(self.arrows[folder])) or "nothing"
        return f"{folder} may not use {target}, only {allowed}"

    def check_third_party(self, folder, header):
        for prefix, owners in THIRD_PARTIES.items():
            if header.startswith(prefix):
                if owners is ANYWHERE or folder == "tests" or folder in owners:
                    return None
                return f"{' '.join(sorted(owners))} owns {prefix.rstrip('/')}, not {folder}"
        return "an unknown third party: give it an owner in tests/check_layers.py"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    checker = Checker(parser.parse_args().root)
    for error in checker.run():
        print(error)
    print(f"check_layers: {checker.files} files, {len(checker.errors)} errors")
    return 1 if checker.errors else 0


if __name__ == "__main__":
    sys.exit(main())
