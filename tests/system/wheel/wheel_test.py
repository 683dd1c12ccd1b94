#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The wheel of tools/build_wheel.sh in a new environment: what is in it, its commands, and the package's tests on it.

    wheel_test.py BUILD PYTHON...      BUILD is the build folder; each PYTHON that has PyTorch runs the tests with it
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
RESNET, MIXED = ROOT / "samples/models/resnet50.onnx", ROOT / "samples/clusters/v100x4-rtx3090x4.yaml"
# Libraries that every system of the wheel's tag has (PEP 600).
OF_THE_SYSTEM = {"linux-vdso.so.1", "libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libz.so.1",
                 "ld-linux-x86-64.so.2", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
MOST_BYTES = 30_000_000


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=options.pop("cwd", "/"),
                          timeout=300, **options)
    return done.returncode, done.stdout, done.stderr


def pythons():
    """The interpreters on PATH that the wheel is for."""
    found = (shutil.which(f"python3.{minor}") for minor in range(9, 20))
    return [path for path in found if path and run(path, "-c", "import ctypes")[0] == 0]


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        path = pathlib.Path(cls.folder.name)
        code, said, errors = run(ROOT / "tools/build_wheel.sh", path, BUILD)
        if code != 0:
            raise RuntimeError(said + errors)
        cls.wheel, = path.glob("*.whl")
        cls.venv = path / "venv"
        for words in ((sys.executable, "-m", "venv", cls.venv),
                      (cls.venv / "bin/python", "-m", "pip", "install", "--no-index", "--quiet", cls.wheel)):
            code, said, errors = run(*words)
            if code != 0:
                raise RuntimeError(said + errors)
        cls.site, = cls.venv.glob("lib/python3*/site-packages")

    def test_is_one_wheel_for_all_pythons_of_this_platform(self):
        self.assertRegex(self.wheel.name, r"^agpcs-\d+\.\d+\.\d+-py3-none-manylinux_2_\d+_x86_64\.whl$")
        self.assertLess(self.wheel.stat().st_size, MOST_BYTES)

    def test_brings_all_libraries_and_shows_only_its_c_interface(self):
        package = self.site / "agpcs"
        for file in (package / "libagpcs_python.so", *(package / "bin").iterdir()):
            code, said, errors = run("ldd", file)
            self.assertEqual(code, 0, errors)
            for line in said.splitlines():
                name = pathlib.Path(line.split()[0]).name
                if name not in OF_THE_SYSTEM:
                    self.assertIn(str(self.site / "agpcs.libs"), os.path.realpath(line.split()[2]), line)
        _, said, _ = run("nm", "-D", "--defined-only", package / "libagpcs_python.so")
        shown = {line.split()[2] for line in said.splitlines()}
        declared = set(re.findall(r"\b(agpcs_\w+)\(", (ROOT / "tools/python/c_interface.h").read_text()))
        self.assertEqual(shown, declared)

    def test_loads_nothing_from_the_current_folder_or_the_build(self):
        check = (sys.executable, ROOT / "tests/house/check_binaries.py", "--not-in", BUILD)
        code, said, errors = run(*check, self.site / "agpcs", self.site / "agpcs.libs")
        self.assertEqual((code, errors), (0, ""), said)
        binaries, searching = map(int, re.search(r"(\d+) binaries, (\d+) with a search path", said).groups())
        self.assertGreater(binaries, searching)
        self.assertGreaterEqual(searching, 5)  # the library and the commands find what came along
        code, said, errors = run(*check, "--fortified", self.site / "agpcs")
        self.assertEqual((code, errors), (0, ""), said)

    def test_has_the_licences_of_what_is_in_it(self):
        licences, = self.site.glob("agpcs-*.dist-info/licenses")
        for library in (self.site / "agpcs.libs").iterdir():
            name = library.name.partition("-")[0]
            # Licences are named as Debian's packages.
            name = {"yaml": "libyaml-cpp", "libcrypto": "libssl", "libtcmalloc_minimal": "libtcmalloc-minimal"}.get(name, name)
            self.assertTrue(any(file.name.startswith(name) for file in licences.iterdir()), library.name)
        self.assertTrue((licences / "LICENSE").is_file())

    def test_commands_and_package_make_the_same_plan(self):
        plan = pathlib.Path(self.folder.name) / "net.plan"
        code, said, errors = run(self.venv / "bin/agpcs-compile", RESNET, MIXED, "-o", plan)
        self.assertEqual(code, 0, errors)
        self.assertEqual(run(self.venv / "bin/agpcs-plan", "check", plan)[0], 0)
        self.assertEqual(run(self.venv / "bin/agpcs-allreduce", "--help")[0], 0)
        self.assertEqual(run(self.venv / "bin/agpcs-cluster", "check", MIXED)[0], 0)
        made = "import agpcs, sys; sys.stdout.write(agpcs.plan(*sys.argv[1:]).text)"
        for python in (self.venv / "bin/python", *pythons()):
            code, said, errors = run(python, "-c", made, RESNET, MIXED, env={**os.environ, "PYTHONPATH": str(self.site)})
            self.assertEqual((code, said), (0, plan.read_text()), f"{python}: {errors}")

    def test_commands_keep_exit_codes_and_messages(self):
        for words, expected, message in ((("agpcs-plan", "check", "/no.plan"), 1, "/no.plan: error: cannot be read: "),
                                         (("agpcs-compile", "--no-such-option"), 2, "agpcs-compile: error: ")):
            code, _, errors = run(self.venv / "bin" / words[0], *words[1:])
            self.assertEqual(code, expected)
            self.assertEqual(errors[:len(message)], message)

    def test_passes_the_packages_tests_beside_pytorch(self):
        # A folder of its own, so that nothing of the build folder can be imported.
        tried = 0
        for python in PYTHONS:
            environment = {**os.environ, "PYTHONPATH": str(self.site), "AGPCS_BIN_DIR": str(self.venv / "bin"),
                           "PYTHONDONTWRITEBYTECODE": "1"}
            if not python or run(python, "-c", "import torch")[0] != 0:
                continue
            tried += 1
            for first, second in (("torch", "agpcs"), ("agpcs", "torch")):
                plan = f"import {first}, {second}; print(len(agpcs.plan({str(RESNET)!r}, {str(MIXED)!r}).text) > 1000)"
                code, said, errors = run(python, "-c", f"{plan}; print(torch.ones(3).sum())", env=environment)
                self.assertEqual((code, said), (0, "True\ntensor(3.)\n"), errors)
            for test in (["test_plan.py"], ["test_types.py"],
                         ["test_sample.py", "Sample.test_plans_and_trains_on_two_ranks"]):
                code, said, errors = run(python, ROOT / "tests/system/python" / test[0], *test[1:], env=environment)
                self.assertEqual(code, 0, f"{python} {test}\n{said}{errors}")
        if not tried:
            self.skipTest("no Python here has PyTorch (tools/install_deps.sh --tests)")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    BUILD, PYTHONS = sys.argv[1], sys.argv[2:]
    if shutil.which("dpkg-query") is None or not shutil.which("nm"):
        print("skipped: wheels are made on Debian, with binutils")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
