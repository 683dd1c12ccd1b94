#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs agpcs-compile on golden files and compares what comes out.

A golden file begins with a line `# WHAT IT SHOWS` and a line `args: ARGUMENTS`. Then come sections, each of which starts
with a line `--- NAME`. The command runs in a folder with the files of defaults/ and with the sections that are named
like files, which replace those. The last section is what is expected:

    --- plan      the plan file (the first of a run must succeed)
    --- stdout    standard output (the run must succeed)
    --- stderr    standard error, without lines of progress; the exit code follows the args as `exit: CODE`

A file named bad_* must fail, every other one must succeed. Each runs twice, for equal bytes. --update rewrites the last
section.
"""

import argparse
import difflib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

EXPECTED = ("plan", "stdout", "stderr")
DEFAULTS = pathlib.Path(__file__).resolve().parent / "defaults"
ROOT = pathlib.Path(__file__).resolve().parents[2]


def read_golden(path):
    """(head lines, {section: text}) with sections in file order."""
    head, sections, name = [], {}, None
    for line in path.read_text().splitlines(keepends=True):
        match = re.fullmatch(r"--- (\S+)\n?", line)
        if match and name not in EXPECTED:  # what is expected goes on to the end
            name = match[1]
            if name in sections:
                sys.exit(f"{path}: section {name} is there twice")
            sections[name] = ""
        elif name is None:
            head.append(line)
        else:
            sections[name] += line
    return head, sections


def field(head, name, otherwise=None):
    for line in head:
        if line.startswith(name + ":"):
            return line[len(name) + 1 :].strip()
    return otherwise


def run_once(command, args, sections, expected):
    """(exit code, the bytes that are compared)."""
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        shutil.copytree(DEFAULTS, work, dirs_exist_ok=True)
        for name, text in sections.items():
            if name not in EXPECTED:
                (work / name).write_text(text)
        words = [word.replace("ROOT", str(ROOT)) for word in args.split()]
        done = subprocess.run([command, *words], cwd=work, capture_output=True, text=True, timeout=60)
        plans = sorted(work.glob("*.plan"))
        if expected == "plan":
            return done.returncode, plans[0].read_text() if plans else done.stderr
        if done.returncode != 0 and plans:
            return done.returncode, "a plan was written, although the command failed\n"
        return done.returncode, done.stdout if expected == "stdout" else errors(done.stderr)


def errors(text):
    """Standard error from the first message on: progress comes before it."""
    lines = text.splitlines(keepends=True)
    for i, line in enumerate(lines):
        if re.search(r"(error|warning): ", line):
            return "".join(lines[i:])
    return text


def check(path, command, update):
    """What is wrong with the golden file, or None."""
    head, sections = read_golden(path)
    if not re.fullmatch(r"# .+\.\n", head[0]):
        return "does not begin with a line that says what it shows: # A sentence."
    args, expected = field(head, "args"), list(sections)[-1] if sections else None
    if args is None or expected not in EXPECTED:
        return "has no args, or its last section is none of: " + " ".join(EXPECTED)
    code, text = run_once(command, args, sections, expected)
    if (code, text) != run_once(command, args, sections, expected):
        return "two runs gave different bytes"
    wanted = int(field(head, "exit", "1" if path.name.startswith("bad_") else "0"))
    if code != wanted:
        return f"exit code {code}, not {wanted}:\n{text}"
    if (code != 0) != path.name.startswith("bad_"):
        return "a file that must fail is named bad_*, and no other"
    if text == sections[expected]:
        return None
    if update:
        sections[expected] = text
        path.write_text("".join(head) + "".join(f"--- {name}\n{body}" for name, body in sections.items()))
        return None
    lines = difflib.unified_diff(sections[expected].splitlines(True), text.splitlines(True), "expected", "got")
    return "differs:\n" + "".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", required=True, type=pathlib.Path, help="agpcs-compile")
    parser.add_argument("--update", action="store_true", help="rewrite what is expected")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    files = options.files or sorted(pathlib.Path(__file__).parent.glob("*.txt"))
    files = [path for path in files if path.name != "CMakeLists.txt"]
    failed = 0
    for path in files:
        if problem := check(path, options.command.resolve(), options.update):
            failed += 1
            print(f"{path.name}: {problem}")
    print(f"golden: {len(files)} files, {failed} failed")
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
