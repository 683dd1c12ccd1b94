# SPDX-License-Identifier: Apache-2.0
"""Hardware that changes while a job trains: how soon it is noticed, how soon a better plan runs, and what that is worth.

For each change (a rank's speed, a link's rate, both) a job trains by the plan for the machines as they are; then they
change, and when the job has moved to another plan they change back. In the same run plans are made offline for the
changed machines, from a profile of their own. Afterwards the plan that the job had, the one that it moved to and the offline
one are replayed in turns, on the machines as they were then; for the way back, the offline plan is the one that the job began
with. What happens, in steps and seconds, comes from the job's own events.
"""

import dataclasses
import statistics
import time

import cases
import clusters
import machines
from commands import Commands, Enough, step_count
from suite import PROFILE_LIMIT, REPLAY_LIMIT, memory_bytes, say

BASE = clusters.uneven("drift-3", a=(80, 200), b=(30, 200), c=(30, 200))
CHANGES = {  # of machine c or a: to 40% of its speed; of its link to a quarter
    "speed": clusters.uneven("drift-3-speed", a=(80, 200), b=(30, 200), c=(12, 200)),
    "link": clusters.uneven("drift-3-link", a=(80, 200), b=(30, 200), c=(30, 50)),
    "both": clusters.uneven("drift-3-both", a=(80, 200), b=(30, 200), c=(12, 50)),
    "speed-a": clusters.uneven("drift-3-speed-a", a=(32, 200), b=(30, 200), c=(30, 200)),
    "link-a": clusters.uneven("drift-3-link-a", a=(80, 50), b=(30, 200), c=(30, 200)),
    "both-a": clusters.uneven("drift-3-both-a", a=(32, 50), b=(30, 200), c=(30, 200)),
}
MODEL = "cnn"  # no batch normalization, no dropout: losses do not depend on shares
LEARNING_RATE = 0.0001  # training multiplies rounding, which depends on shares, from step to step: the less, the more exactly
QUIET_STEPS = 60  # before the change, and at least so many until it changes back: what is normal is learned in 45
SETTLED_STEPS = 170  # trained after a move: on a noisy machine, what is normal is learned in up to 165
ROUNDS = 3  # in which plans are replayed in turns: this machine's speed is another from minute to minute
SOON_STEPS, SOON_SECONDS = 20, 4.0  # whichever is longer: within which a change should be noticed
PATIENCE = 120.0  # seconds after a change within which a move must have come
MOST_STEPS = 100000
FLAP_SECONDS = 30.0


@dataclasses.dataclass
class Turn:
    """What followed a change of the machines: indices of steps, seconds since the change."""

    changed_at: int
    drift_after_steps: int | None = None
    drift_seconds: float | None = None
    switch_seconds: float | None = None
    switched_at: int | None = None
    why_kept: str | None = None


def proposal_before(plan, step):
    """The last plan that was proposed beside `plan` before a job switched at `step`: it may have waited."""
    steps = [int(path.stem.rpartition("-")[2]) for path in plan.parent.glob(f"{plan.stem}.replan-*.plan")]
    return plan.with_name(f"{plan.stem}.replan-{max(at for at in steps if at < step)}.plan")


class Watcher:
    """Follows a job's events: changes the machines after QUIET_STEPS, and back when the job has settled."""

    def __init__(self, change, clock=time.monotonic):
        """`change(number)` makes the number-th change: 0 away, 1 back."""
        self.change, self.clock = change, clock
        self.turns, self.losses, self.began = [], {}, None

    def __call__(self, event):
        getattr(self, f"_{event['event']}", lambda _: None)(event)

    def _step(self, event):
        index = event["step"]
        self.losses[index] = event["loss"]
        turn = self.turns[-1] if self.turns else None
        if turn is None:
            if index + 1 >= QUIET_STEPS:
                self._next(index + 1)
        elif turn.switched_at is not None:
            if index + 1 - turn.switched_at >= SETTLED_STEPS and index + 1 - turn.changed_at >= QUIET_STEPS:
                self._next(index + 1)
        elif self.clock() - self.began > PATIENCE:
            self._next(index + 1)

    def _next(self, index):
        if len(self.turns) == 2:
            raise Enough
        self.change(len(self.turns))
        self.turns.append(Turn(index))
        self.began = self.clock()

    def _drift(self, event):
        turn = self.turns[-1] if self.turns else None
        if turn and turn.drift_after_steps is None:
            turn.drift_after_steps, turn.drift_seconds = event["step"] - turn.changed_at, self.clock() - self.began

    def _kept(self, event):
        if self.turns:
            self.turns[-1].why_kept = event["why"]

    def _switched(self, event):
        turn = self.turns[-1] if self.turns else None
        if turn and turn.switched_at is None:
            turn.switched_at, turn.switch_seconds = event["step"], self.clock() - self.began


def medians(rounds):
    """Median seconds of a step by each plan, of rounds in which all were replayed."""
    return {name: statistics.median(seconds[name] for seconds in rounds) for name in (rounds[0] if rounds else ())}


def may_gain(offline):
    """Whether an offline plan whose step is this part of the old one's gains more than next to nothing."""
    return offline < 1 / 1.03


def gained(rounds):
    """Which part of what the offline plan gains over the old one the new one gains, by the medians of the rounds' ratios; None
    where there is next to nothing to gain, or no new plan."""
    if not rounds or "new" not in rounds[0]:
        return None
    new, offline = (statistics.median(seconds[name] / seconds["old"] for seconds in rounds) for name in ("new", "offline"))
    return (1 - new) / (1 - offline) if may_gain(offline) else None


def losses_differ(losses, undisturbed):
    """The largest relative difference, over the steps that both have."""
    common = losses.keys() & undisturbed.keys()
    return max((abs(losses[step] - undisturbed[step]) / max(abs(undisturbed[step]), 1e-12) for step in common), default=None)


def flips(seconds, began, now):
    """How often the machines should have changed by now: every FLAP_SECONDS, for so many seconds."""
    return int(min(now - began, seconds) // FLAP_SECONDS)


class Experiment:
    """Everything on one bed. `folder` keeps profiles, plans and logs; a profile that is there is used again."""

    def __init__(self, binaries, folder, profile_seconds, seconds):
        self.binaries, self.folder, self.profile_seconds, self.seconds = binaries, folder, profile_seconds, seconds
        self.model = cases.MODELS[MODEL]

    def prepare(self, bed, cluster):
        """(cluster file, plan file, its devices by rank, predicted seconds) for a cluster that the bed plays."""
        folder = self.folder / cluster.name
        folder.mkdir(parents=True, exist_ok=True)
        bed.become(cluster)
        commands = Commands(self.binaries, folder, cluster, bed)
        path, profile = folder / "cluster.yaml", folder / "profile.yaml"
        if not profile.exists():
            say(f"  profile of {cluster.name}")
            path.write_text(clusters.cluster_yaml(cluster, memory_bytes()))
            commands.profile([self.model], path, profile, self.profile_seconds, PROFILE_LIMIT)
        text = clusters.cluster_yaml(cluster, memory_bytes(), profile.name)
        path.write_text(text.replace("optimizer: sgd", f"optimizer: {{kind: sgd, learning_rate: {LEARNING_RATE}}}"))
        plan = folder / f"{MODEL}.plan"
        report = commands.compile(self.model, path, plan, ["--batch", str(cases.BATCH[MODEL]), "--idle-ranks"])
        return path, plan, [each["device"] for each in report["devices"]], report["step_seconds"]

    def in_turns(self, bed, cluster, plans):
        """Rounds of the median seconds of a step by each of the plans, (plan file, devices by rank, predicted seconds) by
        name, on a cluster."""
        bed.become(cluster)
        commands, rounds = Commands(self.binaries, self.folder, cluster, bed), []
        for _ in range(ROUNDS):
            rounds.append({name: statistics.median(commands.replay(plan, devices, self.model,
                                                                   step_count(predicted, self.seconds), REPLAY_LIMIT))
                           for name, (plan, devices, predicted) in plans.items()})
        return rounds

    def trained(self, bed, prepared, on_event, steps, options, limit):
        bed.become(BASE)
        _, plan, devices, _ = prepared
        return Commands(self.binaries, self.folder, BASE, bed).train(
            plan, devices, self.model, steps, limit, options, on_event)

    def undisturbed(self, bed, prepared, steps):
        """Losses by step of a job that nothing happens to; at full speed, which changes no loss."""
        losses = {}

        def on_event(event):
            if event["event"] == "start":
                bed.lift_speeds()
            if event["event"] == "step":
                losses[event["step"]] = event["loss"]

        self.trained(bed, prepared, on_event, steps, [], 3 * REPLAY_LIMIT)
        return losses

    def run(self, bed, name):
        """The figures of one change, and of the way back."""
        changed = CHANGES[name]
        base, offline = self.prepare(bed, BASE), self.prepare(bed, changed)
        for old in base[1].parent.glob(f"{MODEL}.replan-*"):  # of other changes: a job overwrites no file
            old.unlink()
        watcher = Watcher(lambda number: bed.become(BASE if number else changed))
        self.trained(bed, base, watcher, MOST_STEPS, ["--replan", base[0]], REPLAY_LIMIT + 4 * PATIENCE)
        steps = max(watcher.losses) + 1
        differ = losses_differ(watcher.losses, self.undisturbed(bed, base, steps))
        found, now = [], base[1:]
        for way, cluster, best, turn in zip(("there", "back"), (changed, BASE), (offline, base), watcher.turns):
            plans = {"old": now, "offline": best[1:]}
            if turn.switched_at is not None:  # the job wrote the plan, for the ranks that it has, beside its first one
                now = (proposal_before(base[1], turn.switched_at), base[2], best[3])
                plans["new"] = now
            rounds = self.in_turns(bed, cluster, plans)
            seconds = medians(rounds)
            found.append({"change": name, "way": way, **dataclasses.asdict(turn), "old_seconds": seconds["old"],
                          "new_seconds": seconds.get("new"), "offline_seconds": seconds["offline"], "gained": gained(rounds),
                          "losses_differ": differ, "steps_compared": steps})
        return found

    def flap(self, bed, seconds):
        """Events of a job whose machine c is slow and fast by turns for so many seconds."""
        base = self.prepare(bed, BASE)
        events, state = [], {"began": None, "flips": 0}

        def on_event(event):
            if event["event"] == "start":
                state["began"] = time.monotonic()
            if event["event"] in ("drift", "proposed", "kept", "switched"):
                events.append(event | {"seconds_into": time.monotonic() - state["began"]})
            now = time.monotonic()
            if state["began"] is None:
                return
            if now - state["began"] > seconds:
                raise Enough
            due = flips(seconds, state["began"], now)
            if due > state["flips"]:
                state["flips"] = due
                bed.become(CHANGES["speed"] if due % 2 else BASE)

        self.trained(bed, base, on_event, MOST_STEPS, ["--replan", base[0]], seconds + REPLAY_LIMIT)
        return {"seconds": seconds, "flips": state["flips"], "events": events,
                "switches": sum(event["event"] == "switched" for event in events)}


def _figure(value, text):
    return "-" if value is None else text.format(value)


def markdown(results, flapping):
    """Tables of the changes and of flapping."""
    head = ["change", "way", "noticed after steps", "noticed after s", "moved after s", "old plan ms", "new plan ms",
            "offline plan ms", "of the gain", "losses differ by"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for found in results:
        row = [found["change"], found["way"], _figure(found["drift_after_steps"], "{}"),
               _figure(found["drift_seconds"], "{:.1f}"), _figure(found["switch_seconds"], "{:.1f}"),
               *(_figure(found[key] and 1e3 * found[key], "{:.0f}") for key in ("old_seconds", "new_seconds", "offline_seconds")),
               _figure(found["gained"], "{:.0%}"), _figure(found["losses_differ"], "{:.1e}")]
        lines.append("| " + " | ".join(row) + " |")
    text = "\n".join(lines) + "\n" if results else ""
    for found in results:
        if found["why_kept"]:
            text += f"\n{found['change']}, {found['way']}: the plan stayed at first: {found['why_kept']}\n"
    if flapping:
        text += (f"\nFlapping: {flapping['flips']} changes of speed in {flapping['seconds']:.0f} s, "
                 f"{flapping['switches']} moves.\n")
    return text


def misses(results, flapping):
    """What is not as it should be: texts."""
    found = []
    for result in results:
        what = f"{result['change']}, {result['way']}"
        steps, seconds = result["drift_after_steps"], result["drift_seconds"]
        if steps is None or (steps > SOON_STEPS and seconds > SOON_SECONDS):
            found.append(f"{what}: noticed after {steps} steps, {_figure(seconds, '{:.1f}')} s, not within {SOON_STEPS} steps or "
                         f"{SOON_SECONDS:g} s")
        moves = may_gain(result["offline_seconds"] / result["old_seconds"])
        if (result["switch_seconds"] is None and moves) or (result["switch_seconds"] or 0) > 60:
            found.append(f"{what}: moved after {_figure(result['switch_seconds'], '{:.0f}')} s, not within 60")
        if result["gained"] is not None and result["gained"] < 0.8:
            found.append(f"{what}: {result['gained']:.0%} of the gain, not 80%")
        if result["losses_differ"] is None or result["losses_differ"] > 1e-5:
            found.append(f"{what}: losses differ by {result['losses_differ']}, more than 1e-5")
    if flapping and flapping["switches"] > 2:
        found.append(f"flapping: {flapping['switches']} moves, more than 2")
    return found


def run(binaries, folder, chosen, profile_seconds, seconds, flap_seconds):
    """(results, flapping, failures) of the chosen changes."""
    results, flapping, failures = [], None, []
    experiment = Experiment(binaries, folder, profile_seconds, seconds)
    with machines.Bed(BASE) as bed:
        for name in chosen:
            say(f"drift: {name}")
            try:
                found = experiment.run(bed, name)
                results.extend(found)
                say(markdown(found, None))  # now, for the next one takes minutes
            except machines.Failed as error:
                failures.append(f"{name}: {error}")
                say(f"  {failures[-1]}")
        if flap_seconds:
            say("drift: flapping")
            try:
                flapping = experiment.flap(bed, flap_seconds)
            except machines.Failed as error:
                failures.append(f"flapping: {error}")
    return results, flapping, failures
