# SPDX-License-Identifier: Apache-2.0
"""Measures a rank's training steps for autoplan, and leaves everything as it was."""

import contextlib
import copy
import os
import platform
import random
import statistics
import time
import typing
import warnings
from collections.abc import Mapping

import torch

from agpcs._torch_clock import Clock
from agpcs._torch_groups import plain_name


class Step(typing.NamedTuple):
    """One measured step. Times are in seconds."""

    forward: float
    backward: float
    ready: tuple  #: when each parameter's gradient was there, from the begin of the backward pass; None: never


class Point(typing.NamedTuple):
    """What steps of `samples` samples take. Times are medians in seconds."""

    samples: int
    forward: float
    backward: float
    spread: float  #: interquartile range of the steps' times / their median
    memory: int  #: the most bytes that were in use


class Update(typing.NamedTuple):
    """What an optimizer takes for a step, in seconds, and keeps, in bytes."""

    name: str  #: the optimizer of a cluster file that keeps as much: "sgd", "sgd momentum", "adam"
    seconds: float
    state_bytes: int
    copied_bytes: int  #: memory that measuring took


class Steps:
    """Measures steps of `loss_fn(model, batch)`, whose batches have as many samples as asked for."""

    def __init__(self, model, loss_fn, sample_batch):
        self.model, self.loss_fn, self.sample = model, loss_fn, sample_batch
        self.device = next(model.parameters()).device
        self.parameters = [(plain_name(name), p) for name, p in model.named_parameters() if p.requires_grad]
        self.sample_size = batch_size(sample_batch)
        self._ready = []
        self._loss, self._said = None, False  # the last step's loss; whether one that is no number was said

    def measure(self, samples, least_seconds=0.3, least_steps=3):
        """Returns the Point of a number of samples. The first step is not counted."""
        batch = self.batch_of(samples)
        self.step(batch)
        self._say_if_no_number()
        meter = memory_meter(self.device)
        steps, begin = [], time.perf_counter()
        while len(steps) < least_steps or time.perf_counter() - begin < least_seconds:
            steps.append(self.step(batch))
        return point_of(samples, steps, meter())

    def batch_of(self, samples):
        return resized(self.sample, self.sample_size, samples)

    def step(self, batch, between=None):
        """Makes one forward and backward pass. Calls `between` before the backward pass."""
        clock = Clock(self.device)
        clock.wait()
        self._ready = [None] * len(self.parameters)
        handles = [p.register_hook(self._marker(i, clock)) for i, (_, p) in enumerate(self.parameters)]
        try:
            begin = clock.mark()
            loss = self.loss_fn(self.model, batch)
            self._check(loss)
            self._loss = loss.detach()
            if between is not None:
                between()
            middle = clock.mark()
            loss.backward()
            end = clock.mark()
        finally:
            for handle in handles:
                handle.remove()
        clock.wait()
        for _, parameter in self.parameters:
            parameter.grad = None
        ready = tuple(None if at is None else clock.between(middle, at) for at in self._ready)
        return Step(clock.between(begin, middle), clock.between(middle, end), ready)

    def _marker(self, index, clock):
        def mark(_):
            self._ready[index] = clock.mark()  # a parameter that is used twice counts when it is used last
        return mark

    def _say_if_no_number(self):
        if not self._said and not torch.isfinite(self._loss).all():
            self._said = True
            warnings.warn(f"the loss of sample_batch is {self._loss.item()}: steps are measured all the same, but such a "
                          "model does not train")

    def _check(self, loss):
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise TypeError(f"loss_fn returned {got}; it returns the mean loss of the batch, one number with a gradient\n"
                            "  hint: autoplan(model, lambda model, batch: cross_entropy(model(batch[0]), batch[1]), ...)")


def point_of(samples, steps, memory):
    """Returns the Point of measured steps: the medians over blocks of steps, of each block's mean. The mean inside a
    block is for processors with a quota, which stop for part of each period; the median is for all other noise."""
    blocks = [steps[i::3] for i in range(3)] if len(steps) >= 9 else [[step] for step in steps]
    forward = [statistics.fmean(s.forward for s in block) for block in blocks]
    backward = [statistics.fmean(s.backward for s in block) for block in blocks]
    sums = sorted(f + b for f, b in zip(forward, backward))
    quarter = len(sums) // 4
    spread = (sums[-1 - quarter] - sums[quarter]) / max(statistics.median(sums), 1e-9)
    return Point(samples, statistics.median(forward), statistics.median(backward), spread, memory)


# Batches --------------------------------------------------------------------------------------------------------------

def batch_size(batch):
    """Returns the number of samples: the first extent of the first tensor in `batch`."""
    for tensor in _tensors(batch):
        return tensor.shape[0]
    raise TypeError(f"sample_batch is {type(batch).__name__} without a tensor that has a batch axis\n"
                    "  hint: give what the DataLoader yields: a tensor, or tuples, lists and dicts of tensors")


def resized(batch, size, samples):
    """Returns `batch`, whose tensors have `size` samples, with `samples` samples: its first ones, repeated if need be.
    Tensors with another first extent, and all that is no tensor, stay as they are."""
    if isinstance(batch, torch.Tensor):
        if batch.dim() == 0 or batch.shape[0] != size:
            return batch
        return batch.index_select(0, torch.arange(samples, device=batch.device) % size)
    if isinstance(batch, Mapping):
        return {key: resized(value, size, samples) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(resized(part, size, samples) for part in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(resized(part, size, samples) for part in batch)
    return batch


def signature_of(batch):
    """Returns the types and shapes of a sample, as a text."""
    return ", ".join(f"{tensor.dtype}{list(tensor.shape[1:])}" for tensor in _tensors(batch))


def _tensors(batch):
    if isinstance(batch, torch.Tensor):
        if batch.dim() > 0:
            yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, (tuple, list)):
        for part in batch:
            yield from _tensors(part)


# The optimizer --------------------------------------------------------------------------------------------------------

def measure_update(optimizer, model, room):
    """Returns the Update of a copy of `optimizer`, or of SGD with momentum where there is none. The copy has parameters
    of its own, so that the real ones stay as they are. Where `room` bytes of memory do not suffice for it, the Update
    takes no time, with a warning."""
    trained = [p for p in model.parameters() if p.requires_grad]
    needed = 4 * sum(p.numel() * p.element_size() for p in trained)  # with gradients and two states
    if needed > room:
        warnings.warn(f"there is no room for a copy of the optimizer ({needed / 1e9:.1f} GB): the plan counts no time "
                      "for its steps")
        return Update("adam", 0.0, 0, 0)
    if optimizer is None:
        copied = torch.optim.SGD([torch.nn.Parameter(p.detach().clone()) for p in trained], lr=1e-6, momentum=0.9)
    else:
        copied = copy.deepcopy(optimizer)
        # A scheduler puts a function of the real optimizer on the instance; hooks are the user's.
        for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            getattr(copied, hooks, {}).clear()
    ours = [p for group in copied.param_groups for p in group["params"]]
    for parameter in ours:
        parameter.grad = torch.zeros_like(parameter)
    seconds = []
    for _ in range(4):
        clock = Clock(ours[0].device)
        clock.wait()
        begin = clock.mark()
        type(copied).step(copied)
        end = clock.mark()
        clock.wait()
        seconds.append(clock.between(begin, end))
    elements = sum(p.numel() for p in ours)
    states = [value for state in copied.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    per_parameter = sum(value.numel() for value in states) / max(elements, 1)
    state_bytes = sum(value.numel() * value.element_size() for value in states)
    copies = state_bytes + 2 * sum(p.numel() * p.element_size() for p in ours)
    name = "sgd" if per_parameter < 0.5 else "sgd momentum" if per_parameter < 1.5 else "adam"
    return Update(name, statistics.median(seconds[1:]), state_bytes, copies)


def device_name(device):
    """Returns what tells devices of unlike speed apart, as far as the machine says it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model)
    except OSError:
        pass
    return f"{model}, {torch.get_num_threads()} threads"


# Memory ---------------------------------------------------------------------------------------------------------------

def memory_limit(device, ranks_here):
    """Returns the bytes that this rank may use: 80% of what the device, or its share of the machine and of the process
    group's memory limit, has left."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(0.8 * (free + torch.cuda.memory_reserved(device)))
    free = [_meminfo("MemAvailable")]
    for folder in _memory_cgroups():
        limit, used = _number(folder, "memory.max", "memory.limit_in_bytes"), _number(
            folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < 1 << 60:
            free.append(max(limit - used, 0))
    return int(0.8 * (min(free) / ranks_here + _resident("VmRSS")))


def memory_in_use(device):
    """Returns the bytes that this rank has now."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else _resident("VmRSS")


def memory_meter(device):
    """Begins to watch memory. Returns a function that returns the most bytes in use since."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return lambda: torch.cuda.max_memory_reserved(device)
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # VmHWM begins anew
    return lambda: _resident("VmHWM")


def _resident(key):
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return _kilobytes(file, key)


def _meminfo(key):
    with open("/proc/meminfo", encoding="ascii") as file:
        return _kilobytes(file, key)


def _kilobytes(lines, key):
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


def _memory_cgroups():
    """Yields the folders of the control groups, from this process's up, that may limit its memory."""
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="ascii", errors="replace") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            root = {"": "/sys/fs/cgroup", "memory": "/sys/fs/cgroup/memory"}.get(controllers)
            while root is not None:
                yield root + path
                if path in ("/", ""):
                    break
                path = os.path.dirname(path)


def _number(folder, *names):
    for name in names:
        with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, name), encoding="ascii") as file:
            return int(file.read())
    return None


# State ----------------------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def untouched(model):
    """Restores, to the bit, what steps change: buffers, gradients, modes of modules and states of random generators.
    The model is in training mode meanwhile."""
    modes = [(part, part.training) for part in model.modules()]
    gradients = [(p, p.grad) for p in model.parameters()]
    buffers = [(part, key, buffer, buffer.detach().clone())
               for part in model.modules() for key, buffer in part._buffers.items() if buffer is not None]
    python, processor = random.getstate(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    numpy = _numpy_random()
    numpy_state = numpy.get_state() if numpy else None
    try:
        for parameter, _ in gradients:
            parameter.grad = None
        model.train()
        yield sum(value.numel() * value.element_size() for _, _, _, value in buffers)
    finally:
        for part, mode in modes:
            part.training = mode
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for part, key, buffer, value in buffers:
                part._buffers[key] = buffer.copy_(value)
        random.setstate(python)
        torch.set_rng_state(processor)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        if numpy:
            numpy.set_state(numpy_state)


def _numpy_random():
    try:
        import numpy
    except ImportError:
        return None
    return numpy.random
