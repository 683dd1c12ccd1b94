# SPDX-License-Identifier: Apache-2.0
"""What a part of the proof works with: its time, its commands, and the figures that it leaves."""

import json
import os
import signal
import subprocess
import time


class CutOff(Exception):
    """The part's time is over. What it has found so far stays."""


class CannotRun(Exception):
    """What a part finds out only while it runs: why this machine cannot run it."""


class Done:
    """A command that has ended."""

    def __init__(self, command, code, output):
        self.command, self.code, self.output = command, code, output

    def last_lines(self, count=5):
        return "\n".join(self.output.strip().splitlines()[-count:])


def end_group(process):
    """Ends a process with all that it started, and waits for it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def is_met(value, target):
    """Whether a figure meets a target such as '<= 0.05'."""
    sign, limit = target.split()
    return value <= float(limit) if sign == "<=" else value >= float(limit)


class Work:
    """One part's. `machine` says what there is; `folder` is the part's own, and stays when the part is cut off."""

    def __init__(self, machine, folder, seconds, clock=time.monotonic):
        self.machine, self.folder = machine, folder
        self.figures, self.tables, self.notes, self.faults = [], {}, [], []
        self.environment = {}  # of all commands, beside that of the machine's programs
        self._clock, self._end = clock, clock() + seconds
        folder.mkdir(parents=True, exist_ok=True)
        self._remembered = folder / "once.json"

    # --- what it leaves

    def figure(self, name, value, unit="", target=None):
        """Keeps a figure; one that misses its target is reported as such, and is no fault."""
        self.figures.append({"name": name, "value": value, "unit": unit, "target": target,
                             "met": None if target is None else is_met(value, target)})

    def row(self, table, **cells):
        """Adds a row to a table, whose columns are those of its first row."""
        self.tables.setdefault(table, []).append(cells)

    def note(self, text):
        self.notes.append(text)

    def fault(self, text):
        """Something is wrong: the part goes on, and counts as failed."""
        self.faults.append(text)

    # --- time

    def seconds_left(self):
        return self._end - self._clock()

    def once(self, key, make):
        """What `make()` returned when this part first came here, now or before it was cut off; `make` may return whatever
        JSON has."""
        known = json.loads(self._remembered.read_text()) if self._remembered.exists() else {}
        if key not in known:
            known[key] = make()
            self._remembered.write_text(json.dumps(known, indent=1))
        return known[key]

    # --- commands

    def start(self, command, environment=None, **options):
        """Starts a command in a process group of its own, in the environment of the machine's programs."""
        return subprocess.Popen([str(word) for word in command], cwd=self.machine.root, start_new_session=True,
                                env={**self.machine.environment(), **self.environment, **(environment or {})}, **options)

    def call(self, command, environment=None, limit=None, output=subprocess.PIPE):
        """Runs a command to its end. CutOff if the part's time ends before; a command that takes longer than `limit` seconds
        is ended, and its code is None."""
        left = self.seconds_left()
        if left <= 0:
            raise CutOff
        process = self.start(command, environment, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                             text=True, errors="replace")
        in_time = True
        try:
            said = process.communicate(timeout=left if limit is None else min(left, limit))[0]
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            if process.poll() is None:
                end_group(process)
        if not in_time:
            said = process.communicate()[0]
        code = process.returncode if in_time else None
        done = Done(command, code, said or "")
        with (self.folder / "log.txt").open("a") as log:
            log.write(f"$ {' '.join(map(str, command))}\n{done.output}\n[{code}]\n")
        if not in_time and (limit is None or left <= limit):
            raise CutOff
        return done

    def need(self, command, environment=None):
        """Runs a command that has to succeed; returns what it said."""
        done = self.call(command, environment)
        if done.code != 0:
            raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.code}:\n{done.last_lines()}")
        return done.output
