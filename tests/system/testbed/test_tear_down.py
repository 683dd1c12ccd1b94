#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whatever way a test bed ends, nothing of it is left. Exits 77 where there cannot be one, and says why."""

import pathlib
import signal
import subprocess
import sys
import unittest

import cases
import machines

TESTBED = [sys.executable, str(pathlib.Path(__file__).resolve().parent / "testbed.py")]
CLUSTER = cases.CLUSTERS["thin-2"]


def leftovers():
    """Namespaces and cgroups that a test bed has made."""
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.splitlines()
    folder, _ = machines.cgroup_folder(pathlib.Path("/proc/mounts").read_text())
    found = [line.split()[0] for line in spaces if line.startswith(machines.PREFIX)]
    return found + ([str(folder / machines.PREFIX)] if (folder / machines.PREFIX).exists() else [])


def up():
    """A test bed whose machines are up."""
    process = subprocess.Popen([*TESTBED, "up", CLUSTER.name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (line := process.stdout.readline()).startswith("up"):
        if not line:
            raise AssertionError(process.communicate()[1])
    return process


def ask(*words):
    done = subprocess.run([*TESTBED, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


class TearDown(unittest.TestCase):
    def tearDown(self):
        ask("down")

    def test_a_signal_leaves_nothing_and_is_told(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = up()
            self.assertEqual(len(leftovers()), len(CLUSTER.machines) + 2)  # and the switch, and the cgroups
            process.send_signal(number)
            self.assertEqual(process.communicate()[1], "stopped; everything is torn down\n")
            self.assertEqual((process.returncode, leftovers()), (130, []))

    def test_what_a_killed_run_left_is_removed_by_down_with_the_processes_in_it(self):
        process = up()
        process.kill()
        process.communicate()
        folder = pathlib.Path(leftovers()[-1])
        stray = subprocess.Popen(["sleep", "1000"])
        (folder / "rank0" / "cgroup.procs").write_text(str(stray.pid))
        code, text, _ = ask("down")
        self.assertEqual((code, len(text.splitlines()), leftovers()), (0, 3 + len(CLUSTER.machines) + 1, []))
        self.assertEqual(stray.wait(), -signal.SIGKILL)
        self.assertEqual(ask("down"), (0, "nothing was there\n", ""))

    def test_what_a_killed_run_left_does_not_disturb_the_next(self):
        first = up()
        first.kill()
        first.communicate()
        second = up()
        second.terminate()
        second.communicate()
        self.assertEqual(leftovers(), [])

    def test_two_test_beds_at_once_are_refused(self):
        process = up()
        code, _, text = ask("up", CLUSTER.name)
        self.assertEqual((code, text), (77, f"skipped: another test bed is running ({machines.LOCK} is locked)\n"))
        self.assertEqual(len(leftovers()), len(CLUSTER.machines) + 2)
        process.terminate()
        process.communicate()


if __name__ == "__main__":
    try:
        with machines.sole_user():
            machines.check()
    except machines.Unavailable as error:
        print(f"skipped: {error}", file=sys.stderr)
        sys.exit(77)
    unittest.main()
