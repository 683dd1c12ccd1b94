#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs commands in a locale with decimal commas and finds the bytes that they write in C's: the golden files of
agpcs-compile, and what agpcs-plan and agpcs-allreduce say. The locale is made in a folder of its own (localedef;
Debian's package locales has its source), and a library that is loaded first makes the commands take it."""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests/golden"
MODEL = ROOT / "samples/models/small_cnn.onnxtxt"
CLUSTER = ROOT / "samples/clusters/local-2.yaml"
NAME = "de_DE.UTF-8"
DECIMAL_POINT = "import locale; print(locale.localeconv()['decimal_point'])"


def make_locale(folder):
    """What keeps the locale from being made, or None."""
    try:
        made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder / NAME)],
                              capture_output=True, text=True)
    except FileNotFoundError:
        return "localedef is not installed"
    return None if made.returncode == 0 else f"localedef cannot make {NAME}: {made.stderr.strip()}"


class Commands(unittest.TestCase):
    bin, commas = None, {}

    def run_both(self, name, *arguments):
        """What a command writes to standard output; in either locale the same."""
        outputs = []
        for variables in ({"LC_ALL": "C"}, self.commas):
            done = subprocess.run([self.bin / name, *arguments], cwd=ROOT, capture_output=True, text=True,
                                  env={**os.environ, **variables})
            self.assertEqual(done.returncode, 0, done.stderr)
            outputs.append(done.stdout)
        self.assertEqual(outputs[0], outputs[1])
        return outputs[0]

    def test_the_locale_has_a_decimal_comma(self):
        point = subprocess.run([sys.executable, "-c", DECIMAL_POINT], capture_output=True, text=True, check=True,
                               env={**os.environ, **self.commas})
        self.assertEqual(point.stdout, ",\n")

    def test_golden_files_stay_as_they_are(self):
        """But for those with a decimal number on the command line: CLI11 reads it as the locale has it, and only
        commands, which never set one, have command lines."""
        files = [path for path in sorted(GOLDEN.glob("*.txt"))
                 if "dqn" not in path.read_text() and not re.search(r"^args:.* \d+\.\d", path.read_text(), re.M)]
        self.assertGreater(len(files), 50)
        with tempfile.TemporaryDirectory() as folder:
            wrapper = pathlib.Path(folder) / "agpcs-compile"
            assignments = " ".join(f"'{name}={value}'" for name, value in self.commas.items())
            wrapper.write_text(f"#!/bin/sh\nexec env {assignments} '{self.bin}/agpcs-compile' \"$@\"\n")
            wrapper.chmod(0o755)
            done = subprocess.run([sys.executable, GOLDEN / "run_golden.py", "--command", wrapper, *files],
                                  capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_plan_is_shown_alike(self):
        plan = self.run_both("agpcs-compile", MODEL, CLUSTER, "--refiner", "none", "-q", "-o", "-")
        self.assertIn("learning-rate=0.", plan)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.plan"
            path.write_text(plan)
            self.run_both("agpcs-plan", "check", path)
            self.assertIn("learning rate 0.", self.run_both("agpcs-plan", "show", path))
            self.run_both("agpcs-plan", "json", path)
            self.run_both("agpcs-plan", "explain", path, MODEL, CLUSTER)

    def test_an_all_reduce_is_shown_alike(self):
        self.run_both("agpcs-allreduce", "bcube:2,2", "--bandwidth", "12.5GB/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="folder of the commands")
    parser.add_argument("--set-locale", required=True, type=pathlib.Path,
                        help="library that takes the environment's locale")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if obstacle := make_locale(pathlib.Path(folder)):
            print(f"skipped: {obstacle}")
            return 77
        Commands.bin = options.bin.resolve()
        Commands.commas = {"LC_ALL": "", "LC_NUMERIC": NAME, "LOCPATH": folder,
                           "LD_PRELOAD": str(options.set_locale.resolve())}
        return 0 if unittest.main(argv=sys.argv[:1], exit=False).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
