#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_binaries.py: libraries that are linked with right and wrong search paths, and with and without hardening.

$CXX and $READELF name the compiler and the readelf to use.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

CXX = os.environ.get("CXX", "c++")
SCRIPT = pathlib.Path(__file__).with_name("check_binaries.py")


class CheckRpathsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()

    def link(self, *options, name="lib.so"):
        """A shared library of nothing, linked with these options."""
        (self.folder / name).parent.mkdir(exist_ok=True)
        subprocess.run([CXX, "-shared", "-nostdlib", "-x", "c++", "/dev/null", "-x", "none", "-o", name, *options],
                       cwd=self.folder, check=True)

    def check(self, *options):
        """The exit code and the lines of the checker on the folder."""
        done = subprocess.run([sys.executable, SCRIPT, "--readelf", os.environ.get("READELF", "readelf"), *options,
                               self.folder], capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout.splitlines()

    def assert_refused(self, options, *faults, check=()):
        self.link(*options)
        code, lines = self.check(*check)
        self.assertEqual(lines[:-1], [f"{self.folder}/lib.so: error: {fault}" for fault in faults])
        self.assertRegex(lines[-1], rf"^check_binaries: 1 binaries, . with a search path of their own, {len(faults)} errors$")
        self.assertEqual(code, 1)

    def assert_accepted(self, *options, check=()):
        self.link(*options)
        code, lines = self.check(*check)
        self.assertEqual((code, len(lines)), (0, 1), lines)

    def test_accepts_absolute_folders_and_the_origin(self):
        self.assert_accepted()
        self.assert_accepted("-Wl,-rpath,/opt/cuda/lib:/opt/metis")
        self.assert_accepted("-Wl,-rpath,$ORIGIN:$ORIGIN/../lib:${ORIGIN}/..")

    def test_refuses_an_empty_element(self):
        for path in ("/opt/cuda/lib:", ":/opt/cuda/lib", "/opt/cuda/lib::/opt/metis"):
            self.assert_refused([f"-Wl,-rpath,{path}"],
                                f"RUNPATH '{path}' has an empty element, which is the current folder")

    def test_refuses_a_relative_element(self):
        for element in ("lib", ".", "./lib", "../lib", "$LIB/agpcs", "$ORIGINAL/lib"):
            self.assert_refused([f"-Wl,-rpath,/opt:{element}"], f"RUNPATH '/opt:{element}' has the relative element "
                                f"'{element}', which begins at the current folder")

    def test_refuses_them_in_an_rpath_too(self):
        self.assert_refused(["-Wl,--disable-new-dtags,-rpath,lib:"],
                            "RPATH 'lib:' has the relative element 'lib', which begins at the current folder",
                            "RPATH 'lib:' has an empty element, which is the current folder")

    def test_refuses_a_library_by_a_relative_path(self):
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as other:
            other = os.path.relpath(other, self.folder)
            self.link(name=f"{other}/libother.so")
            self.assert_refused(["-Wl,--no-as-needed", f"{other}/libother.so"],
                                f"NEEDED '{other}/libother.so' is a relative path, which begins at the current folder")

    def test_refuses_a_folder_that_is_not_there_where_it_is_installed(self):
        for element in ("/src/build", "/src/build/lib", "/src/x/../build/lib"):
            self.assert_refused([f"-Wl,-rpath,{element}"], f"RUNPATH '{element}' has the element '{element}', which is in "
                                "/src/build, not where it is installed", check=["--not-in", "/src/build"])
        self.assert_accepted("-Wl,-rpath,/src/builds:/src", check=["--not-in", "/src/build"])

    def test_looks_below_folders_and_at_no_link_object_or_text(self):
        self.link("-Wl,-rpath,:", name="a/lib.so")
        self.link("-Wl,-rpath,:", name="b/lib.so")
        (self.folder / "link.so").symlink_to("a/lib.so")
        (self.folder / "text.so").write_text("text")
        subprocess.run([CXX, "-c", "-x", "c++", "/dev/null", "-o", self.folder / "object.o"], check=True)
        self.assertEqual(len(self.check()[1]), 3)
        code, lines = self.check("--skip", self.folder / "b")
        self.assertEqual(lines, [f"{self.folder}/a/lib.so: error: RUNPATH ':' has an empty element, which is the current "
                                 "folder", "check_binaries: 1 binaries, 1 with a search path of their own, 1 errors"])

    def test_refuses_what_is_not_hardened(self):
        source = self.folder / "program.cc"
        source.write_text('#include <cstdio>\nint main() { char line[64]; return fgets(line, 64, stdin) ? line[0] : 0; }\n')
        hard = ["-O1", "-fPIE", "-pie", "-fstack-protector-strong", "-Wl,-z,relro,-z,now,-z,noexecstack"]
        for options, fault in (
                ([], None),
                (["-no-pie"], "it is no position-independent program (-pie)"),
                (["-Wl,-z,lazy"], "the loader's tables stay writable (-z relro -z now)"),
                (["-Wl,-z,norelro"], "the loader's tables stay writable (-z relro -z now)"),
                (["-Wl,-z,execstack"], "its stack can be executed (-z noexecstack)"),
                (["-fno-stack-protector"], "nothing in it has a canary on the stack (-fstack-protector-strong)")):
            subprocess.run([CXX, *hard, *options, source, "-o", self.folder / "program"], check=True)
            lines = self.check("--hardened")[1]
            self.assertEqual(lines[:-1], [f"{self.folder}/program: error: {fault}"] if fault else [], options)

    def test_refuses_what_checks_no_buffer_where_it_formats_text(self):
        source = self.folder / "program.cc"
        hard = ["-O1", "-fPIE", "-pie", "-fstack-protector-strong", "-Wl,-z,relro,-z,now,-z,noexecstack", "-U_FORTIFY_SOURCE"]
        formats = '#include <cstdio>\nint main(int count, char**) { char text[64]; return std::snprintf(text, 64, "%d", count); }\n'
        reads = '#include <cstdio>\nint main() { char line[64]; return fgets(line, 64, stdin) ? line[0] : 0; }\n'
        fault = f"{self.folder}/program: error: it formats text and checks the length of no buffer (-D_FORTIFY_SOURCE=2)"
        for code, options, check, faults in ((formats, ["-D_FORTIFY_SOURCE=2"], "--fortified", []),
                                             (formats, [], "--fortified", [fault]),
                                             (formats, [], "--hardened", []),  # as it is without optimization
                                             (reads, [], "--fortified", [])):  # nothing that must have a checked form
            source.write_text(code)
            subprocess.run([CXX, *hard, *options, source, "-o", self.folder / "program"], check=True)
            self.assertEqual(self.check(check)[1][:-1], faults, (options, check))

    def test_refuses_a_folder_without_any(self):
        self.assertEqual(self.check(), (1, ["check_binaries: 0 binaries, 0 with a search path of their own, 0 errors"]))


if __name__ == "__main__":
    unittest.main()
