# SPDX-License-Identifier: Apache-2.0
"""Processes beside each other on one GPU, by NVIDIA's MPS. Without it they take turns of milliseconds, and a message
between two of them takes several turns."""

import contextlib
import os
import shutil
import subprocess

from work import CannotRun

NAME = "nvidia-cuda-mps-control"


def control():
    """The program that starts MPS, on the PATH or beside the driver's programs; None where there is none."""
    return shutil.which(NAME) or shutil.which(NAME, path="/usr/local/nvidia/bin")


@contextlib.contextmanager
def beside_each_other(work, percent=100):
    """The environment of processes that run on the device at the same time, with `percent` of its threads each."""
    program = control()
    if work.machine.rehearsal or program is None:
        raise CannotRun("a rehearsal has no device" if work.machine.rehearsal else f"no {NAME} here")
    pipes, logs = work.folder / "mps", work.folder / "mps-log"
    for folder in (pipes, logs):
        folder.mkdir(exist_ok=True)
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    started = work.call([program, "-d"], environment, limit=30, output=subprocess.DEVNULL)
    if started.code != 0:
        raise CannotRun(f"MPS may not run here: {program} -d ended with {started.code}")
    try:
        yield {**environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}
    finally:
        subprocess.run([program], input="quit\n", text=True, env={**os.environ, **environment}, timeout=60,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def part_of_device(work, percent):
    """The environment of processes that get `percent` of the device's threads; all of them need no MPS."""
    return contextlib.nullcontext({}) if percent == 100 else beside_each_other(work, percent)


def of_ranks(work):
    """The environment of ranks, which run at the same time if they can: on GPUs of their own, or by MPS."""
    if work.machine.rehearsal or len(work.machine.gpus) > 1:
        return contextlib.nullcontext({})
    if control() is None:
        work.note(f"ranks take turns on the GPU: no {NAME} here")
        return contextlib.nullcontext({})
    return beside_each_other(work)
