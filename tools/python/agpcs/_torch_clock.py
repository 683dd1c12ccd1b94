# SPDX-License-Identifier: Apache-2.0
"""Clock: times of the processor or of a CUDA device."""

import time

import torch


class Clock:
    """Times of a device: the processor's clock, or events of the current CUDA stream."""

    def __init__(self, device):
        self._device, self._cuda = device, device.type == "cuda"
        self.mark = self._event if self._cuda else time.perf_counter  #: a function that returns the time as it is now

    @staticmethod
    def _event():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self):
        """Waits until the device has done all that it was asked for."""
        if self._cuda:
            torch.cuda.synchronize(self._device)

    def between(self, begin, end):
        return begin.elapsed_time(end) / 1e3 if self._cuda else end - begin
