#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs on a machine with an NVIDIA GPU everything that CUDA and NCCL have here, and reports it."""

import argparse
import pathlib
import re
import subprocess
import sys

import machine
import parts
import prepare
import runner


def sources(root, given=None):
    """The commit that is tested; "+" if files differ from it. Where the sources have come without git, that of the folder."""
    try:
        done = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty=+", "--match", ""],
                              capture_output=True, text=True)
    except OSError:
        done = None
    if done and done.stdout.strip():
        return done.stdout.strip()
    return (given / "sources").read_text().strip() if given and (given / "sources").exists() else "unknown"


def main():
    names = [part.name for part in parts.PARTS]
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__, epilog="docs/design/gpu.md has what each part is")
    parser.add_argument("parts", nargs="*", metavar="PART", help="run these parts only: " + ", ".join(names))
    parser.add_argument("--report", type=pathlib.Path, metavar="FOLDER", help="where gpu.md and gpu.json go, and what is "
                        "done is remembered (default: build/gpu-report)")
    parser.add_argument("--from", dest="given", type=pathlib.Path, metavar="FOLDER", help="what --prepare collected")
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="end after about so many minutes")
    parser.add_argument("--again", action="append", default=[], metavar="PART",
                        help="run this part although it is done or failed")
    parser.add_argument("--rehearse", action="store_true", help="run over TCP and CPUs what can be, to test this command")
    parser.add_argument("--prepare", type=pathlib.Path, metavar="FOLDER", help="collect, on a machine with network, what "
                        "another one may lack; runs nothing else")
    parser.add_argument("--compute", metavar="MAJOR.MINOR", help="with --prepare: the other machine has a PyTorch of a CUDA "
                        "build and a GPU of this compute capability, so that it lacks an NCCL at most")
    options = parser.parse_args()
    for name in options.parts + options.again:
        if name not in names:
            parser.error(f"there is no part '{name}'; parts: {', '.join(names)}")
    if options.compute and not re.fullmatch(r"\d+\.\d", options.compute):
        parser.error(f"--compute {options.compute}: not a compute capability such as 9.0")
    if options.prepare:
        return prepare.collect(options.prepare.resolve(), sources(machine.ROOT), options.compute)
    if options.given and not options.given.is_dir():
        parser.error(f"--from {options.given}: no such folder")
    folder = (options.report or machine.ROOT / "build/gpu-report").resolve()
    here = machine.Machine(folder, options.given and options.given.resolve(), options.rehearse)
    identity = {"sources": sources(here.root, here.given), "GPUs": here.named_gpus()}
    try:
        outcomes = runner.run(parts.PARTS, here, folder, identity, options.budget and 60 * options.budget,
                              [*options.parts, *options.again] if options.parts or options.again else [], options.again,
                              options.rehearse)
    except runner.Differs as error:
        print(f"run.sh: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("run.sh: stopped; the next run goes on", file=sys.stderr)
        return 130
    failed = [name for name, outcome in outcomes.items() if outcome["state"] == "failed"]
    print(f"the report is {folder / 'gpu.md'}")
    if failed:
        print(f"run.sh: error: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
