# SPDX-License-Identifier: Apache-2.0
"""The optimizer's state of agpcs.torch.Job in the memory of the host (docs/design/offload.md): an update brings it to the device in
pieces, through a window of bounded size, and takes it back.

An optimizer that treats each element by itself makes the same of pieces as of whole parameters. A piece is updated by a stand-in of the
optimizer, of its class and with its settings, that has the piece alone.
"""

from __future__ import annotations

import collections
import contextlib
import typing

import torch

from agpcs._errors import UsageError
from agpcs._job.owned import check_elementwise, of_elements, parameters_of

PIECE, WINDOW = 1 << 20, 3  # the most elements of a piece, and the pieces on the device, as in `ir/strategy/offload.h`


class _Part(typing.NamedTuple):
    """What a piece has of a parameter: elements in the order of its memory."""

    group: int  #: of the optimizer
    parameter: torch.Tensor
    begin: int
    end: int
    own: torch.nn.Parameter  #: the elements, with their gradients


class HostState:
    """Of `optimizer`, whose parameters lie on `device`. What it keeps of elements lies in the host's memory from now on; the count of
    its steps and the like stay where they are."""

    def __init__(self, optimizer, device):
        check_elementwise(optimizer, "the plan keeps the optimizer's state in the memory of hosts", "agpcs.plan(..., without=['offload'])")
        for parameter in parameters_of(optimizer):
            if not _is_dense(parameter):
                raise UsageError(f"the plan keeps the optimizer's state in the memory of hosts, and a parameter of shape "
                                 f"{tuple(parameter.shape)} leaves gaps in its memory: its strides are {parameter.stride()}\n"
                                 "  hint: a module whose parameters are contiguous, or agpcs.plan(..., without=['offload'])")
        self._optimizer = optimizer
        self._copies = _Streams(device) if device.type == "cuda" else _Turns()
        self._slots = [_Slot(device) for _ in range(WINDOW)]
        self._hooked = torch.optim.Optimizer.profile_hook_step(lambda _: self._update())
        self._settle()

    def step(self):
        """Makes the optimizer's step, with its hooks."""
        self._optimizer._opt_called = True  # for a schedule, which warns if nobody has called `step`
        self._hooked(self._optimizer)

    def load(self, packed):
        """What `load_state_dict` does, without bringing to the device what belongs to the host."""
        small = {i: {key: value for key, value in state.items() if not of_elements(key, value)} for i, state in packed["state"].items()}
        self._optimizer.load_state_dict({**packed, "state": small})
        parameters = parameters_of(self._optimizer)
        for i, state in packed["state"].items():
            self._optimizer.state[parameters[i]].update(
                (key, self._in_host(parameters[i], value.to(parameters[i].dtype))) for key, value in state.items() if of_elements(key, value))

    def _settle(self):
        """Brings what lies elsewhere to the host's memory: Adagrad has some from the beginning, and a script may load some."""
        for parameter, state in self._optimizer.state.items():
            state.update([(key, self._in_host(parameter, value)) for key, value in state.items() if of_elements(key, value)])

    def _in_host(self, parameter, value):
        """A state of a parameter's elements in the host's memory, in their order; itself, if it is there."""
        there = value.device.type == "cpu" and (not self._copies.pinned or value.is_pinned())
        if there and value.shape == parameter.shape and value.stride() == parameter.stride():
            return value
        return self._made(parameter, value.dtype).copy_(value.reshape(parameter.shape))

    def _made(self, parameter, dtype):
        return torch.empty_strided(parameter.shape, parameter.stride(), dtype=dtype, pin_memory=self._copies.pinned)

    def _update(self):
        self._settle()
        pieces, updated = _pieces(self._optimizer), {}  # by parameter: its state
        room = max((sum(part.end - part.begin for part in piece) for piece in pieces), default=0)
        self._copies.begin()
        for number, piece in enumerate(pieces):
            self._update_piece(piece, number % WINDOW, room, updated)
        self._copies.end()
        for parameter, state in updated.items():
            self._optimizer.state[parameter].update(state)

    def _update_piece(self, piece, slot, room, updated):
        with self._copies.coming_in(slot):
            states = self._brought(piece, self._slots[slot].cleared(room))
        for part in piece:
            states[part.own].update((key, value.clone() if isinstance(value, torch.Tensor) else value)
                                    for key, value in self._known(part).items() if not of_elements(key, value))
        other = stand_in(self._optimizer, _groups(self._optimizer, piece), states)
        _plain_step(self._optimizer)(other)
        with self._copies.going_out(slot):
            for part in piece:
                self._take_back(part, other.state.get(part.own, {}), updated.setdefault(part.parameter, {}))

    def _known(self, part):
        """What the optimizer kept of a part's parameter before this update."""
        return self._optimizer.state.get(part.parameter, {})

    def _brought(self, piece, slot):
        """The states of a piece's elements on the device, by part."""
        states = collections.defaultdict(dict)
        for part in piece:
            for key, value in self._known(part).items():
                if of_elements(key, value):
                    states[part.own][key] = slot.take(key, _flat(value)[part.begin:part.end])
        return states

    def _take_back(self, part, state, updated):
        """Takes the state of a part's elements into the host's memory, in the state `updated` of its parameter."""
        for key, value in state.items():
            if not of_elements(key, value):
                updated[key] = value
                continue
            if key not in updated:
                before = self._known(part).get(key)
                same = isinstance(before, torch.Tensor) and before.dtype == value.dtype
                updated[key] = before if same else self._made(part.parameter, value.dtype)
            self._copies.copy(value.reshape(-1), _flat(updated[key])[part.begin:part.end])


class _Slot:
    """The room of one piece on the device, by key of the state."""

    def __init__(self, device):
        self._device, self._tensors = device, {}

    def cleared(self, room):
        """Itself, for another piece of up to `room` elements."""
        self._room, self._used = room, collections.Counter()
        return self

    def take(self, key, values):
        """A copy of values of the host."""
        known = self._tensors.get((key, values.dtype))
        if known is None or known.numel() < self._room:
            known = self._tensors[key, values.dtype] = torch.empty(self._room, dtype=values.dtype, device=self._device)
        begin = self._used[key, values.dtype]
        self._used[key, values.dtype] += values.numel()
        return known[begin:begin + values.numel()].copy_(values, non_blocking=True)


class _Turns:
    """Copies and updates take turns: host and device have one memory."""

    pinned = False

    def begin(self):
        pass

    def coming_in(self, slot):
        return contextlib.nullcontext()

    going_out = coming_in

    def copy(self, value, into):
        into.copy_(value)

    def end(self):
        pass


class _Streams:
    """On a CUDA device, copies in each direction have a stream of their own, beside that of the updates."""

    pinned = True

    def __init__(self, device):
        self._device, self._in, self._out = device, torch.cuda.Stream(device), torch.cuda.Stream(device)

    def begin(self):
        self._in.wait_stream(torch.cuda.current_stream(self._device))
        self._gone = [None] * WINDOW  # by slot: when its last piece is back

    @contextlib.contextmanager
    def coming_in(self, slot):
        if self._gone[slot] is not None:
            self._gone[slot].synchronize()  # so that no more pieces are on their way than the window has
        with torch.cuda.stream(self._in):
            yield
        torch.cuda.current_stream(self._device).wait_stream(self._in)

    @contextlib.contextmanager
    def going_out(self, slot):
        self._out.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._out):
            yield
        self._gone[slot] = self._out.record_event()

    def copy(self, value, into):
        into.copy_(value, non_blocking=True)
        value.record_stream(self._out)  # its memory serves no one else before

    def end(self):
        self._out.synchronize()


def stand_in(optimizer, groups, state):
    """An optimizer of the same class and settings, without hooks, that has `groups`, settings with parameters, and their `state`. It is
    not made by the class's constructor, which may have arguments that nobody knows here."""
    other = object.__new__(type(optimizer))
    other.__dict__.update(vars(optimizer))
    other.__dict__.pop("step", None)  # of a schedule
    other._optimizer_step_pre_hooks, other._optimizer_step_post_hooks = collections.OrderedDict(), collections.OrderedDict()
    other.param_groups, other.state = groups, state
    return other


def window_bytes(state, optimizer):
    """What the device holds at a time of the `state` bytes that an optimizer keeps in the host's memory."""
    elements = sum(parameter.numel() for parameter in parameters_of(optimizer))
    return min(state, -(-state * WINDOW * PIECE // max(elements, 1)))


def _pieces(optimizer):
    """All that has gradients, in pieces, each a list of _Part."""
    pieces, left = [], 0
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            gradient = parameter.grad
            if gradient.stride() != parameter.stride():
                gradient = torch.empty_like(parameter).copy_(gradient)
            values, gradients = _flat(parameter.detach()), _flat(gradient)
            for begin in range(0, len(values), PIECE):
                end = min(begin + PIECE, len(values))
                if end - begin > left:
                    pieces.append([])
                    left = PIECE
                own = torch.nn.Parameter(values[begin:end])
                own.grad = gradients[begin:end]
                pieces[-1].append(_Part(number, parameter, begin, end, own))
                left -= end - begin
    return pieces


def _groups(optimizer, piece):
    """The optimizer's groups of a piece."""
    found = {}
    for part in piece:
        found.setdefault(part.group, []).append(part.own)
    return [{**optimizer.param_groups[number], "params": parameters} for number, parameters in found.items()]


def _plain_step(optimizer):
    """What `step` of an optimizer's class does, without hooks for all optimizers."""
    step = type(optimizer).step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def _is_dense(tensor):
    """Whether a tensor's elements fill their memory, in some order of axes."""
    extent = 1
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if size > 1):
        if stride != extent:
            return False
        extent *= size
    return True


def _flat(tensor):
    """The elements of a dense tensor in the order of its memory."""
    return tensor.as_strided((tensor.numel(),), (1,))
