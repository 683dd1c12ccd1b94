# SPDX-License-Identifier: Apache-2.0
"""Says of a module that PyTorch cannot export, or exports in part only, which line of the user's code that is, and what helps."""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib.util
import linecache
import os
import re
import sys
import sysconfig
import traceback
import typing
import warnings

import torch

from agpcs._errors import Error

_PACKAGES = ("torch", "agpcs", "sympy", "onnxscript", "onnx_ir", "numpy")
_SMALLEST, _MANY = 2, 2**31 - 1  # what PyTorch takes an extent for: 2 at least, without an end


class Line(typing.NamedTuple):
    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"

    @property
    def code(self) -> str:
        return linecache.getline(self.file, self.number).strip()


class Seen:
    """What was seen of a module while PyTorch exported it."""

    def __init__(self, module):
        self.fixed = []  #: (line, number of samples) of lines that take the batch for so many samples
        self.narrowed = {}  #: by the name of an extent: the last line that looked at it
        self.left = {}  #: by line, and by the forward around it where that is not known: what it does that no graph has
        self._module, self._names = module, {id(part): name for name, part in module.named_modules()}

    def noted(self, part, name, value):
        """Notes that an attribute is set, by the line that sets it."""
        line = _user_line([_frame(sys._getframe(2))])
        if line is None or id(part) not in self._names:
            return
        before = vars(part).get(name)
        if name in part._parameters or name in part._buffers or type(before) is type(value) and isinstance(
                value, (int, float, str, bool, type(None))) and before == value:
            return
        self.left.setdefault(line, f"changes '{self._attribute(part, name)}'")

    def told(self, text):
        """Notes what a warning of torch.export names, such as a tensor in a list: by the module's forward."""
        for path in re.findall(r"self\.([\w.]+)", text.partition("assigned during export")[0]):
            module, _, name = path.rpartition(".")
            part = self._module.get_submodule(module)
            what, forward = f"changes '{self._attribute(part, name)}'", type(part).forward.__code__
            line = _user_line([(forward.co_filename, forward.co_firstlineno)])
            if line is not None and what not in self.left.values():
                self.left.setdefault(line, what)

    def _attribute(self, part, name):
        return ".".join(filter(None, (self._names[id(part)], name)))

    def warn(self, program):
        """Warns of what the graph, which torch.export made, does not have."""
        for line, what in self.left.items():
            warnings.warn(f"{line} {what} while the module computes, which the exported graph leaves out{_quoted(line)}\n"
                          "  hint: do it outside of forward; a tensor that changes may be a buffer, or what forward returns",
                          stacklevel=6)
        for symbol, extents in program.range_constraints.items():
            low, high = _number(extents.lower), _number(extents.upper)
            line = self.narrowed.get(str(symbol))
            least, most = low is not None and low > _SMALLEST, high is not None and high < _MANY
            if line is not None and (least or most):
                batches = f"{low} to {high}" if least and most else f"up to {high}" if most else f"{low} or more"
                warnings.warn(f"{line} decides by the number of samples, and the exported graph is that of {batches} samples"
                              f"{_quoted(line)}\n  hint: a sample batch of as many samples as a step has", stacklevel=6)


@contextlib.contextmanager
def seeing(module):
    """Yields what is Seen of a module while PyTorch exports it. An error tells which line of the user's code it is of."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    seen, set_attribute, show = Seen(module), torch.nn.Module.__setattr__, print

    def printing(*arguments, **options):
        line = _user_line(_stack())
        if line is not None:
            seen.left.setdefault(line, "prints")
        show(*arguments, **options)

    def noting(part, name, value):
        seen.noted(part, name, value)
        set_attribute(part, name, value)

    def fixing(environment, symbol, target, *rest):
        line = _user_line(_stack())
        if line is not None and getattr(target, "is_Integer", False) and not str(symbol).startswith("u"):
            seen.fixed.append((line, int(target)))
        return replace(environment, symbol, target, *rest)

    def narrowing(environment, symbol, *rest):
        line = _user_line(_stack())
        if line is not None:
            seen.narrowed[str(symbol)] = line
        return update(environment, symbol, *rest)

    replace, update = getattr(ShapeEnv, "_set_replacement", None), getattr(ShapeEnv, "_update_var_to_range", None)
    with contextlib.ExitStack() as patches:
        patches.enter_context(_replaced(torch.nn.Module, "__setattr__", noting))
        patches.enter_context(_replaced(builtins, "print", printing))
        said = patches.enter_context(warnings.catch_warnings(record=True))
        if replace is not None and update is not None:  # they are PyTorch's own, and may go
            patches.enter_context(_replaced(ShapeEnv, "_set_replacement", fixing))
            patches.enter_context(_replaced(ShapeEnv, "_update_var_to_range", narrowing))
        try:
            yield seen
        except (Error, ModuleNotFoundError):
            raise
        except Exception as error:
            raise explained(error, seen) from error
    for warning in said:
        if "assigned during export" in str(warning.message):
            seen.told(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


@contextlib.contextmanager
def _replaced(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def explained(error, seen):
    """The Error that says where PyTorch's exporter failed, and what helps."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(cause)
    line = _user_line((frame.filename, frame.lineno) for frame in reversed(traceback.extract_tb(cause.__traceback__)))
    line = line or _user_line((file, int(number)) for file, number in reversed(re.findall(r'File "([^"]+)", line (\d+)', text)))
    if "data-dependent" in text or "DataDependent" in type(cause).__name__:
        return Error(f"PyTorch cannot export the module: {line or 'its code'} goes on by the values of a tensor, which nobody knows "
                     f"while it is exported{_quoted(line)}\n  hint: torch.where or torch.cond in place of a branch, and tensors in "
                     "place of what .item() and .tolist() return")
    refused = re.search(r"not in VR\[(\d+), \1\]", text)
    fixed = [(line, int(refused[1]))] if refused and line else seen.fixed
    if fixed and line in (None, fixed[0][0]):
        line, samples = fixed[0]
        return Error(f"PyTorch cannot export the module for any number of samples: {line} takes a batch for {samples} of them"
                     f"{_quoted(line)}\n  hint: x.shape[0] or -1 in place of a number, operations on the whole batch in place of a loop "
                     "over samples, and a sample batch of at least 2 samples")
    first = next((part for part in text.splitlines() if part.strip()), "")
    where = f"{line} raises " if line is not None else ""
    return Error(f"PyTorch cannot export the module: {where}{type(cause).__name__}: {first}{_quoted(line)}\n"
                 "  hint: torch.export.export(model, inputs, strict=False) has to take it: forward computes with torch alone, for a "
                 "sample batch of at least 2 samples")


def _quoted(line):
    return f": '{line.code}'" if line is not None else ""


def _number(extent):
    return int(extent) if getattr(extent, "is_Integer", False) else None


def _frame(frame):
    return frame.f_code.co_filename, frame.f_lineno


def _stack():
    """The frames of the user's module, the innermost first."""
    frame = sys._getframe(2)
    while frame is not None and os.path.basename(frame.f_code.co_filename) != "_torch_export.py":
        yield _frame(frame)
        frame = frame.f_back


def _user_line(frames):
    """The first Line in code that is neither Python's nor that of a package which exports."""
    return next((Line(file, number) for file, number in frames if _is_users(file)), None)


def _is_users(file):
    file = os.path.abspath(file) if not file.startswith("<") else ""
    packages = "site-packages" in file or "dist-packages" in file
    return bool(file) and not file.startswith(_folders()) and (packages or not file.startswith(sysconfig.get_paths()["stdlib"] + os.sep))


@functools.cache
def _folders():
    found = (importlib.util.find_spec(name) for name in _PACKAGES)
    return tuple(os.path.dirname(spec.origin) + os.sep for spec in found if spec is not None and spec.origin is not None)
