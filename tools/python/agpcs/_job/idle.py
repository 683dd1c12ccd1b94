# SPDX-License-Identifier: Apache-2.0
"""Probes the device of a rank of agpcs.torch.Job that has no stage, so that the job notices when the device recovers."""

from __future__ import annotations

import hashlib
import threading
import time

import torch

_REST = 2  # times what the last probe took
_PART_OF_STEP, _LEAST = 0.2, 0.05  # what a probe takes of its processor; the seconds show a quota that stops a rank sooner
_SIDE = 1024  # of the matrices that a GPU multiplies


class IdleProbe:
    """Runs probes on a thread of their own, because a slow device takes long for them, and the other ranks would wait for this one.
    They are as long, and come as often, as those of agpcs-run's idle ranks."""

    def __init__(self, device, step_seconds):
        self._device, self._seconds = device, max(_LEAST, _PART_OF_STEP * step_seconds)
        self._count = None  # of a probe's rounds, once it is known how many take so long
        self._running, self._taken, self._next = None, None, 0.0

    def take(self):
        """The seconds of a probe that has ended since the last call, or None. Begins the next one, after a pause of twice as long as the
        last one took."""
        if self._running is not None:
            if self._running.is_alive():
                return None
            self._running = None
        taken, self._taken = self._taken, None
        if time.perf_counter() >= self._next:
            # No daemon: Python's end waits for it, as it may free a process group (see Keeper.close).
            self._running = threading.Thread(target=self._run, name="agpcs-probe", daemon=False)
            self._running.start()
        return taken

    def _run(self):
        begin = time.perf_counter()
        try:
            if self._count is None:
                self._count = self._rounds()
            else:
                compute(self._device, self._count)
                self._taken = time.perf_counter() - begin
        finally:
            end = time.perf_counter()
            self._next = end + _REST * (end - begin)

    def _rounds(self):
        """How many rounds take as long as a probe is to take of the device; on a CPU, of the thread's processor time: a quota does not
        make it compute less."""
        clock = time.thread_time if self._device.type == "cpu" else time.perf_counter
        count, taken = 1, 0.0
        while taken < self._seconds / 4:
            count, begin = 2 * count, clock()
            compute(self._device, count)
            taken = clock() - begin
        return max(round(count * self._seconds / taken), 1)


def compute(device, count):
    """Computes so many rounds: on a CPU of SHA-256, by one thread that needs no lock of Python's meanwhile, else products of matrices."""
    if device.type == "cpu":
        hashlib.pbkdf2_hmac("sha256", b"probe", b"agpcs: idle rank", count)
        return
    factor = torch.ones(_SIDE, _SIDE, device=device)
    product = torch.empty_like(factor)
    for _ in range(count):
        torch.mm(factor, factor, out=product)
    torch.cuda.synchronize(device)
