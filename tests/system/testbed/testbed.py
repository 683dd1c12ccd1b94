#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A test bed of unequal machines on this one: how far predicted steps are from measured ones (docs/design/testbed.md).

    testbed.py run [CASE...]      sets up, profiles, compiles, replays, compares, tears down
    testbed.py gains [CASE...]    what planned strategies gain over equal shares, as predicted and as measured
    testbed.py flows [CASE...]    all-reduces by flow schedule against the ring, where links differ: the same
    testbed.py wires [CASE...]    gradients that travel in fp16 and bf16 against fp32, on slow links: the same
    testbed.py teams [CASE...]    plans whose devices divide operators in teams, as predicted and as measured
    testbed.py memory [CASE...]   plans for devices whose memory is short, under memory limits: predicted and measured steps
    testbed.py discover [CASE...] plans by agpcs-cluster discover and a quick profile against plans by profiles: the same
    testbed.py drift [CHANGE...]  machines that change in mid-training: noticed, planned anew, and what that gains
    testbed.py verify [CLUSTER]   are the machines as fast as they should be?
    testbed.py up [CLUSTER]       sets machines up and keeps them until it is stopped
    testbed.py list               the cases
    testbed.py down               removes what a killed run left

Exit codes: 0 done, 1 something failed, 77 this machine cannot play such machines (it says why), 130 stopped.
"""

import argparse
import json
import os
import pathlib
import platform
import signal
import sys
import tempfile

import cases
import clusters
import compare
import drift
import machines
import suite
import verify

SKIPPED = 77
CANNOT_BE_NOISE = 2.0  # by what factor a prediction may be off before --quick fails


def results_file(text):
    """The path of a file that can be written when all is measured, an hour from now."""
    path = pathlib.Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"'{path}' is a folder, not a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"'{path}' cannot be written: there is no folder '{path.parent}'")
    return path


def add_measuring(parser, seconds, rounds):
    """Options of the commands that measure, with their defaults."""
    parser.add_argument("cases", nargs="*", help="names or patterns: 'uneven-4/*'; all without")
    parser.add_argument("--bin", type=pathlib.Path, default=cases.ROOT / "build/release/bin", help="the commands' folder")
    parser.add_argument("--work", type=pathlib.Path, help="keep plans, logs and profiles here, and use its profiles again")
    parser.add_argument("--seconds", type=float, default=seconds,
                        help="of steps in each replay, about (default: %(default)g)")
    parser.add_argument("--rounds", type=int, default=rounds,
                        help="replays of each plan, in turns with the others (default: %(default)d)")
    parser.add_argument("--profile-seconds", type=float, default=40.0,
                        help="of operators, about, and half of that of messages (default: %(default)g)")
    parser.add_argument("--datasheet", action="store_true", help="do not profile: predict from datasheet figures")
    parser.add_argument("--json", type=results_file, help="write all results to this file")


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="set up, profile, compile, replay, compare, tear down")
    run.add_argument("--quick", action="store_true", help=f"a few cases; fails beyond a factor of {CANNOT_BE_NOISE:g}")
    add_measuring(run, seconds=5.0, rounds=suite.ROUNDS)
    gains = commands.add_parser("gains", help="planned strategies against equal shares: predicted and measured gain")
    add_measuring(gains, seconds=4.0, rounds=3)
    flows = commands.add_parser("flows", help="all-reduces by flow schedule against the ring: predicted and measured gain")
    add_measuring(flows, seconds=4.0, rounds=3)
    wires = commands.add_parser("wires", help="gradients in fp16 and bf16 against fp32, on slow links: predicted and measured gain")
    add_measuring(wires, seconds=4.0, rounds=3)
    teams = commands.add_parser("teams", help="plans with teams: predicted and measured steps")
    teams.add_argument("--whole", action="store_true", help="profile whole operators alone, and not what members have of them")
    add_measuring(teams, seconds=4.0, rounds=3)
    memory = commands.add_parser("memory", help="plans for short memory, under memory limits: predicted and measured steps")
    add_measuring(memory, seconds=4.0, rounds=2)
    discover = commands.add_parser("discover", help="plans by discover and --quick against plans by profiles of the models")
    add_measuring(discover, seconds=4.0, rounds=3)
    drifts = commands.add_parser("drift", help="machines that change in mid-training, and back")
    drifts.add_argument("changes", nargs="*", metavar="CHANGE",
                        help=f"{', '.join(drift.CHANGES)}; all without")
    drifts.add_argument("--bin", type=pathlib.Path, default=cases.ROOT / "build/release/bin", help="the commands' folder")
    drifts.add_argument("--work", type=pathlib.Path, help="keep plans, logs and profiles here, and use its profiles again")
    drifts.add_argument("--seconds", type=float, default=8.0, help="of steps in each replay, about (default: %(default)g)")
    drifts.add_argument("--profile-seconds", type=float, default=40.0,
                        help="of operators, about, and half of that of messages (default: %(default)g)")
    drifts.add_argument("--flap-seconds", type=float, default=600.0,
                        help="of a speed that changes every 30 s; 0: not at all (default: %(default)g)")
    drifts.add_argument("--json", type=results_file, help="write all results to this file")
    beds = [name for name, cluster in cases.CLUSTERS.items() if not cluster.local]
    for name, does in (("verify", "measure the machines' speeds and links"), ("up", "keep machines until stopped")):
        commands.add_parser(name, help=does).add_argument("cluster", nargs="?", default="uneven-4", choices=beds)
    commands.add_parser("list", help="print the cases")
    commands.add_parser("down", help="remove what a killed run left")
    return parser.parse_args(words)


def need(chosen):
    """Raises Unavailable unless this machine can play all those clusters."""
    for cluster in dict.fromkeys(chosen):
        if found := clusters.problems(cluster, len(os.sched_getaffinity(0))):
            raise machines.Unavailable(f"{cluster.name}: {'; '.join(found)}")
    if any(not cluster.local for cluster in chosen):
        machines.check()


def environment():
    """Where results were measured."""
    names = [line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]
    return {"processor": names[0] if names else platform.machine(), "cores": os.cpu_count(),
            "kernel": platform.release(), "load_at_start": os.getloadavg()[0]}


def beyond_noise(results):
    """Those whose prediction is off by more than noise can explain."""
    return [compare.name(result) for result in results
            if not 1 / CANNOT_BE_NOISE < result["predicted_seconds"] / result["measured_seconds"] < CANNOT_BE_NOISE]


def measured(options, work, chosen):
    """The suite after it has run those cases; its results are written to --json."""
    if not chosen:
        raise machines.Failed(f"no case is called {' or '.join(options.cases)}: see testbed.py list")
    need([case.cluster for case in chosen])
    where = environment()
    runner = suite.Suite(options.bin, options.work or work, options.seconds, options.datasheet,
                         options.profile_seconds, options.rounds, getattr(options, "whole", False))
    runner.run(chosen)
    if options.json:
        found = {"format": "agpcs-testbed 1", "environment": where, "datasheet": options.datasheet,
                 "summary": compare.summary(runner.results), "gains": compare.gains(runner.results),
                 "cases": runner.results, "failures": runner.failures}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return runner


def report(text, failures):
    print(text)
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def run(options, work):
    runner = measured(options, work, cases.chosen(cases.QUICK if options.quick else options.cases))
    off = beyond_noise(runner.results) if options.quick else []
    return report(compare.markdown(runner.results),
                  [*runner.failures, *(f"{name} is off by more than noise can explain" for name in off)])


def teams(options, work):
    runner = measured(options, work, cases.chosen(options.cases, list(cases.team_cases())))
    return report(compare.markdown(runner.results), runner.failures)


def memory(options, work):
    machines.check_memory()
    runner = measured(options, work, cases.chosen(options.cases, list(cases.memory_cases())))
    return report(compare.memory_markdown(runner.results), runner.failures)


PAIRS = {"gains": cases.gain_cases, "flows": cases.flow_cases, "wires": cases.wire_cases,
         "discover": cases.discover_cases}


def gains(options, work):
    runner = measured(options, work, cases.chosen(options.cases, list(PAIRS[options.command]())))
    text = compare.discovered_markdown if options.command == "discover" else compare.gains_markdown
    return report(text(runner.results), runner.failures)


def drifts(options, work):
    chosen = options.changes or list(drift.CHANGES)
    if unknown := [name for name in chosen if name not in drift.CHANGES]:
        raise machines.Failed(f"no change is called {' or '.join(unknown)}: {', '.join(drift.CHANGES)}")
    need([drift.BASE, *drift.CHANGES.values()])
    where = environment()
    results, flapping, failures = drift.run(options.bin, options.work or work, chosen, options.profile_seconds,
                                            options.seconds, options.flap_seconds)
    if options.json:
        found = {"format": "agpcs-testbed-drift 1", "environment": where, "changes": results, "flapping": flapping,
                 "failures": failures}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return report(drift.markdown(results, flapping), [*failures, *drift.misses(results, flapping)])


def check_machines(cluster):
    need([cluster])
    with machines.Bed(cluster) as bed:
        text, good = verify.report(verify.verify(bed))
    print(text)
    return 0 if good else 1


def keep_up(cluster):
    """Ends by a signal, as an exception."""
    need([cluster])
    with machines.Bed(cluster) as bed:
        bed.set_speeds()
        for rank, (machine, _) in enumerate(bed.ranks):
            print(f"rank {rank}, {bed.address(machine)}: cgroup {bed.cgroups[rank].folder}, "
                  f"nsenter --net=/run/netns/{bed.space(machine)}")
        print("up until this is stopped (Ctrl-C)", flush=True)
        while True:
            signal.pause()


def list_cases():
    for case in cases.CASES:
        print(f"{'judges' if case.judges else 'tunes '}  {case.name}")
    for command, pairs in {**PAIRS, "teams": cases.team_cases, "memory": cases.memory_cases}.items():
        for case in pairs():
            print(f"{command:<8}  {case.name}")
    return 0


def dispatch(options):
    if options.command == "list":
        return list_cases()
    with machines.sole_user():
        if options.command == "down":
            print("\n".join(machines.tear_down()) or "nothing was there")
            return 0
        if options.command == "verify":
            return check_machines(cases.CLUSTERS[options.cluster])
        if options.command == "up":
            return keep_up(cases.CLUSTERS[options.cluster])
        does = {"run": run, "teams": teams, "memory": memory, "drift": drifts}.get(options.command, gains)
        with tempfile.TemporaryDirectory(prefix=f"{machines.PREFIX}-") as work:
            return does(options, pathlib.Path(work))


def stopped(number, _):
    raise KeyboardInterrupt(signal.Signals(number).name)


def ended(work):
    """The exit code of `work`. A signal that ends the process tears all down first, as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stopped)
    try:
        return work()
    except machines.Unavailable as error:
        print(f"skipped: {error}", file=sys.stderr)
        return SKIPPED
    except machines.Failed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; everything is torn down", file=sys.stderr)
        return 130


def main():
    return ended(lambda: dispatch(parse(sys.argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
