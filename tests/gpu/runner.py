# SPDX-License-Identifier: Apache-2.0
"""Runs parts in their order within a budget, remembers what is done, and writes the report after each."""

import contextlib
import dataclasses
import json
import os
import time
import traceback
from typing import Callable

import mps
import report
from work import CannotRun, CutOff, Work

ENDED = ("done", "failed")  # not run again unless asked for


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    what: str                     # what it shows, as the report says it
    run: Callable[[Work], None]
    needs: tuple = ()             # names of Machine.obstacle
    limit: int = 540              # seconds; below ten minutes
    least: int = 5                # seconds below which it is not begun
    beside: bool = False          # its ranks run on one GPU at the same time, where they can


class Differs(Exception):
    """A report folder is of other sources or another machine."""


def load(folder, identity):
    """The outcomes that the folder has, by part."""
    file = folder / "gpu.json"
    if not file.exists():
        return {}
    known = json.loads(file.read_text())
    for name, value in identity.items():
        if known["identity"].get(name) != value:
            raise Differs(f"{file}: the report is of {name} '{known['identity'].get(name)}', this is '{value}'\n"
                          "  hint: give another folder by --report")
    return {outcome["part"]: outcome for outcome in known["parts"]}


def outcome_of(part, state, why="", work=None, seconds=0.0):
    return {"part": part.name, "what": part.what, "state": state, "why": why, "seconds": round(seconds, 1),
            "figures": work.figures if work else [], "tables": work.tables if work else {},
            "notes": work.notes if work else [], "faults": work.faults if work else []}


def run_part(part, machine, folder, seconds, clock):
    work, begin = Work(machine, folder / "parts" / part.name, seconds, clock), clock()
    try:
        with mps.of_ranks(work) if part.beside else contextlib.nullcontext({}) as work.environment:
            part.run(work)
        state, why = ("failed", work.faults[0]) if work.faults else ("done", "")
    except CannotRun as reason:
        state, why = "skipped", str(reason)
    except CutOff:
        state, why = "cut off", f"its {seconds:.0f} s were over; it goes on in the next run"
    except Exception as error:  # a part that breaks must not keep the others from running
        (work.folder / "error.txt").write_text(traceback.format_exc())
        state, why = "failed", f"{type(error).__name__}: {error}"
    return outcome_of(part, state, why, work, clock() - begin)


def write(folder, identity, machine, outcomes, parts, rehearsal):
    folder.mkdir(parents=True, exist_ok=True)
    value = {"format": "agpcs-gpu 1", "identity": identity, "rehearsal": rehearsal, "machine": machine.facts(),
             "parts": [outcomes[part.name] for part in parts if part.name in outcomes]}
    for name, text in (("gpu.json", json.dumps(value, indent=1) + "\n"), ("gpu.md", report.text(value))):
        new = folder / (name + ".new")
        new.write_text(text)
        os.replace(new, folder / name)  # whole or not at all


def run(parts, machine, folder, identity, budget=None, only=(), again=(), rehearsal=False, clock=time.monotonic, say=print):
    """Runs what is not done yet; returns the outcomes by part. `budget` is in seconds."""
    outcomes, end = load(folder, identity), None if budget is None else clock() + budget
    for part in parts:
        if only and part.name not in only:
            continue
        known = outcomes.get(part.name)
        if known and known["state"] in ENDED and part.name not in again:
            say(f"{part.name}: {known['state']} before")
            continue
        left = part.limit if end is None else min(part.limit, end - clock())
        why = next((why for why in map(machine.obstacle, part.needs) if why), "")
        if not why and left < part.least:
            why = "the budget is spent"
        if why:
            outcome = outcome_of(part, "skipped", why)
        else:
            say(f"{part.name}: {part.what}")
            outcome = run_part(part, machine, folder, left, clock)
        outcomes[part.name] = outcome
        write(folder, identity, machine, outcomes, parts, rehearsal)
        why = f": {outcome['why']}" if outcome["why"] else ""
        say(f"{part.name}: {outcome['state']} after {outcome['seconds']:.0f} s{why}")
    return outcomes
