#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the command that runs the proof on a GPU: its order, budget, resuming and report, with parts that are made up;
and the command itself on a machine without a GPU."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import machine
import main
import parts
import prepare
import programs
import runner
from work import CannotRun, CutOff, Work

HERE = pathlib.Path(__file__).resolve().parent
IDENTITY = {"sources": "abc", "GPUs": "none"}


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class FakeMachine:
    """Lacks what `missing` names."""

    def __init__(self, missing=()):
        self.missing, self.root = missing, HERE

    def obstacle(self, need):
        return f"no {need}" if need in self.missing else ""

    def environment(self):
        return dict(os.environ)

    def facts(self):
        return {"driver": "one | two"}


class Runs(unittest.TestCase):
    def setUp(self):
        self.temp = tempfile.TemporaryDirectory()
        self.addCleanup(self.temp.cleanup)
        self.folder, self.clock, self.said, self.ran = pathlib.Path(self.temp.name), Clock(), [], []

    def part(self, name, seconds=10, then=None, **options):
        def run(work):
            self.ran.append(name)
            self.clock.now += seconds
            if then:
                then(work)
        return runner.Part(name, f"What {name} shows", run, **options)

    def run_all(self, *listed, missing=(), **options):
        return runner.run(listed, FakeMachine(missing), self.folder, options.pop("identity", IDENTITY), clock=self.clock,
                          say=self.said.append, **options)

    def text(self):
        return (self.folder / "gpu.md").read_text()

    def states(self):
        return [(part["part"], part["state"]) for part in json.loads((self.folder / "gpu.json").read_text())["parts"]]

    def test_parts_run_in_their_order_and_the_report_is_written_after_each(self):
        seen = []
        self.run_all(self.part("a"), self.part("b", then=lambda _: seen.extend(self.states())), self.part("c"))
        self.assertEqual(self.ran, ["a", "b", "c"])
        self.assertEqual(seen, [("a", "done")])
        self.assertEqual(self.states(), [("a", "done"), ("b", "done"), ("c", "done")])

    def test_what_a_part_needs_and_the_machine_lacks_is_the_reason_why_it_is_skipped(self):
        outcomes = self.run_all(self.part("a", needs=("gpu",)), self.part("b"), missing=("gpu",))
        self.assertEqual(self.ran, ["b"])
        self.assertEqual((outcomes["a"]["state"], outcomes["a"]["why"]), ("skipped", "no gpu"))
        self.assertIn("| a | skipped | 0 |  | no gpu |", self.text())
        self.assertIn("Skipped: no gpu", self.text())

    def test_a_part_may_find_out_by_itself_that_it_cannot_run(self):
        def refuse(work):
            raise CannotRun("MPS may not run here")
        outcomes = self.run_all(self.part("a", then=refuse))
        self.assertEqual((outcomes["a"]["state"], outcomes["a"]["why"]), ("skipped", "MPS may not run here"))

    def test_no_part_begins_when_the_budget_is_spent(self):
        listed = [self.part(name, least=5) for name in "abc"]
        outcomes = self.run_all(*listed, budget=14)
        self.assertEqual(self.ran, ["a"], "4 s are left, and the next part needs 5")
        self.assertEqual(outcomes["c"]["why"], "the budget is spent")
        self.run_all(*listed)
        self.assertEqual(self.ran, ["a", "b", "c"], "the next run goes on where the first one stopped")

    def test_a_part_gets_what_is_left_of_the_budget_and_at_most_its_limit(self):
        left = []
        def note(work):
            left.append(work.seconds_left())
        self.run_all(self.part("a", 0, note, limit=100), self.part("b", 0, note, limit=20), budget=60)
        self.assertEqual(left, [60, 20])

    def test_done_and_failed_parts_are_not_run_again_unless_asked_for(self):
        def fail(work):
            work.fault("the loss is off")
        listed = [self.part("a"), self.part("b", then=fail)]
        self.run_all(*listed)
        self.run_all(*listed)
        self.assertEqual(self.ran, ["a", "b"])
        self.run_all(*listed, again=["b"], only=["b"])
        self.assertEqual(self.ran, ["a", "b", "b"])
        self.assertEqual(self.states(), [("a", "done"), ("b", "failed")])

    def test_a_part_that_is_cut_off_keeps_its_figures_and_goes_on(self):
        def begin(work):
            made = []
            work.row("Plans", plan="first", ms=work.once("first", lambda: made.append(1) or 1.5))
            self.made = made
            if self.clock.now < 15:
                raise CutOff
            work.row("Plans", plan="second", ms=2.5)
        part = self.part("a", then=begin)
        outcomes = self.run_all(part)
        self.assertEqual((outcomes["a"]["state"], self.made), ("cut off", [1]))
        self.assertIn("| first | 1.5 |", self.text())
        outcomes = self.run_all(part)
        self.assertEqual((outcomes["a"]["state"], self.made), ("done", []), "the first plan is not made twice")
        self.assertIn("| first | 1.5 |\n| second | 2.5 |", self.text())

    def test_a_part_that_breaks_is_reported_and_the_others_run(self):
        def break_it(work):
            raise RuntimeError("agpcs-run ended with 1")
        outcomes = self.run_all(self.part("a", then=break_it), self.part("b"))
        self.assertEqual((outcomes["a"]["state"], outcomes["a"]["why"]), ("failed", "RuntimeError: agpcs-run ended with 1"))
        self.assertEqual(outcomes["b"]["state"], "done")
        self.assertIn("in break_it", (self.folder / "parts/a/error.txt").read_text())

    def test_figures_stand_beside_their_targets_and_those_that_miss_are_named(self):
        def measure(work):
            work.figure("median error", 0.031, target="<= 0.05")
            work.figure("speed to eager", 0.9, target=">= 0.95")
            work.figure("tests passed", 27)
        outcomes = self.run_all(self.part("a", then=measure))
        self.assertEqual(outcomes["a"]["state"], "done", "a target that is missed is a figure, no fault")
        self.assertIn("| median error | 0.031 | <= 0.05 | yes |\n| speed to eager | 0.9 | >= 0.95 | **no** |\n"
                      "| tests passed | 27 |  |  |", self.text())
        self.assertIn("| a | done | 10 | speed to eager |  |", self.text())
        self.assertIn("one \\| two", self.text(), "a bar in a cell does not end it")

    def test_a_report_of_other_sources_is_not_added_to(self):
        self.run_all(self.part("a"))
        with self.assertRaisesRegex(runner.Differs, "the report is of sources 'abc', this is 'def'\n  hint: give another"):
            self.run_all(self.part("a"), identity={**IDENTITY, "sources": "def"})

    def test_only_parts_that_are_asked_for_run(self):
        self.run_all(self.part("a"), self.part("b"), only=["b"])
        self.assertEqual(self.ran, ["b"])


class Commands(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory()
        self.addCleanup(temp.cleanup)
        self.work = Work(FakeMachine(), pathlib.Path(temp.name), 60)

    def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(self):
        done = self.work.call(["sh", "-c", "sleep 60 & echo $!; wait"], limit=0.5)
        self.assertIsNone(done.code)
        child = int(done.output)

        def lives():
            try:
                return pathlib.Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
            except (FileNotFoundError, ProcessLookupError):
                return False
        deadline = time.monotonic() + 30
        while lives() and time.monotonic() < deadline:  # it has been killed, and takes a moment to end
            time.sleep(0.01)
        self.assertFalse(lives())

    def test_a_part_whose_time_is_over_is_cut_off(self):
        work = Work(FakeMachine(), self.work.folder, 0.2)
        with self.assertRaises(CutOff):
            work.call(["sleep", "60"])

    def test_a_command_that_fails_is_told_with_its_last_words(self):
        with self.assertRaisesRegex(RuntimeError, "^sh -c echo why; exit 3 ended with 3:\nwhy$"):
            self.work.need(["sh", "-c", "echo why; exit 3"])
        self.assertIn("why", (self.work.folder / "log.txt").read_text())


class Listed(unittest.TestCase):
    def test_every_part_ends_below_ten_minutes_and_needs_what_a_machine_can_say(self):
        names = [part.name for part in parts.PARTS]
        self.assertEqual(len(names), len(set(names)))
        for part in parts.PARTS:
            self.assertLess(part.limit, 600, part.name)
            for need in part.needs:
                self.assertTrue(hasattr(machine.Machine, f"_no_{need}"), f"{part.name} needs {need}")

    def test_what_is_built_goes_along(self):
        for name in prepare.PROGRAMS:
            self.assertIn(pathlib.Path(name).name, programs.TARGETS)

    def test_libraries_of_a_program_go_along_without_those_of_the_system_and_of_wheels(self):
        said = """\tlinux-vdso.so.1 (0x00007ffc)
\tlibfmt.so.9 => /lib/x86_64-linux-gnu/libfmt.so.9 (0x00007f)
\tlibtorch_cuda.so => /cache/torch/lib/libtorch_cuda.so (0x00007f)
\tlibnccl.so.2 => /cache/nccl/lib/libnccl.so.2 (0x00007f)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f)
\tlibmissing.so => not found
"""
        self.assertEqual([path.name for path in prepare.libraries_of(said)], ["libfmt.so.9"])

    def test_a_thin_library_has_the_machine_code_of_one_architecture_alone(self):
        def entry(kind, architecture, code):
            return prepare.ENTRY.pack(kind, 0, 64, len(code), architecture).ljust(64, b"\1") + code

        def container(*entries):
            code = b"".join(entries)
            return prepare.CONTAINER.pack(prepare.FAT, 1, prepare.CONTAINER.size, len(code)) + code
        machine_code, ptx = prepare.MACHINE_CODE, 1
        whole = b"ELF" + container(entry(machine_code, 80, b"old!"), entry(machine_code, 90, b"mine"),
                                   entry(ptx, 90, b"text")) + b"end"
        self.assertEqual(prepare.thin(whole, 90), whole.replace(b"old!", bytes(4)).replace(b"text", bytes(4)))
        self.assertEqual(prepare.thin(b"no code" + whole[:20], 90), b"no code" + whole[:20], "a container that is cut off")

    def test_tests_that_a_program_lists_are_named_whole(self):
        listed = "Running main() from a file\nAll/Transports.\n  Sends/nccl  # GetParam() = nccl\n  Sums/nccl\nOther.\n  Ends\n"
        self.assertEqual(list(programs.names_of(listed)),
                         ["All/Transports.Sends/nccl", "All/Transports.Sums/nccl", "Other.Ends"])

    def test_sources_without_git_are_those_that_the_folder_was_made_of(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "sources").write_text("abc\n")
            self.assertEqual(main.sources(folder, folder), "abc")
            self.assertEqual(main.sources(folder, None), "unknown")


class Whole(unittest.TestCase):
    """run.sh itself, on a machine that shows no GPU: without nvidia-smi, and with no PyTorch but a broken one."""

    def run_sh(self, folder, *words):
        tools = folder / "tools"
        tools.mkdir(exist_ok=True)
        for name in ("bash", "dirname", "env", "git", "sh", "sed", "head", "sha256sum", "cut", "cat", "uname"):
            path = next(path for where in os.environ["PATH"].split(":") if (path := pathlib.Path(where, name)).exists())
            (tools / name).exists() or (tools / name).symlink_to(path)
        (tools / "python3").exists() or (tools / "python3").symlink_to(sys.executable)
        return subprocess.run([HERE / "run.sh", "--report", folder / "report", *words], capture_output=True, text=True,
                              env={"PATH": str(tools), "HOME": str(folder)})

    def test_without_a_gpu_it_ends_well_and_says_of_each_part_why_it_was_skipped(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            done = self.run_sh(folder)
            self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
            report = json.loads((folder / "report/gpu.json").read_text())
            by_name = {part["part"]: part for part in report["parts"]}
            self.assertEqual(by_name.pop("machine")["state"], "done")
            self.assertEqual(list(by_name), [part.name for part in parts.PARTS[1:]])
            for part in by_name.values():
                self.assertEqual((part["state"], part["why"]), ("skipped", "no NVIDIA GPU: there is no nvidia-smi"))
            self.assertIn("| equality | skipped |", (folder / "report/gpu.md").read_text())

    def test_a_part_that_is_not_there_is_told_with_those_that_are(self):
        with tempfile.TemporaryDirectory() as name:
            done = self.run_sh(pathlib.Path(name), "equalty")
            self.assertEqual(done.returncode, 2)
            self.assertIn("there is no part 'equalty'; parts: machine, torch, build, conformance", done.stderr)


if __name__ == "__main__":
    unittest.main()
