# SPDX-License-Identifier: Apache-2.0
"""Collects, on a machine with network, what a machine with a GPU may lack, in a folder for run.sh --from.

    wheels/    PyPI's PyTorch of a CUDA build, its NCCL, and what these need (tools/pytorch/environment.txt)
    models/    GPT-2 small as ONNX, its structure alone; ResNet-50 and BERT are in samples/models
    bin/       agpcs-compile with the libraries that it needs
    build/     the programs of build/gpu, if they have been built here: for a machine that cannot build
    sources    the commit of all this

For a machine that has a PyTorch of its own (--compute), one library takes the place of the wheels:

    nccl/      an NCCL that lets ranks share a GPU, with the code for one compute capability alone

Each step is left out if its result is there, so that a broken run goes on.
"""

import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

import machine

ROOT = machine.ROOT
BUILDS = (ROOT / "build/release", ROOT / "build/gpu")
PROGRAMS = ("bin/agpcs-run", "bin/agpcs-compile", "bin/agpcs-profile", "bin/agpcs-plan", "tests/transport_conformance_test",
            "tests/nccl_test", "tests/state_moves_test", "tests/nccl_replay_bench")
# What every system has of its own, and what comes with the wheels.
SYSTEMS = ("linux-vdso", "ld-linux", "libc.so", "libm.so", "libpthread", "libdl.so", "librt.so",
           "libutil.so", "libz.so", "libstdc++.so", "libgcc_s.so", "libgomp")
OF_WHEELS = ("libtorch", "libc10", "libcuda", "libcud", "libnccl", "libnv", "libcu")
NCCL = "nvidia-nccl-cu13"
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


FAT = 0xBA55ED50  # what begins a container of device code: CUDA's fatbinary.h
CONTAINER, ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQ12xI")  # magic, version, header, bytes; kind .. architecture
MACHINE_CODE = 2  # the kind of an entry, beside 1, PTX


def thin(library, architecture):
    """`library` with zeros in the place of device code that is not machine code of `architecture` (90: compute capability
    9.0). No program that runs on such a device reads it, and what is left packs to a sixth."""
    data, at = bytearray(library), 0
    while (at := data.find(FAT.to_bytes(4, "little"), at)) >= 0:
        _, version, header, size = CONTAINER.unpack_from(data, at)
        at += CONTAINER.size
        if (version, header) != (1, CONTAINER.size) or at + size > len(data):
            continue
        end = at + size
        while at + ENTRY.size <= end:
            kind, _, header, size, target = ENTRY.unpack_from(data, at)
            if (kind, target) != (MACHINE_CODE, architecture):
                data[at + header:at + header + size] = bytes(size)
            at += header + size
    return bytes(data)


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


def pinned(name):
    """The line of environment.txt that pins a package, without its digests."""
    lines = (ROOT / "tools/pytorch/environment.txt").read_text().splitlines()
    return next(line.split()[0] for line in lines if line.startswith(f"{name}=="))


def nccl(folder, architecture):
    path = folder / "libnccl.so.2"
    if path.exists():
        return "there already"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        subprocess.run(["/usr/bin/python3", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d",
                        temporary, pinned(NCCL)], check=True)
        wheel = zipfile.ZipFile(next(pathlib.Path(temporary).glob("*.whl")))
        path.write_bytes(thin(wheel.read("nvidia/nccl/lib/libnccl.so.2"), architecture))
    return f"{pinned(NCCL)}, device code for compute capability {architecture / 10}"


def models(folder):
    path = folder / "gpt2.onnx"
    if path.exists():
        return "there already"
    prefix = subprocess.run(["bash", ROOT / "tools/pytorch/pytorch.sh", "prefix"], capture_output=True, text=True,
                            check=True).stdout.strip()
    python = pathlib.Path(prefix) / "bin/python"
    package = next((build / "python" for build in BUILDS if (build / "python/agpcs/libagpcs_python.so").exists()), None)
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


def collect(folder, sources, compute=None):
    """`compute` is the compute capability of a machine with a PyTorch of its own: "9.0". Returns an exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sources").write_text(sources + "\n")
    steps = {"bin": compiler, "models": models, "build": programs}
    if compute is None:
        steps["wheels"] = wheels
    else:
        steps["nccl"] = lambda to: nccl(to, int(compute.replace(".", "")))
    failed = False
    for name, step in steps.items():
        try:
            print(f"{name}: {step(folder / name)}", flush=True)
        except (OSError, subprocess.CalledProcessError) as error:
            failed = True
            print(f"run.sh: error: {name}: {error}", file=sys.stderr)
    return 1 if failed else 0
