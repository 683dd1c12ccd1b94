#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the house's rooms and arrows; fails on an #include against them, and on a folder that is too full.

The arrows are read from the table in cmake/AgpcsLibrary.cmake. Each row is a room: a folder, or a folder in a folder. Rules:
  * "room/x.h" and <agpcs/x.h> are included only along an arrow; a library never includes from tests/;
  * an internal header is "room/x.h", an installed one <agpcs/x.h>, and has one room that installs it;
  * an arrow points at a row above its own;
  * no folder has more than 30 files, but for fuzzing corpora and golden tests;
  * a third-party header is included only in the rooms that own it (tests/ may use all), and is in the table below;
  * an installed header includes nothing but the standard library and <agpcs/...>.
"""

import argparse
import fnmatch
import pathlib
import re
import sys

# Third-party headers by the start of their path, and the rooms, or folders of rooms, that may include them.
ANYWHERE = None
THIRD_PARTIES = {
    "fmt/": ANYWHERE,
    "onnx/": {"frontend"},
    "google/protobuf/": {"frontend"},
    "yaml-cpp/": {"frontend/cluster"},
    "Eigen/": {"cost_model/fit"},
    "metis.h": {"planner/seed"},
    "torch/": {"planner/learn", "runtime/torch"},
    "ATen/": {"planner/learn", "runtime/torch"},
    "c10/": {"planner/learn", "runtime/torch"},
    "xxhash.h": {"runtime/support"},
    "openssl/": {"runtime/bootstrap"},
    "gloo/": {"runtime/transport"},
    "nccl.h": {"runtime/nccl"},
    "cuda": {"runtime/nccl", "runtime/torch"},
    "CLI/": {"tools"},
    "pugixml.hpp": {"tools/cluster"},
    "nlohmann/": {"tools/common"},
    "gtest/": {"tests"},
    "gmock/": {"tests"},
    "benchmark/": {"tests"},
    "simgrid/": {"tests"},
}

STANDARD = re.compile(r"[a-z_0-9]+$")
SYSTEM = re.compile(
    r"(arpa|linux|net|netinet|sys)/[a-z_0-9]+\.h$"
    r"|(cpuid|dirent|dlfcn|execinfo|fcntl|fnmatch|glob|ifaddrs|immintrin|malloc|netdb|poll|pthread|sched|signal|spawn|unistd)\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = {".h", ".cc", ".cu"}
MOST_FILES = 30
FULL_FOLDERS = ("tests/fuzz/", "tests/golden")


def read_arrows(root):
    """The arrow table: {room: {rooms that it may include from}}."""
    text = (root / "cmake/AgpcsLibrary.cmake").read_text()
    arrows = {}
    for row in re.finditer(r"^agpcs_room\(([\w/]+)([^)]*)\)", text, re.M):
        arrows[row[1]] = {room for pattern in row[2].split() for room in matching(pattern, arrows, row[1])}
    if not arrows:
        sys.exit("check_layers: no arrow table in cmake/AgpcsLibrary.cmake")
    return arrows


def matching(pattern, rooms, row):
    found = fnmatch.filter(rooms, pattern)
    if not found:
        sys.exit(f"check_layers: the row of {row} in the arrow table names {pattern}, which has no row above it")
    return found


class Checker:
    def __init__(self, root):
        self.root = root
        self.arrows = read_arrows(root)
        self.errors = []
        self.owners = {}  # installed header, "agpcs/plan.h" -> folder
        self.files = 0
        self.used = {room: set() for room in self.arrows}  # room -> rooms that it does include from

    def run(self):
        for room in self.arrows:
            self.find_installed(room)
        for folder in sorted({room.split("/")[0] for room in self.arrows} | {"tests"}):
            for path in sorted((self.root / folder).rglob("*")):
                if path.suffix in SOURCES:
                    self.check_file(path)
                elif path.is_dir():
                    self.check_folder(path)
        return self.errors

    def check_folder(self, path):
        where = path.relative_to(self.root).as_posix()
        files = sum(file.is_file() and file.suffix != ".pyc" for file in path.iterdir())
        if files > MOST_FILES and not where.startswith(FULL_FOLDERS):
            self.errors.append(f"{where} has {files} files, more than {MOST_FILES}: give some of them a folder of their own")

    def table(self):
        """A line for each room: how many sources it has, and the rooms that they include from."""
        width = max(map(len, self.arrows))
        for room in self.arrows:
            count = sum(self.room_of(path.relative_to(self.root).as_posix()) == room
                        for path in (self.root / room).rglob("*") if path.suffix in SOURCES)
            yield f"{room:{width}} {count:3} -> {' '.join(sorted(self.used[room])) or '-'}"

    def find_installed(self, room):
        include = self.root / room / "include"
        for header in sorted(include.rglob("*.h")):
            name = header.relative_to(include).as_posix()
            if name in self.owners:
                self.errors.append(f"<{name}> is installed by {self.owners[name]} and by {room}")
            self.owners[name] = room

    def room_of(self, path):
        """The row of the table that a path from the root belongs to: "planner/seed" for "planner/seed/x.h"."""
        parts = path.split("/")
        if parts[0] == "tests":
            return "tests"
        if "include" in parts:
            return "/".join(parts[:parts.index("include")])
        return "/".join(parts[:2]) if len(parts) > 2 else parts[0]

    def check_file(self, path):
        self.files += 1
        where = path.relative_to(self.root).as_posix()
        room = self.room_of(where)
        if room != "tests" and room not in self.arrows:
            self.errors.append(f"{where}: {room} has no row in the arrow table of cmake/AgpcsLibrary.cmake")
            return
        installed = "/include/agpcs/" in where
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := INCLUDE.match(line):
                why = self.check_include(room, installed, match[1] == '"', match[2])
                if why:
                    self.errors.append(f"{where}:{number}: {line.strip()}: {why}")

    def check_include(self, room, installed, quoted, header):
        """Why a file of `room` may not include `header`; None if it may."""
        if quoted:
            return self.check_internal(room, installed, header)
        if header.startswith("agpcs/"):
            owner = self.owners.get(header)
            return self.check_arrow(room, owner) if owner else "no room installs it"
        if STANDARD.match(header):
            return None
        if installed:
            return "an installed header includes only the standard library and <agpcs/...>"
        if SYSTEM.match(header):
            return None
        return self.check_third_party(room, header)

    def check_internal(self, room, installed, header):
        target = self.room_of(header)
        if installed:
            return "an installed header includes only the standard library and <agpcs/...>"
        if "/include/agpcs/" in header:
            return "an installed header is included as <agpcs/...>"
        if ".." in header.split("/") or "/" not in header or not self.is_room_of_tree(target):
            return "an internal header is included by its path from the root, \"room/x.h\""
        return self.check_arrow(room, target)

    def is_room_of_tree(self, room):
        return room == "tests" or room in self.arrows

    def check_arrow(self, room, target):
        if room in (target, "tests"):
            return None
        if target in self.arrows[room]:
            self.used[room].add(target)
            return None
        allowed = " ".join(sorted(self.arrows[room])) or "nothing"
        return f"{room} may not use {target}, only {allowed}"

    def check_third_party(self, room, header):
        for prefix, owners in THIRD_PARTIES.items():
            if header.startswith(prefix):
                if owners is ANYWHERE or room == "tests" or owners & {room, room.split("/")[0]}:
                    return None
                return f"{' '.join(sorted(owners))} owns {prefix.rstrip('/')}, not {room}"
        return "an unknown third party: give it an owner in tests/house/check_layers.py"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    checker = Checker(parser.parse_args().root)
    errors = checker.run()
    print("\n".join(checker.table()))
    for error in errors:
        print(error)
    print(f"check_layers: {checker.files} files, {len(checker.errors)} errors")
    return 1 if checker.errors else 0


if __name__ == "__main__":
    sys.exit(main())
