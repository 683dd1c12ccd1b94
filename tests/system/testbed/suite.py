# SPDX-License-Identifier: Apache-2.0
"""Runs cases: sets a cluster up, profiles it, makes the plans, replays each of them in turns with the others."""

import contextlib
import pathlib
import sys

import cases
import clusters
import compare
import machines
from commands import Commands, step_count

ROUNDS = 2  # every plan is replayed at least that often, in turns with the others, for a noise floor
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
        except machines.Failed as error:
            self._failed(cluster.name, error)
            return
        plans = [(case, *made) for case in here if (made := self._plan(commands, case, files[case.quick]))]
        runs = {case: [] for case, *_ in plans}
        for _ in range(self.rounds):
            for case, plan, devices, predicted in plans:
                self._replay(commands, case, plan, devices, predicted, runs[case])
        for case, _, _, predicted in plans:
            if len(runs[case]) == self.rounds:
                self.results.append(compare.compared(case, predicted, runs[case]))

    def _cluster_file(self, commands, cluster, folder, here, quick):
        path, profile = folder / "cluster.yaml", folder / "profile.yaml"
        if quick:
            return self._discovered_file(commands, folder)
        path.write_text(clusters.cluster_yaml(cluster, memory_bytes()))
        if self.datasheet:
            return path
        if not profile.exists():
            models = sorted({case.model for case in here})
            say(f"  profile of {', '.join(models)}")
            teams = set() if self.whole else set().union(*(case.members for case in here))
            commands.profile([cases.MODELS[model] for model in models], path, profile, self.profile_seconds, PROFILE_LIMIT, teams)
        path.write_text(clusters.cluster_yaml(cluster, memory_bytes(), profile.name))
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
        """(plan file, its devices by rank, predicted seconds of a step); None, and a failure, where there is no plan."""
        plan = commands.folder / f"{case.model}-{case.plan.replace(' ', '-')}.plan"
        try:
            report = commands.compile(cases.MODELS[case.model], cluster_file, plan, case.options())
        except machines.Failed as error:
            self._failed(case.name, error)
            return None
        return plan, [each["device"] for each in report["devices"]], report["step_seconds"]

    def _replay(self, commands, case, plan, devices, predicted, runs):
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
