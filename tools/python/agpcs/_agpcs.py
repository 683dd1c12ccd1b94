# SPDX-License-Identifier: Apache-2.0
"""The compiler's library, through its C interface (tools/python/c_interface.h): text in, text out."""

import ctypes
import json
import operator
import pathlib
import threading

from agpcs._errors import Error, Infeasible, InvalidInput, UsageError

_ERRORS = {1: InvalidInput, 2: UsageError, 3: Infeasible}  # by code of a reply


class _Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


def _text(given):
    """`given`, a text or bytes, or None, which is no data. It must live as long as the result."""
    if given is None:
        return _Text(None, 0)
    return _Text(ctypes.cast(ctypes.c_char_p(given), ctypes.c_void_p), len(given))


def _loaded():
    library = ctypes.CDLL(str(pathlib.Path(__file__).with_name("libagpcs_python.so")))
    handle, number, text = ctypes.c_void_p, ctypes.c_int, _Text
    figures = ctypes.POINTER(ctypes.c_double)
    for name, result, *arguments in (
            ("reply_code", number, handle), ("reply_text", text, handle, ctypes.c_size_t), ("reply_free", None, handle),
            ("version", text),
            ("interrupt_new", handle), ("interrupt_raise", None, handle), ("interrupt_free", None, handle),
            ("compile", handle, text, text, handle), ("plan_json", handle, text, text), ("plan_command", handle, text),
            ("read_plan", handle, text), ("sealed_profile", handle, text, text), ("to_measure", handle, text, text, text),
            ("drift_quantities", number), ("drift_new", handle, text, ctypes.POINTER(handle)),
            ("drift_statistics", None, handle, number, ctypes.c_double, number, figures),
            ("drift_add_probe", None, handle, number, ctypes.c_double),
            ("drift_add", handle, handle, ctypes.c_int64, figures, number), ("drift_free", None, handle)):
        function = getattr(library, f"agpcs_{name}")
        function.restype, function.argtypes = result, arguments
    return library


_library = _loaded()


def _string(text):
    """The text at a _Text. It may have bytes that are not UTF-8, such as a file's name."""
    return ctypes.string_at(text.data, text.bytes).decode("utf-8", "replace") if text.bytes else ""


version: str = _string(_library.agpcs_version())


def _json(value):
    """Numbers of other libraries, as numpy's, are taken for what they are."""
    def plain(number):
        return operator.index(number) if hasattr(number, "__index__") else float(number)

    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=plain)


def _taken(reply, count=2):
    """Returns the code and `count` texts of a reply, and frees it."""
    try:
        return (_library.agpcs_reply_code(reply), *(_string(_library.agpcs_reply_text(reply, i)) for i in range(count)))
    finally:
        _library.agpcs_reply_free(reply)


def _call(function, *texts, others=(), count=2):
    """Returns `count` texts of a call's reply, or raises its error."""
    encoded = [each if each is None or isinstance(each, bytes) else each.encode() for each in texts]
    code, *said = _taken(function(*map(_text, encoded), *others), count)
    if code != 0:
        raise _ERRORS.get(code, Error)(said[0])
    return said


def compile(options, model=None):  # noqa: A001: it is what the module's users call it
    """Returns a plan's text, warnings, and the bound as a dict. `options` are those of tools/python/c_options.cc;
    `model` is the bytes of an ONNX file. Ctrl-C ends the search and raises KeyboardInterrupt."""
    result, interrupt = [], _library.agpcs_interrupt_new()

    def work():
        try:
            result.append(_call(_library.agpcs_compile, _json(options), model, others=(interrupt,), count=3))
        except Exception as error:  # of this thread; raised by the caller's
            result.append(error)

    thread = threading.Thread(target=work, name="agpcs.plan")
    thread.start()
    try:
        thread.join()  # a signal's handler may raise here
    except BaseException:
        _library.agpcs_interrupt_raise(interrupt)
        raise
    finally:
        thread.join()
        _library.agpcs_interrupt_free(interrupt)
    if isinstance(result[0], Exception):
        raise result[0]
    text, said, bound = result[0]
    return text, said, json.loads(bound)


def plan_json(plan, file):
    return _call(_library.agpcs_plan_json, plan, file)[0]


def plan_command(words):
    """Runs agpcs-plan. Returns its exit code, and what it printed to either stream."""
    words = _json(words).encode()
    return _taken(_library.agpcs_plan_command(_text(words)))


def read_plan(path):
    return _call(_library.agpcs_read_plan, path)[0]


def to_measure(options, model, devices):
    """Returns what is to be measured of a model for a profile, as tools/python/to_measure.h has it. `options` and `model`
    are those of `compile`."""
    return json.loads(_call(_library.agpcs_to_measure, _json(options), model, _json(devices), count=1)[0])


def sealed_profile(measurements, file):
    """Returns the text of the profile file that holds these measurements, digest included."""
    return _call(_library.agpcs_sealed_profile, measurements, file)[0]


class Drift:
    """The drift detector of a job, whose ranks measure their steps in Python."""

    _QUANTITIES = _library.agpcs_drift_quantities()

    def __init__(self, plan):
        self._drift = ctypes.c_void_p()
        _call(_library.agpcs_drift_new, plan, others=(ctypes.byref(self._drift),))

    def __del__(self):
        if self._drift:
            _library.agpcs_drift_free(self._drift)

    def statistics(self, rank, seconds, processor=0.0, steps=1):
        """Returns what rank `rank` shares of its mean seconds in each of `steps` steps, by quantity. `processor`: the processor
        time of its computing; 0: not known. An idle rank shares what its probes say instead."""
        figures = (ctypes.c_double * self._QUANTITIES)(*seconds)
        _library.agpcs_drift_statistics(self._drift, rank, processor, steps, figures)
        return list(figures)

    def add_probe(self, rank, seconds):
        """Adds what a probe of the idle rank's device took."""
        _library.agpcs_drift_add_probe(self._drift, rank, seconds)

    def add(self, step, by_rank):
        """Adds what all ranks shared in step `step`. Returns (text, quantity, rank, factor, since) of each change."""
        figures = [figure for of_rank in by_rank for figure in of_rank]
        if len(figures) != len(by_rank) * self._QUANTITIES:
            raise ValueError(f"{len(figures)} figures of {len(by_rank)} ranks, {self._QUANTITIES} quantities each")
        figures = (ctypes.c_double * len(figures))(*figures)
        reply = _library.agpcs_drift_add(self._drift, step, figures, len(by_rank))
        return [tuple(change) for change in json.loads(_taken(reply)[1])]
