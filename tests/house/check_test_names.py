#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on tests without a name that is the same each time.

GoogleTest prints a parameter that it cannot read as its bytes, addresses among them, and numbers the tests of parameters
that nobody named. Looks at what ctest lists for a build folder, and at what each GoogleTest binary in that list does:
  * the names are letters, digits and _ . / < > -, without blanks;
  * parameters are printed as text, not as bytes or addresses;
  * parameters have names, not numbers.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

NAME = re.compile(r"[\w./<>-]+")
BYTES = re.compile(r"\d+-byte object|\(nil\)|\b0x[0-9a-f]{5,}|@0x")
NOT_BUILT = "_NOT_BUILT"


def faults_of_names(names):
    """What is wrong with the names that ctest lists."""
    for name in names:
        if name.endswith(NOT_BUILT):
            yield f"{name[:-len(NOT_BUILT)]}: is not built, so nobody knows its tests"
        elif not NAME.fullmatch(name):
            yield f"ctest lists '{name}': a name has letters, digits and _ . / < > - only"


def faults_of_listing(listing):
    """What is wrong with the tests that a binary lists: each parameter of a suite once."""
    suite, faults = "", []
    for line in listing.splitlines():
        name, _, parameter = (part.strip() for part in line.partition("#"))
        if not line.startswith(" "):
            suite = name
            continue
        parameter = parameter.removeprefix("GetParam() = ")
        of_parameter = f"{suite}*/{name.rpartition('/')[2]}"
        if BYTES.search(parameter):
            faults.append(f"{of_parameter}: its parameter is printed as '{parameter}': give its type a PrintTo")
        if "/" in name and of_parameter.rpartition("/")[2].isdigit():
            faults.append(f"{of_parameter}: its name is a number: give INSTANTIATE_TEST_SUITE_P a function for names")
    return list(dict.fromkeys(faults))


def read_tests(ctest, build):
    """ctest's list of the tests of a build folder, from a folder of its own: in the first another ctest may run."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "CTestTestfile.cmake").write_text(f'subdirs("{build.resolve()}")\n')
        done = subprocess.run([ctest, "--test-dir", folder, "--show-only=json-v1"], capture_output=True, text=True,
                              cwd=folder)
    return json.loads(done.stdout)["tests"]


def binaries_of(tests):
    """(binary, folder that it runs in) of the tests that are GoogleTest's."""
    found = {}
    for test in tests:
        command = test.get("command", [])
        if any(word.startswith("--gtest_filter=") for word in command):
            folders = [p["value"] for p in test["properties"] if p["name"] == "WORKING_DIRECTORY"]
            found[command[0]] = folders[0]
    return sorted(found.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path, metavar="BUILD-FOLDER")
    parser.add_argument("--ctest", default="ctest")
    options = parser.parse_args()
    tests = read_tests(options.ctest, options.build)
    faults = list(faults_of_names(test["name"] for test in tests))
    binaries = binaries_of(tests)
    for binary, folder in binaries:
        done = subprocess.run([binary, "--gtest_list_tests"], capture_output=True, text=True, errors="replace", check=True,
                              cwd=folder)
        faults += [f"{pathlib.Path(binary).name}: {fault}" for fault in faults_of_listing(done.stdout)]
    for fault in faults:
        print(fault)
    print(f"check_test_names: {len(tests)} tests, {len(binaries)} binaries of GoogleTest, {len(faults)} errors")
    return 1 if faults or not binaries else 0


if __name__ == "__main__":
    sys.exit(main())
