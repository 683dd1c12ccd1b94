#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a source whose first line (the second, after a #! line) is not the SPDX line."""

import argparse
import os
import pathlib
import sys

SPDX = "SPDX-License-Identifier: Apache-2.0"
COMMENTS = {".h": "//", ".cc": "//", ".cu": "//", ".py": "#", ".sh": "#", ".cmake": "#", ".in": "#"}
OUTSIDE = {"build", "__pycache__"}


def sources(root):
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in OUTSIDE and not f.startswith("."))
        for name in sorted(files):
            path = pathlib.Path(folder, name)
            if name == "CMakeLists.txt" or path.suffix in COMMENTS:
                yield path


def has_spdx_line(path):
    lines = path.read_text(encoding="utf-8").splitlines()[:2]
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    return lines[:1] == [f"{COMMENTS.get(path.suffix, '#')} {SPDX}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    paths = list(sources(root))
    missing = [p for p in paths if not has_spdx_line(p)]
    for path in missing:
        print(f"{path.relative_to(root)}:1: the SPDX line is missing: {SPDX}")
    print(f"check_spdx: {len(paths)} files, {len(missing)} errors")
    return 1 if missing or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
