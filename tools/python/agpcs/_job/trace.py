# SPDX-License-Identifier: Apache-2.0
"""Traces of agpcs.torch.Job: the times of the last steps' lines on each rank, and the file that `agpcs-run --trace` writes,
of one of these steps. Perfetto shows it, and `agpcs-plan drift` reads it."""

from __future__ import annotations

import collections
import concurrent.futures
import hashlib
import json
import math
import socket
import statistics
import typing

import torch.distributed as dist

from agpcs import _new_file
from agpcs._errors import UsageError
from agpcs._job.together import gathered, together
from agpcs._torch_clock import Clock

KEPT = 64  # steps
_STREAMS = ("compute", "send", "recv", "collective")
_PASSES = ("forward", "backward", "backward_input", "backward_weight")
_STREAM_OF = {**dict.fromkeys((*_PASSES, "update"), 0), "send": 1, "send_gradient": 1, "recv": 2, "recv_gradient": 2,
              "all_reduce": 3, "reduce_scatter": 3, "all_gather": 3, "gather_forward": 3, "gather_backward": 3, "norm": 3,
              "report": 3}
_COLOURS = {**dict.fromkeys(_PASSES, "thread_state_runnable"), "forward": "thread_state_running",
            "update": "thread_state_iowait", "all_reduce": "rail_response", "reduce_scatter": "rail_response",
            "all_gather": "rail_response", "gather_forward": "rail_response", "gather_backward": "rail_response",
            "norm": "rail_response", "report": "rail_response"}
_GATHERS = ("all_gather", "gather_forward", "gather_backward")
_REDUCTIONS = ("all_reduce", "reduce_scatter", *_GATHERS)
_QUANTITIES = ((*_PASSES, "update"), _REDUCTIONS, ("send", "send_gradient"))


class Event(typing.NamedTuple):
    word: str  #: the line
    begin: float  #: seconds of the rank's clock
    end: float
    size: int  #: bytes that it moves or reduces
    peers: tuple[int, ...]  #: ranks of which it receives


class Recorder:
    """Notes when the lines of steps begin and end on this rank.

    A message or reduction ends when a wait for it does. On CPUs, a thread for each stream waits at once, in the order of
    the plan, so that its end is seen then. On CUDA devices times are those of events of the current stream, which waits
    where the step does.
    """

    def __init__(self, device):
        self._clock, self._cuda = Clock(device), device.type == "cuda"
        self.clock = f"rank {dist.get_rank()}" if self._cuda else socket.gethostname()  #: whose times are comparable
        self._waiting = {} if self._cuda else {
            stream: concurrent.futures.ThreadPoolExecutor(1, f"agpcs-{_STREAMS[stream]}") for stream in (1, 2, 3)}
        self._step, self._steps, self._first = [], collections.deque(maxlen=KEPT), 0
        self.mark = self._clock.mark

    def noted(self, word, begin):
        """Notes that a line which began at the mark `begin` is over."""
        self._step.append((word, begin, self._clock.mark()))

    def begun(self, word, works, begin):
        """Notes that a message or reduction has begun, at the mark `begin` or later. Returns what `wait`s for it."""
        waiting = self._waiting.get(_STREAM_OF[word.partition(":")[0]])
        wait = _Noting(self, word, begin, works)
        return wait if waiting is None else _Later(waiting.submit(wait.wait))

    def end_step(self):
        self._first += len(self._steps) == KEPT
        self._steps.append(self._step)
        self._step = []

    def forget(self):
        """Begins anew: the job has another plan."""
        self._first += len(self._steps)
        self._steps.clear()

    def seconds(self, traffic):
        """(number of the first step that is known, the Events of each known step)."""
        self._clock.wait()
        return self._first, [[Event(word, self._at(begin), self._at(end), *traffic(word)) for word, begin, end in step]
                                     for step in self._steps]

    def _at(self, mark):
        return self._clock.between(self._steps[0][0][1], mark) if self._cuda else mark


class _Noting:
    def __init__(self, recorder, word, begin, works):
        self._recorder, self._word, self._begin, self._works = recorder, word, begin, works

    def wait(self):
        self._works.wait()
        self._recorder.noted(self._word, self._begin)


class _Later:
    def __init__(self, future):
        self._future = future

    def wait(self):
        self._future.result()


def traffic(cuts, buckets, rank, idle):
    """A function that returns, of a line, the bytes that it moves or reduces, and the ranks of which it receives. The lines `idle` move
    nothing."""
    cuts = {cut.name: cut for cut in cuts}
    buckets = {bucket.name: bucket for bucket in buckets}

    def of(word):
        what, *name = word.split(":")
        if what in _REDUCTIONS:
            bucket = buckets[name[0]]
            return 0 if word in idle else bucket.gathered_bytes if what in _GATHERS else bucket.bytes, ()
        if _STREAM_OF[what] not in (1, 2):  # it is no message
            return 0, ()
        back, receives, size, peers = what.endswith("_gradient"), what.startswith("recv"), 0, {}
        for message in cuts[name[0]].messages(int(name[1]), back):
            value = cuts[name[0]].values[message.value]
            own, peer = (message.producer, message.consumer) if receives == back else (message.consumer, message.producer)
            if own == rank and (value.gradient or not back):
                rows = 1 if message.begin < 0 else message.end - message.begin
                size += rows * math.prod(value.shape) * value.dtype.itemsize
                peers[peer] = None
        return size, tuple(peers) if receives else ()

    return of


def write(path, plan, recorder, of_lines, cluster, file):
    """Writes a trace on rank 0. All ranks call it. `cluster` is the plan's cluster file, for the planned step, or None."""
    first, steps = recorder.seconds(of_lines)
    steps = [_in_turn(step) for step in steps]
    if not steps:
        raise UsageError("the job has no step to trace by this plan\n  hint: job.step() before it")
    lengths = [max(e.end for e in step) - min(e.begin for e in step) for step in steps]
    typical = statistics.median(lengths)
    chosen = [min(range(len(steps)), key=lambda i: abs(lengths[i] - typical)), first, typical]  # rank 0's counts
    dist.broadcast_object_list(chosen, 0)
    # The plan expects nothing of them.
    shared = {f"{what}:{group.name}" for group in plan.groups if group.shared_with for what in _REDUCTIONS}
    medians = [statistics.median(sum(e.end - e.begin for e in step if e.word.partition(":")[0] in words and e.word not in shared)
                                 for step in steps) for words in _QUANTITIES]
    every = gathered((recorder.clock, medians, steps[chosen[0]]))

    def written():
        if dist.get_rank() == 0:
            text = _text(plan, every, chosen, len(steps), [] if cluster is None else _planned(plan, file, cluster))
            _new_file.write(path, text)

    together("write the trace", written)


def _in_turn(events):
    """The events of each stream one after the other, as the stream takes them."""
    found, free = [], [-math.inf] * len(_STREAMS)
    for event in sorted(events, key=lambda e: (e.end, e.begin)):
        stream = _STREAM_OF[event.word.partition(":")[0]]
        found.append(event._replace(begin=min(max(event.begin, free[stream]), event.end)))
        free[stream] = event.end
    return found


def _text(plan, every, chosen, steps, planned):
    devices = plan.devices
    stages = {rank: ",".join(stage.name for stage in plan.stages if rank in stage.all_ranks) for rank in range(plan.ranks)}
    width = 2 if planned else 1
    begins, known = {}, {}  # of the steps on each clock, from the end of its first rank's report
    for clock, _, events in every:
        known.setdefault(clock, next(e.end for e in events if e.word == "report"))
    for clock, _, events in every:
        begins[clock] = min([begins.get(clock, math.inf), *(e.begin - known[clock] for e in events)])
    zero = min(begins.values())

    def at(rank, seconds):
        return round((seconds - known[every[rank][0]] - zero) * 1e6, 3)

    lines, arrows = [], 0
    steps_of = [[e._replace(begin=at(rank, e.begin), end=at(rank, e.end)) for e in events]
                for rank, (_, _, events) in enumerate(every)]
    _send_in_time(steps_of)
    sent = {(rank, e.word): e for rank, events in enumerate(steps_of) for e in events}
    for rank, events in enumerate(steps_of):
        lines += _names(rank * width, f"rank {rank} {devices[rank]} measured")
        for e in events:
            what, *of = e.word.split(":")
            stream = _STREAM_OF[what]
            name = [what, *([stages[rank]] if stream == 0 and len(of) < 2 else of[:1]), *(["mb", of[-1]] if len(of) > 1 or of and what not in _REDUCTIONS else [])]
            lines.append({"ph": "X", "name": " ".join(name), "cat": what, "cname": _COLOURS.get(what, "rail_load"),
                          "pid": rank * width, "tid": stream, "ts": e.begin, "dur": round(e.end - e.begin, 3)})
            if stream != 0 and what not in ("norm", "report"):
                lines[-1]["args"] = {"bytes": e.size}
            for peer in e.peers:
                send = sent[peer, e.word.replace("recv", "send", 1)]
                about = {"name": "transfer", "cat": "transfer", "id": arrows * width, "bp": "e"}
                arrows += 1
                lines.append({"ph": "s", **about, "pid": peer * width, "tid": 1, "ts": send.begin})
                lines.append({"ph": "f", **about, "pid": rank * width, "tid": 2, "ts": e.end})
    other = {"format": "agpcs-trace 1", "plan": f"sha256:{hashlib.sha256(plan.text.encode()).hexdigest()}",
             "step": str(chosen[1] + chosen[0]), "steps": str(steps), "step seconds": f"{chosen[2]:.9f}"}
    for rank, (_, medians, _) in enumerate(every):
        other[f"rank {rank}: compute, all-reduce, send"] = " ".join(f"{seconds:.9f}" for seconds in medians)
    return ('{"displayTimeUnit": "ms",\n"otherData": ' + json.dumps(other) + ',\n"traceEvents": [\n'
            + ",\n".join(map(json.dumps, [*lines, *planned])) + "\n]}\n")


def _send_in_time(steps):
    """Lets no send begin after a receive of it ended: the end of the send before it may have been seen late."""
    for rank, events in enumerate(steps):
        for receive in events:
            for peer in receive.peers:
                word, latest = receive.word.replace("recv", "send", 1), receive.end
                of_peer = steps[peer]
                last = next(i for i, e in enumerate(of_peer) if e.word == word)
                for i in reversed(range(last + 1)):
                    e = of_peer[i]
                    if i == last:
                        of_peer[i] = e._replace(begin=min(e.begin, latest))
                    elif e.word.startswith("send"):
                        of_peer[i] = e._replace(begin=min(e.begin, latest), end=min(e.end, latest))
                    else:
                        continue
                    latest = of_peer[i].begin


def _names(pid, name):
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for stream, of_stream in enumerate(_STREAMS):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": stream, "args": {"name": of_stream}}


def _planned(plan, file, cluster):
    """The events of the simulated step, each below the measured step of its rank."""
    found = []
    for event in json.loads(plan._command("trace", [plan, file, cluster], "-o", "-"))["traceEvents"]:
        if event["ph"] == "C" or event["pid"] >= plan.ranks:
            continue  # counters, which a measured step has not
        event["pid"] = event["pid"] * 2 + 1
        if event["name"] == "process_name":
            event["args"]["name"] += " planned"
        elif event["name"] == "process_sort_index":
            event["args"]["sort_index"] = event["pid"]
        elif "id" in event:
            event["id"] = event["id"] * 2 + 1
        found.append(event)
    return found
