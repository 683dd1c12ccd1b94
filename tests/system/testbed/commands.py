# SPDX-License-Identifier: Apache-2.0
"""Runs agpcs-profile, agpcs-compile and agpcs-run on a cluster's machines, or as plain processes."""

import contextlib
import json
import math
import os
import re
import secrets
import signal
import subprocess
import threading

import clusters
from machines import Failed

PORT = 29500
WARM_UP = 2  # steps at the start that are not counted
LEAST_STEPS, MOST_STEPS = 8, 60


def step_count(predicted_seconds, seconds):
    """Steps to measure for about so many seconds, after the warm-up."""
    return min(MOST_STEPS, max(LEAST_STEPS, math.ceil(seconds / predicted_seconds)))


def rank_environment(bed, seats, rank, token):
    """The variables by which a rank knows its place (docs/reference/agpcs_run.md), as torchrun sets them. `seats`: the bed's rank
    that each rank of the plan is, for a plan may leave devices out."""
    machines = [bed.ranks[seat][0] for seat in seats]
    return place_environment(machines, rank, bed.address(machines[0]), PORT, token)


def place_environment(machines, rank, address, port, token):
    """The same for a rank of which `machines` says, as for the others, where it is; `address` is that of rank 0."""
    here = machines[rank]
    return {"RANK": str(rank), "WORLD_SIZE": str(len(machines)), "LOCAL_RANK": str(machines[:rank].count(here)),
            "LOCAL_WORLD_SIZE": str(machines.count(here)), "MASTER_ADDR": address, "MASTER_PORT": str(port),
            "AGPCS_PORT": str(port), "AGPCS_JOB_TOKEN": token}


def steps_of(events):
    """Seconds of the steps that count, from agpcs-run's JSON objects."""
    return [event["seconds"] for event in events if event["event"] == "step"][WARM_UP:]


class Enough(Exception):
    """Raised by who listens to a training: it need not go on."""


class Commands:
    """The commands in `binaries`; files and logs go to `folder`. `bed`: None for plain processes."""

    def __init__(self, binaries, folder, cluster, bed):
        self.binaries, self.folder, self.cluster, self.bed = binaries, folder, cluster, bed

    def has(self, name):
        return (self.binaries / name).exists()

    def compile(self, model, cluster_file, plan, options):
        """Makes a plan; agpcs-compile's report. It needs no machine: it runs here."""
        command = [self.binaries / "agpcs-compile", model, cluster_file, "-o", plan, "--json", *options]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
        return json.loads(done.stdout)

    def discover(self, output, limit):
        """Writes the cluster file that agpcs-cluster makes of the machines, with the names that they have here."""
        command = [self.binaries / "agpcs-cluster", "discover", "--measure", "-o", output, "--force", "--name", self.cluster.name]
        self.bed.set_speeds()
        self._run(command, clusters.devices(self.cluster), "discover", limit, lambda line: None)
        names = iter(machine.name for machine in self.cluster.machines)
        text = re.sub(r"(?m)^  - name: .*$", lambda found: f"  - name: {next(names)}", output.read_text())
        output.write_text(text + clusters.training_yaml())

    def profile(self, models, cluster_file, output, seconds, limit, teams=()):
        """Measures every device for about so many seconds, and the network between them for half of them; without models
        by --quick. `teams`: what members of so many have of operators is measured, too."""
        command = [self.binaries / "agpcs-profile", *(models or ["--quick"]), "--cluster", cluster_file, "-o", output,
                   "--threads", "1", "--seconds", seconds, "--network-seconds", seconds / 2]
        if teams:
            command += ["--teams", ",".join(map(str, sorted(teams)))]
        if self.bed is None:
            command.append("--local")
        else:
            self.bed.set_speeds()
        self._run(command, clusters.devices(self.cluster), "profile", limit, lambda line: None)

    def train(self, plan, devices, model, steps, limit, options=(), on_event=lambda event: None):
        """The events of a training, each of them also told as it comes; `devices`: the plan's, by rank. The machines
        start up at full speed; training is at their own. Ends early where `on_event` raises Enough."""
        command = [self.binaries / "agpcs-run", plan, model, "--json", "--threads", "1", "--seed", "1",
                   "--steps", str(steps), *options]
        events = []
        if self.bed is None:
            command.append("--local")
        else:
            self.bed.lift_speeds()

        def on_line(line):
            events.append(json.loads(line))
            if events[-1]["event"] == "start" and self.bed is not None:
                self.bed.set_speeds()
            on_event(events[-1])

        with contextlib.suppress(Enough):
            self._run(command, devices, plan.stem, limit, on_line)
        return events

    def replay(self, plan, devices, model, steps, limit):
        """Seconds of each step after the warm-up (`train`)."""
        seconds = steps_of(self.train(plan, devices, model, steps + WARM_UP, limit))
        if len(seconds) != steps:
            raise Failed(f"{plan.stem}: {len(seconds)} of {steps} steps were reported")
        return seconds

    def _start(self, command, devices, name, logs):
        """Starts all ranks; the first process is rank 0 (or the one that starts the others), its output a pipe."""
        if self.bed is None:
            log = logs.enter_context((self.folder / f"{name}.log").open("w"))
            return [subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=log, text=True,
                                     start_new_session=True)]
        token = secrets.token_hex(16)
        started = []
        seats = [clusters.devices(self.cluster).index(device) for device in devices]
        for rank, seat in enumerate(seats):
            log = logs.enter_context((self.folder / f"{name}.{rank}.log").open("w"))
            environment = os.environ | rank_environment(self.bed, seats, rank, token)
            started.append(self.bed.start(seat, command, stdout=log if rank else subprocess.PIPE, stderr=log,
                                          text=True, env=environment))
        return started

    def _run(self, command, devices, name, limit, on_line):
        """Runs a command as the ranks on those devices, tells `on_line` of what rank 0 prints; all have ended when it
        returns."""
        processes = []
        with contextlib.ExitStack() as cleanup:
            expired = threading.Event()

            def expire():
                expired.set()
                for process in processes:
                    _end(process)

            late = threading.Timer(limit, expire)
            cleanup.callback(late.cancel)
            cleanup.callback(lambda: [_end(process) for process in processes])
            if self.bed is not None:
                cleanup.callback(self.bed.lift_speeds)
            processes.extend(self._start(command, devices, name, cleanup))
            late.start()
            for line in processes[0].stdout:
                on_line(line)
            codes = [process.wait() for process in processes]
        if any(codes):
            why = f"not done after {limit} s" if expired.is_set() else f"exit codes {codes}"
            raise Failed(f"{' '.join(map(str, command))}: {why}\n{self._last_words(name)}")

    def _last_words(self, name):
        return "".join(f"{path.name}: {path.read_text()[-800:]}\n" for path in sorted(self.folder.glob(f"{name}.*log")))


def _end(process):
    """Kills a process and its group, and waits for it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
