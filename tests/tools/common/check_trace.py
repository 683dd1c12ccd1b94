#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks a Chrome trace as Perfetto would read it, and prints what it holds, one line a fact."""

import collections
import json
import sys


def check(trace):
    events = trace["traceEvents"]
    named = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    arrows = collections.defaultdict(list)
    slices = collections.defaultdict(list)
    counters = collections.defaultdict(int)  # the largest value
    for e in events:
        if e["ph"] == "X":
            assert (e["pid"], e["tid"]) in threads, f"slice in an unnamed thread: {e}"
            assert e["ts"] >= 0 and e["dur"] >= 0, f"slice out of time: {e}"
            slices[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"], e["name"]))
        elif e["ph"] in "sf":
            arrows[e["id"]].append(e)
        elif e["ph"] == "C":
            (value,) = e["args"].values()
            assert e["pid"] in named and e["ts"] >= 0 and value >= 0, f"a counter that is none: {e}"
            counters[named[e["pid"]], e["name"]] = max(counters[named[e["pid"]], e["name"]], value)
        else:
            assert e["ph"] == "M", f"unknown phase: {e}"
    for key, of_thread in slices.items():
        of_thread.sort()
        for (_, end, first), (start, _, second) in zip(of_thread, of_thread[1:]):
            assert start >= end - 0.002, f"{first} and {second} overlap in {threads[key]} of {named[key[0]]}"
    for ends in arrows.values():
        assert [e["ph"] for e in ends] == ["s", "f"], f"half an arrow: {ends}"
        assert ends[0]["ts"] <= ends[1]["ts"], f"an arrow back in time: {ends}"
        assert ends[0]["pid"] != ends[1]["pid"], f"an arrow from a rank to itself: {ends}"
    for pid, name in sorted(named.items()):
        print(f"process {name}")
    print(f"arrows {len(arrows)}")
    for (process, name), value in sorted(counters.items()):
        print(f"counter {name} of {process}, at most {value}")
    for e in events:
        if e["ph"] == "X":
            place = f"{e['pid']} {threads[e['pid'], e['tid']]}"
            size = f" bytes={e['args']['bytes']}" if "args" in e else ""
            print(f"{place}: {e['name']}{size}")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        check(json.load(file))
