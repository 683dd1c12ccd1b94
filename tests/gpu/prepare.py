# SPDX-License-Identifier: Apache-2.0
"""Collects, on a machine with network, what a machine with a GPU may lack, in a folder for run.sh --from.

    wheels/    PyPI's PyTorch of a CUDA build, its NCCL, and what these need (tools/pytorch/environment.txt)
    models/    GPT-2 small as ONNX, its structure alone; ResNet-50 and BERT are in samples/models
    bin/       agpcs-compile with the libraries that it needs
    build/     the programs of build/gpu, if they have been built here: for a machine that cannot build

Each step is left out if its result is there, so that a broken run goes on.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import machine

ROOT = machine.ROOT
BUILDS = (ROOT / "build/release", ROOT / "build/gpu")
PROGRAMS = ("bin/agpcs-run", "bin/agpcs-compile", "bin/agpcs-profile", "bin/agpcs-plan", "tests/transport_conformance_test",
            "tests/nccl_test", "tests/state_moves_test", "tests/nccl_replay_bench")
# What every system has of its own, and what comes with the wheels.
SYSTEMS = ("linux-vdso", "ld-linux", "libc.so", "libm.so", "libpthread", "libdl.so", "librt.so")
OF_WHEELS = ("libtorch", "libc10", "libcuda", "libcud", "libnccl", "libnv", "libcu")
EXPORT = """import sys, agpcs.torch
sys.path.insert(0, "tests/gpu")
import torch_steps
module = torch_steps.Gpt()
agpcs.torch.export(module, (module.batch(2)[0],), sys.argv[1], weights=False, input_names=["input_ids"])
"""
WRAPPER = """#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
here=$(dirname "$0")
LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/program/agpcs-compile" "$@"
"""


def libraries_of(text):
    """The paths in what ldd printed, of libraries that go along."""
    for line in text.splitlines():
        name, _, rest = line.strip().partition(" => ")
        path = rest.split(" (")[0]
        if path.startswith("/") and not name.startswith(SYSTEMS + OF_WHEELS):
            yield pathlib.Path(path)


def copy_with_libraries(program, to, libraries):
    """Copies a program, and the libraries that it needs to a folder of their own."""
    for folder in (to.parent, libraries):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copy2(program, to)
    for library in libraries_of(subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout):
        shutil.copy2(library, libraries / library.name)


def wheels(folder):
    if any(folder.glob("torch-*.whl")):
        return "there already"
    subprocess.run(["/usr/bin/python3", "-m", "pip", "download", "--require-hashes", "--no-deps", "--only-binary", ":all:",
                    "-d", folder, "-r", ROOT / "tools/pytorch/environment.txt"], check=True)
    return f"{sum(1 for _ in folder.glob('*.whl'))} wheels for the Python of this machine"


def models(folder):
    path = folder / "gpt2.onnx"
    if path.exists():
        return "there already"
    prefix = subprocess.run(["bash", ROOT / "tools/pytorch/pytorch.sh", "prefix"], capture_output=True, text=True,
                            check=True).stdout.strip()
    python = pathlib.Path(prefix) / "bin/python"
    package = next((build / "python" for build in BUILDS if (build / "python/agpcs").exists()), None)
    if not python.exists() or package is None:
        return "no gpt2.onnx: it needs tools/install_deps.sh --tests, and the Python package built"
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([python, "-c", EXPORT, path], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(package)},
                   stdout=subprocess.DEVNULL)
    return str(path)


def compiler(folder):
    program = next((path for build in BUILDS if (path := build / "bin/agpcs-compile").exists()), None)
    if program is None:
        return "no agpcs-compile: build it first, cmake --build --preset release --target agpcs-compile"
    copy_with_libraries(program, folder / "program/agpcs-compile", folder / "lib")
    (folder / "agpcs-compile").write_text(WRAPPER)
    (folder / "agpcs-compile").chmod(0o755)
    return str(folder / "agpcs-compile")


def programs(folder):
    built = ROOT / "build/gpu"
    found = [name for name in PROGRAMS if (built / name).exists()]
    if not found:
        return "no programs: build/gpu has none, so the other machine has to build them"
    for name in found:
        copy_with_libraries(built / name, folder / name, folder / "lib")
    if (built / "python/agpcs").exists():
        shutil.copytree(built / "python/agpcs", folder / "python/agpcs", dirs_exist_ok=True)
    lacking = [name for name in PROGRAMS if name not in found]
    return f"{len(found)} programs" + (f"; not built: {', '.join(lacking)}" if lacking else "")


def collect(folder):
    """Returns an exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    failed = False
    for name, step in (("bin", compiler), ("models", models), ("build", programs), ("wheels", wheels)):
        try:
            print(f"{name}: {step(folder / name)}", flush=True)
        except (OSError, subprocess.CalledProcessError) as error:
            failed = True
            print(f"run.sh: error: {name}: {error}", file=sys.stderr)
    return 1 if failed else 0
