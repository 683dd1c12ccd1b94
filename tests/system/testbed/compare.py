# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured: what the numbers of a run say. Values in, values and Markdown out."""

import itertools
import statistics

NEAR = 5  # points between a predicted and a measured gain
DIFFERENT = 0.10  # plans whose measured steps differ by less are not ordered


def quantile(values, fraction):
    """Linear between the values around it."""
    values = sorted(values)
    at = fraction * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def spread(values):
    """Interquartile range / median."""
    return (quantile(values, 0.75) - quantile(values, 0.25)) / statistics.median(values)


def compared(case, predicted, runs):
    """The figures of a case that was run several times; `runs`: seconds of steps by run."""
    measured = statistics.median(itertools.chain(*runs))
    medians = [statistics.median(run) for run in runs]
    return {"cluster": case.cluster.name, "model": case.model, "plan": case.plan, "judges": case.judges,
            "batch": case.batch, "options": case.options(), "steps": sum(map(len, runs)),
            "predicted_seconds": predicted, "measured_seconds": measured, "error": predicted / measured - 1,
            "repeat_seconds": medians, "repeat_difference": (max(medians) - min(medians)) / measured,
            "spread": max(map(spread, runs)), "step_seconds": runs}


def errors(results):
    """Of |error| over results: how many, median, 90th percentile, worst and which."""
    if not results:
        return None
    worst = max(results, key=lambda result: abs(result["error"]))
    absolute = [abs(result["error"]) for result in results]
    return {"cases": len(results), "median": quantile(absolute, 0.5), "p90": quantile(absolute, 0.9),
            "worst": abs(worst["error"]), "worst_case": name(worst)}


def name(result):
    return f"{result['cluster']}/{result['model']}/{result['plan']}"


def orders(results):
    """Pairs of plans for one model on one cluster that measurably differ: (how many, those predicted the other way)."""
    pairs, wrong = 0, []
    for a, b in itertools.combinations(results, 2):
        if (a["cluster"], a["model"], a["batch"]) != (b["cluster"], b["model"], b["batch"]):
            continue
        faster, slower = sorted((a, b), key=lambda result: result["measured_seconds"])
        if slower["measured_seconds"] <= (1 + DIFFERENT) * faster["measured_seconds"]:
            continue
        pairs += 1
        if slower["predicted_seconds"] <= faster["predicted_seconds"]:
            wrong.append(f"{name(faster)} measured faster than {slower['plan']}, predicted slower")
    return pairs, wrong


# What a plan is better than: equal shares; for all-reduces along a flow the ring; gradients that travel in fp32.
BASELINES = {"by speed": "equal", "planned": "equal", "discovered": "planned", "flow": "ring", "fp16": "fp32", "bf16": "fp32"}


def gains(results):
    """Of plans over their baselines, where both were run: what the plans gain as predicted and as measured."""
    found = []
    for base, other in itertools.permutations(results, 2):
        same = all(base[key] == other[key] for key in ("cluster", "model", "batch"))
        if same and base["plan"] == BASELINES.get(other["plan"]):
            found.append({"case": name(other), "base": name(base),
                          "predicted": base["predicted_seconds"] / other["predicted_seconds"],
                          "measured": base["measured_seconds"] / other["measured_seconds"]})
    return found


def summary(results):
    judging = [result for result in results if result["judges"]]
    pairs, wrong = orders(judging)
    return {"judging": errors([result for result in results if result["judges"]]),
            "tuning": errors([result for result in results if not result["judges"]]),
            "ordered_pairs": pairs, "wrong_pairs": wrong, "gains": gains(judging)}


def _table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def _case_row(result):
    repeats = " / ".join(f"{1e3 * seconds:.1f}" for seconds in result["repeat_seconds"])
    return [result["cluster"], result["model"], result["plan"], f"{1e3 * result['predicted_seconds']:.1f}",
            f"{1e3 * result['measured_seconds']:.1f}", f"{result['error']:+.1%}", repeats,
            f"{result['repeat_difference']:.1%}", f"{result['spread']:.1%}"]


def points(gain):
    """(predicted, measured) gain in percent: by how much steps are shorter than the baseline's."""
    return tuple(100 * (1 - 1 / gain[key]) for key in ("predicted", "measured"))


def gains_markdown(results):
    """The report of what planning gains: a line a pair of plans, then how far predicted gains are from measured ones."""
    by_name, rows, off, found = {name(result): result for result in results}, [], [], gains(results)
    for gain in found:
        planned = by_name[gain["case"]]
        equal = by_name[gain["base"]]
        predicted, measured = points(gain)
        off.append((abs(predicted - measured), gain["case"]))
        noise = max(planned["repeat_difference"], equal["repeat_difference"])
        rows.append([planned["cluster"], planned["model"], planned["plan"],
                     *(f"{1e3 * result[key]:.1f}" for key in ("predicted_seconds", "measured_seconds") for result in (equal, planned)),
                     f"{predicted:.1f}%", f"{measured:.1f}%", f"{predicted - measured:+.1f}", f"{noise:.1%}"])
    if not rows:
        return "No pair of plans was measured.\n"
    plans = list(dict.fromkeys(by_name[gain["case"]]["plan"] for gain in found))
    base, plan = by_name[found[0]["base"]]["plan"], " or ".join(plans)
    if len(plans) == 1:
        rows = [row[:2] + row[3:] for row in rows]
    head = ["cluster", "model", *(["plan"] if len(plans) > 1 else []), f"{base}, predicted ms", f"{plan}, predicted ms", f"{base}, measured ms", f"{plan}, measured ms",
            "predicted gain", "measured gain", "difference, points", "repeats differ"]
    near = sum(difference <= NEAR for difference, _ in off)
    return (_table(head, rows) + f"\nPredicted gains within {NEAR} points of measured ones: {near} of {len(off)}; "
            f"the farthest is {max(off)[0]:.1f} points off ({max(off)[1]}).\n")


def discovered_markdown(results):
    """The report of plans by `discover` and a quick profile: how much longer their steps are than those of plans by profiles of
    the models, and how far off predictions are."""
    by_name, rows, longer = {name(result): result for result in results}, [], []
    for gain in gains(results):
        quick, full = by_name[gain["case"]], by_name[gain["base"]]
        longer.append(1 / gain["measured"] - 1)
        noise = max(quick["repeat_difference"], full["repeat_difference"])
        rows.append([quick["cluster"], quick["model"], *(f"{1e3 * result['measured_seconds']:.1f}" for result in (full, quick)),
                     f"{longer[-1]:+.1%}", f"{full['error']:+.1%}", f"{quick['error']:+.1%}", f"{noise:.1%}"])
    if not rows:
        return "No pair of plans was measured.\n"
    head = ["cluster", "model", "by profile, ms", "discovered, ms", "step longer by", "error by profile", "error discovered",
            "repeats differ"]
    return (_table(head, rows) + f"\nSteps of discovered plans are longer by {quantile(longer, 0.5):+.1%} in the median, "
            f"{max(longer):+.1%} at most.\n\n" +
            "".join(_errors_line(what, errors([result for result in results if result["plan"] == plan]))
                    for what, plan in (("By profile", "planned"), ("Discovered", "discovered"))))


def _errors_line(what, found):
    if found is None:
        return f"{what}: no cases.\n"
    count = f"{found['cases']} case{'s' if found['cases'] != 1 else ''}"
    return (f"{what}, {count}: median error {found['median']:.1%}, 90th percentile {found['p90']:.1%}, "
            f"worst {found['worst']:.1%} ({found['worst_case']}).\n")


def memory_markdown(results):
    """The report of plans for short memory: a line a plan, with what it divides and recomputes."""
    head = ["cluster", "model", "plan", "a device has MB", "a rank takes MB", "ranks divide", "stages recompute", "predicted ms", "measured ms", "error",
            "repeats differ"]
    rows = []
    for result in results:
        divided, recomputed = result["form"]
        rows.append([*(result[key] for key in ("cluster", "model", "plan")), f"{result['memory'] / 1e6:.0f}", f"{result['peak'] / 1e6:.0f}", divided, recomputed,
                     *(f"{1e3 * result[key]:.1f}" for key in ("predicted_seconds", "measured_seconds")), f"{result['error']:+.1%}",
                     f"{result['repeat_difference']:.1%}"])
    return _errors_line("Plans for short memory", errors(results)) + ("\n" + _table(head, rows) if rows else "")


def markdown(results):
    """The report: judging cases, tuning cases, order of plans, gains."""
    head = ["cluster", "model", "plan", "predicted ms", "measured ms", "error", "repeats ms", "repeats differ", "spread"]
    found = summary(results)
    parts = []
    for what, key, judges in (("Judging", "judging", True), ("Tuning", "tuning", False)):
        rows = [_case_row(result) for result in results if result["judges"] == judges]
        parts.append(_errors_line(what, found[key]) + ("\n" + _table(head, rows) if rows else ""))
    right = found["ordered_pairs"] - len(found["wrong_pairs"])
    parts.append(f"Order of plans, judging cases: {right} of {found['ordered_pairs']} pairs that differ by more than {DIFFERENT:.0%} "
                 "are predicted in the measured order.\n" + "".join(f"- {text}\n" for text in found["wrong_pairs"]))
    if found["gains"]:
        rows = [[gain["case"], f"{gain['predicted']:.2f}", f"{gain['measured']:.2f}"] for gain in found["gains"]]
        parts.append("Steps with equal shares / steps as planned, judging cases:\n\n" + _table(["case", "predicted", "measured"], rows))
    return "\n".join(parts)
