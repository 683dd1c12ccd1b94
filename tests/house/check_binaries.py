#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on programs and libraries that load other libraries from the folder in which they are started, or that are not
hardened.

Reads what `readelf` says of every ELF program and shared library below some folders:
  * no element of a RUNPATH or RPATH is empty, for that is the current folder, or relative, but for $ORIGIN;
  * no library is needed by a relative path;
  * with --not-in FOLDER, for what is installed: no element lies in FOLDER, such as the build tree;
  * with --hardened: programs may be loaded anywhere (PIE), the loader's tables are read-only once it has run (RELRO, with
    all symbols bound at the start), no segment can be written and executed, and code has canaries on its stack;
  * with --fortified, for what is compiled with optimization: where text is formatted, the length of a buffer is checked.
"""

import argparse
import os
import pathlib
import re
import struct
import subprocess
import sys

ENTRY = re.compile(r"\((NEEDED|RPATH|RUNPATH)\)[^\[]*\[(.*)\]$", re.MULTILINE)
ORIGIN = re.compile(r"\$(ORIGIN|\{ORIGIN\})(/|$)")
# What _FORTIFY_SOURCE=2 replaces by a checked form, almost wherever it is called. (Of others, such as memcpy, it leaves those
# whose buffer has a length that nobody knows.)
FORMATTING = re.compile(r"\bUND (?:v?(?:f|d|s|sn|as)?printf)\b")
CHECKED = re.compile(r"\bUND __\w+_chk\b")
EXECUTABLE, SHARED = 2, 3  # e_type in the header of an ELF file


def is_loaded(path):
    """Whether it is an ELF program or shared library: not an object or an archive of them."""
    try:
        with path.open("rb") as file:
            head = file.read(18)
    except OSError:  # another test removed it just now
        return False
    if len(head) < 18 or head[:4] != b"\x7fELF":
        return False
    return struct.unpack("<H" if head[5] == 1 else ">H", head[16:])[0] in (EXECUTABLE, SHARED)


def binaries_below(tree, skipped):
    for folder, folders, files in os.walk(tree):
        folders[:] = sorted(f for f in folders if pathlib.Path(folder, f) not in skipped)
        for name in sorted(files):
            path = pathlib.Path(folder, name)
            if path.is_file() and not path.is_symlink() and is_loaded(path):
                yield path


def entries_of(path, readelf):
    """(kind, value) of each entry of the dynamic section that names libraries or where they are."""
    done = subprocess.run([readelf, "--wide", "-d", path], capture_output=True, text=True, check=True,
                          env={**os.environ, "LC_ALL": "C"})
    return ENTRY.findall(done.stdout)


def faults_of_search_path(kind, value, outside):
    for element in value.split(":"):
        if not element:
            yield f"{kind} '{value}' has an empty element, which is the current folder"
        elif not element.startswith("/") and not ORIGIN.match(element):
            yield f"{kind} '{value}' has the relative element '{element}', which begins at the current folder"
        for folder in outside:
            if pathlib.Path(os.path.normpath(element)).is_relative_to(folder):
                yield f"{kind} '{value}' has the element '{element}', which is in {folder}, not where it is installed"


def faults_of(entries, outside=()):
    """What is wrong with such entries, each once."""
    faults = []
    for kind, value in entries:
        if kind != "NEEDED":
            faults += faults_of_search_path(kind, value, outside)
        elif "/" in value and not value.startswith("/") and not ORIGIN.match(value):
            faults.append(f"NEEDED '{value}' is a relative path, which begins at the current folder")
    return list(dict.fromkeys(faults))


def faults_of_hardening(path, readelf, fortified):
    """What a hardened binary has and this one has not. Code without arrays needs no canary, nor does it import one."""
    done = subprocess.run([readelf, "--wide", "-hldr", "--dyn-syms", path], capture_output=True, text=True, check=True,
                          env={**os.environ, "LC_ALL": "C"})
    text = done.stdout
    if re.search(r"Type:\s+EXEC", text):
        yield "it is no position-independent program (-pie)"
    if "GNU_RELRO" not in text or not re.search(r"BIND_NOW|Flags:.*\bNOW\b", text):
        yield "the loader's tables stay writable (-z relro -z now)"
    if re.search(r"GNU_STACK.*RWE", text):
        yield "its stack can be executed (-z noexecstack)"
    if "__stack_chk_fail" not in text:
        yield "nothing in it has a canary on the stack (-fstack-protector-strong)"
    if fortified and FORMATTING.search(text) and not CHECKED.search(text):
        yield "it formats text and checks the length of no buffer (-D_FORTIFY_SOURCE=2)"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs="+", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--readelf", default="readelf")
    parser.add_argument("--skip", action="append", default=[], type=pathlib.Path, metavar="FOLDER",
                        help="leave out what is below this folder")
    parser.add_argument("--not-in", action="append", default=[], type=pathlib.Path, metavar="FOLDER",
                        help="no element may be in this folder")
    parser.add_argument("--hardened", action="store_true", help="each is hardened, too")
    parser.add_argument("--fortified", action="store_true", help="each is hardened and fortified, too")
    options = parser.parse_args()
    binaries, with_path, errors = 0, 0, 0
    for tree in options.trees:
        for path in binaries_below(tree, options.skip):
            entries = entries_of(path, options.readelf)
            binaries += 1
            with_path += any(kind != "NEEDED" for kind, _ in entries)
            faults = faults_of(entries, options.not_in)
            if options.hardened or options.fortified:
                faults += faults_of_hardening(path, options.readelf, options.fortified)
            for fault in faults:
                errors += 1
                print(f"{path}: error: {fault}")
    print(f"check_binaries: {binaries} binaries, {with_path} with a search path of their own, {errors} errors")
    return 1 if errors or not binaries else 0


if __name__ == "__main__":
    sys.exit(main())
