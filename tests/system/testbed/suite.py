# SPDX-License-Identifier: Apache-2.0
"""Runs cases: sets a cluster up, profiles it, makes the plans, replays each of them in turns with the others."""

import contextlib
import pathlib
import re
import sys

import cases
import clusters
import compare
import machines
from commands import Commands, step_count

TINY = cases.ROOT / "samples/models/small_cnn.onnxtxt"
ROUNDS = 2  # every plan is replayed at least that often, in turns with the others, for a noise floor
# What a control group should have that kills, beside what a device has: a tenth of it (docs/results/jobs.md), or what a process varies by.
MARGIN, LEAST_MARGIN = 0.1, 25_000_000
QUICK_SECONDS = 60.0  # of operators, by default; messages take half of it
PROFILE_LIMIT, REPLAY_LIMIT = 900, 300  # seconds after which a command is ended


def say(text):
    print(text, file=sys.stderr, flush=True)


def memory_bytes():
    """What the ranks may use together: three quarters of this machine's."""
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024 * 3 // 4
    raise machines.Failed("/proc/meminfo has no MemTotal")


@contextlib.contextmanager
def limited(bed, count):
    """Lets each of the bed's ranks have `count` bytes of memory; None: any. The memory cgroups of the ranks."""
    with contextlib.ExitStack() as cleanup:
        bed.memory = [cleanup.enter_context(machines.MemoryCgroup(rank, count)) for rank in range(len(bed.ranks))]
        try:
            yield bed.memory
        finally:
            bed.memory = None


def with_margin(count):
    """The bytes that a process may have so that a plan of `count` bytes fits."""
    return count + max(int(MARGIN * count), LEAST_MARGIN)


def form_of(plan):
    """What the ranks of a plan divide, and what its stages recompute: (text, text)."""
    text = plan.read_text()
    divided = sorted(set(re.findall(r" state=([a-z]+) ", text)))
    forms = [found[2] or ("all" if found[1] == "yes" else "nothing")
             for found in re.finditer(r"(?m)^stage .* recompute=(yes|no)(?: segments=([0-9x,]+))?", text)]
    return ", ".join(divided) or "nothing", " / ".join(forms)


class Suite:
    """`work`: folder for plans, profiles and logs; a profile that is there is used again. `datasheet`: no profiles."""

    def __init__(self, binaries, work, seconds, datasheet, profile_seconds, rounds=ROUNDS, whole=False):
        """`whole`: profiles have whole operators alone, and not what members of teams have of them."""
        self.binaries, self.work, self.seconds = binaries, work, seconds
        self.datasheet, self.profile_seconds, self.rounds, self.whole = datasheet, profile_seconds, rounds, whole
        self.results, self.failures = [], []

    def run(self, chosen):
        """Fills `results` and `failures` (texts), a cluster after the other."""
        for cluster in dict.fromkeys(case.cluster for case in chosen):
            here = [case for case in chosen if case.cluster == cluster]
            say(f"{cluster.name}: {len(here)} cases")
            with contextlib.nullcontext() if cluster.local else machines.Bed(cluster) as bed:
                self._run_cluster(cluster, bed, here)

    def _run_cluster(self, cluster, bed, here):
        folder = self.work / cluster.name
        folder.mkdir(parents=True, exist_ok=True)
        commands = Commands(self.binaries, folder, cluster, bed)
        try:
            files = {quick: self._cluster_file(commands, cluster, folder, [case for case in here if case.quick == quick], quick)
                     for quick in sorted({case.quick for case in here})}
            process = self._process_bytes(commands) if any(case.of_peak for case in here) else 0
        except machines.Failed as error:
            self._failed(cluster.name, error)
            return
        plans = [(case, *made) for case in here if (made := self._plan(commands, case, files[case.quick]))]
        runs = {case: [] for case, *_ in plans}
        for _ in range(self.rounds):
            for case, plan, made in plans:
                limits = limited(bed, process + with_margin(made["memory"])) if case.of_peak else contextlib.nullcontext([])
                with limits as groups:
                    self._replay(commands, case, plan, made, runs[case])
                    made["peak"] = max([made["peak"], *(group.peak() - process for group in groups)])
        for case, plan, made in plans:
            if len(runs[case]) == self.rounds:
                self.results.append(compare.compared(case, made["step_seconds"], runs[case]) |
                                    {"memory": made["memory"], "peak": made["peak"], "form": form_of(plan)})

    def _cluster_file(self, commands, cluster, folder, here, quick):
        path, profile = folder / "cluster.yaml", folder / "profile.yaml"
        if quick:
            return self._discovered_file(commands, folder)
        (optimizer,) = {case.optimizer for case in here}
        path.write_text(clusters.cluster_yaml(cluster, memory_bytes(), optimizer=optimizer))
        if self.datasheet:
            return path
        if not profile.exists():
            models = sorted({case.model for case in here})
            say(f"  profile of {', '.join(models)}")
            teams = set() if self.whole else set().union(*(case.members for case in here))
            commands.profile([cases.MODELS[model] for model in models], path, profile, self.profile_seconds, PROFILE_LIMIT, teams)
        path.write_text(clusters.cluster_yaml(cluster, memory_bytes(), profile.name, optimizer))
        return path

    def _discovered_file(self, commands, folder):
        path, profile = folder / "discovered.yaml", folder / "quick.yaml"
        if not profile.exists():
            say("  discover, and a quick profile")
            commands.discover(path, REPLAY_LIMIT)
            commands.profile([], path, profile, QUICK_SECONDS, PROFILE_LIMIT)
            path.write_text(f"profile: {profile.name}\n{path.read_text()}")
        return path

    def _plan(self, commands, case, cluster_file):
        """(plan file, agpcs-compile's report with the `memory` of a device where it is short); None, and a failure, where there is
        no plan."""
        plan = commands.folder / f"{case.model}-{case.plan.replace(' ', '-')}.plan"
        model, memory = cases.MODELS[case.model], None
        try:
            if case.of_peak:
                memory = int(case.of_peak * commands.compile(model, cluster_file, plan, case.options())["peak_memory_bytes"])
                cluster_file = self._short_file(case, plan, memory)
            report = commands.compile(model, cluster_file, plan, case.options())
        except machines.Failed as error:
            self._failed(case.name, error)
            return None
        return plan, report | {"memory": memory, "peak": 0}

    def _short_file(self, case, plan, memory):
        """The cluster file beside that plan, in which each device has so many bytes."""
        path, count = plan.with_suffix(".yaml"), len(clusters.devices(case.cluster))
        profile = None if self.datasheet else "profile.yaml"
        path.write_text(clusters.cluster_yaml(case.cluster, memory * count, profile, case.optimizer))
        return path

    def _process_bytes(self, commands):
        """What a rank takes that trains next to nothing, but for what its plan says."""
        plan, path = commands.folder / "tiny.plan", commands.folder / "tiny.yaml"
        path.write_text(clusters.cluster_yaml(commands.cluster, memory_bytes()))
        report = commands.compile(TINY, path, plan, ["--batch", "8", "--micro-batches", "1"])
        devices = [each["device"] for each in report["devices"]]
        with limited(commands.bed, None) as groups:
            commands.replay(plan, devices, TINY, 1, REPLAY_LIMIT)
            return max(group.peak() for group in groups) - report["peak_memory_bytes"]

    def _replay(self, commands, case, plan, made, runs):
        predicted, devices = made["step_seconds"], [each["device"] for each in made["devices"]]
        steps = step_count(predicted, self.seconds)
        try:
            runs.append(commands.replay(plan, devices, cases.MODELS[case.model], steps, REPLAY_LIMIT))
        except machines.Failed as error:
            self._failed(case.name, error)
            return
        median = compare.quantile(runs[-1], 0.5)
        say(f"  {case.name}: {1e3 * median:.1f} ms, predicted {1e3 * predicted:.1f} ms ({predicted / median - 1:+.1%})")

    def _failed(self, what, error):
        self.failures.append(f"{what}: {error}")
        say(f"  {what} failed: {error}")
