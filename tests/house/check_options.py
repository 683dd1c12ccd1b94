#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the options in each command's --help with those on its page, docs/reference/<command>.md.

    tests/house/check_options.py --bin build/release/bin [--docs docs/reference]

On a page, options are what the first cells of tables of options (and of commands, whose options are in their usage) have
in backquotes: a table is one of options if its first heading begins with "option", one of commands if it is "command".
An option counts as described where one of its names stands there. Exit code 1 if an option of --help is on no such table,
or an option in a table is not in --help.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What has a --help of its own: commands of a command, and options that change the others.
FURTHER = {
    "agpcs-plan": [[name] for name in ("check", "show", "explain", "diff", "json", "trace", "report", "drift", "export",
                                      "splits")],
    "agpcs-cluster": [["discover"], ["check"]],
    "agpcs-train-policy": [["--task", "allreduce"]],
}
OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


def options_of_help(text):
    """The sets of names, one set an option, of what CLI11 prints: lines such as `  -o,--output TEXT  ...`."""
    found = []
    for line in text.splitlines():
        if match := re.match(r"  (-[\w-]+(?:,-[\w-]+)*)", line):
            found.append(frozenset(match[1].split(",")))
    return found


def options_of_page(text):
    """The names in tables of options and of commands."""
    names, in_table = set(), False
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] if line.startswith("|") else []
        if not cells:
            in_table = False
        elif not in_table and not names_table(cells[0]):
            in_table = None  # another table: not until it ends
        elif in_table is False:
            in_table = True
        elif in_table:
            for code in re.findall(r"`([^`]*)`", cells[0]):
                names.update(OPTION.findall(code))
    return names


def names_table(heading):
    return heading.startswith("option") or heading == "command"


def problems(command, helps, page):
    """What the page of a command lacks, or has too much."""
    options = {option for text in helps for option in options_of_help(text)}
    described = options_of_page(page)
    known = set().union(*options) if options else set()
    found = [f"{command}: {'/'.join(sorted(option))} is in --help, and in no table of its page"
             for option in sorted(options, key=sorted) if not option & described]
    found += [f"{command}: its page has {name}, which is not in --help" for name in sorted(described - known)]
    return found if options else [f"{command}: --help lists no option"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="folder of the commands")
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs/reference")
    arguments = parser.parse_args()
    commands = sorted(path for path in arguments.bin.glob("agpcs-*") if path.is_file())
    if not commands:
        sys.exit(f"there is no command in {arguments.bin}")
    found = []
    for path in commands:
        page = arguments.docs / (path.name.replace("-", "_") + ".md")
        if not page.exists():
            found.append(f"{path.name}: it has no page {page}")
            continue
        helps = [subprocess.run([path, *words, "--help"], capture_output=True, text=True, check=True).stdout
                 for words in [[], *FURTHER.get(path.name, [])]]
        found += problems(path.name, helps, page.read_text(encoding="utf-8"))
    print("\n".join(found) or f"the options of {len(commands)} commands are those on their pages")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
