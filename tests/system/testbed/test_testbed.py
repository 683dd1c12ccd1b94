#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of what the test bed computes; nothing is set up."""

import argparse
import pathlib
import tempfile
import unittest

import cases
import clusters
import commands
import compare
import drift
import machines
import record_drift
import suite
import testbed


def result(plan, predicted, measured, judges=True, model="cnn"):
    cluster = clusters.Cluster("judge" if judges else "tune", processes=2)
    found = compare.compared(cases.Case(cluster, model, plan, None), predicted, [[measured] * 3] * 2)
    return found | {"judges": judges}


class Clusters(unittest.TestCase):
    def test_the_cluster_file_has_a_kind_a_speed_and_a_host_a_machine(self):
        text = clusters.cluster_yaml(clusters.uneven("two", a=(60, 1000), b=(30, 20)), 8_000_000_000, "profile.yaml")
        self.assertEqual(text, """\
name: two
profile: profile.yaml
device_kinds:
  cpu-60: {memory: 4000000000B, memory_bandwidth: 6GB/s, peak: {fp32: 54GFLOPS}, launch_overhead: 33.3333us}
  cpu-30: {memory: 4000000000B, memory_bandwidth: 3GB/s, peak: {fp32: 27GFLOPS}, launch_overhead: 66.6667us}
hosts:
  - name: a
    devices: {kind: cpu-60, count: 1}
    interconnect: {kind: tcp, bandwidth: 1.5GB/s, latency: 40us}
    nic: {bandwidth: 1000Mbit/s, latency: 100us}
  - name: b
    devices: {kind: cpu-30, count: 1}
    interconnect: {kind: tcp, bandwidth: 1.5GB/s, latency: 40us}
    nic: {bandwidth: 20Mbit/s, latency: 100us}
network: {topology: switch}
training: {precision: fp32, loss: softmax_cross_entropy, optimizer: sgd}
""")

    def test_plain_processes_are_one_host_without_a_card(self):
        text = clusters.cluster_yaml(clusters.Cluster("local-2", processes=2), 2_000)
        self.assertIn("  - name: local\n    devices: {kind: cpu-100, count: 2}\n", text)
        self.assertNotIn("nic:", text)

    def test_ranks_of_one_machine_follow_each_other(self):
        cluster = clusters.Cluster("three", (clusters.Machine("a", 0.3, 100, ranks=2), clusters.Machine("b", 0.5, 100)))
        self.assertEqual(clusters.devices(cluster), ["a/0", "a/1", "b/0"])
        self.assertEqual(clusters.problems(cluster, 2), [])

    def test_ranks_are_spread_over_the_cores(self):
        self.assertEqual(clusters.homes(cases.CLUSTERS["uneven-4"], 2), [0, 1, 1, 0])

    def test_more_than_the_cores_can_give_is_refused(self):
        cluster = clusters.uneven("much", a=(90, 1000), b=(90, 1000))
        self.assertEqual(clusters.problems(cluster, 2), ["the ranks need 0.9 of core 0, which has room for 0.85",
                          "the ranks need 0.9 of core 1, which has room for 0.85"])


class Machines(unittest.TestCase):
    def test_the_cgroups_with_a_cpu_quota_are_found_in_either_version(self):
        first = ("cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
                 "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\n")
        self.assertEqual(machines.cgroup_folder(first), (pathlib.Path("/sys/fs/cgroup/cpu"), 1))
        self.assertEqual(machines.cgroup_folder("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"),
                         (pathlib.Path("/sys/fs/cgroup"), 2))
        self.assertIsNone(machines.cgroup_folder("proc /proc proc rw 0 0\n"))

    def test_slow_links_let_two_frames_pass_at_once(self):
        self.assertEqual(machines.tbf(20)[2:6], ["rate", "20000000bit", "burst", "3028b"])
        self.assertEqual(machines.tbf(1000)[2:6], ["rate", "1000000000bit", "burst", "62500b"])


class Commands(unittest.TestCase):
    def test_steps_fill_the_time_within_bounds(self):
        self.assertEqual([commands.step_count(step, 6) for step in (0.01, 0.5, 3)], [60, 12, 8])

    def test_the_first_steps_do_not_count(self):
        events = [{"event": "start"}, *({"event": "step", "seconds": second} for second in (9, 5, 1, 2)), {"event": "summary"}]
        self.assertEqual(commands.steps_of(events), [1, 2])

    def test_a_rank_knows_its_place_and_where_rank_0_is(self):
        cluster = clusters.Cluster("three", (clusters.Machine("a", 0.3, 100), clusters.Machine("b", 0.5, 100, ranks=2)))
        found = commands.rank_environment(machines.Bed(cluster), [0, 1, 2], 2, "secret")
        self.assertEqual(found, {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
                                 "MASTER_ADDR": "10.213.77.1", "MASTER_PORT": "29500", "AGPCS_PORT": "29500",
                                 "AGPCS_JOB_TOKEN": "secret"})


    def test_a_plan_may_leave_devices_out(self):
        cluster = clusters.Cluster("three", (clusters.Machine("a", 0.3, 100), clusters.Machine("b", 0.5, 100, ranks=2)))
        found = commands.rank_environment(machines.Bed(cluster), [2], 0, "secret")
        self.assertEqual([found[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")],
                         ["0", "1", "0", "1", "10.213.77.2"])


class Cases(unittest.TestCase):
    def test_layouts_name_devices_by_the_letters_of_their_ranks(self):
        four = cases.CLUSTERS["uneven-4"]
        self.assertEqual(cases.layout(four, "ad|bc"), "a/0,d/0|b/0,c/0")
        self.assertEqual(cases.layout(four, "ab", equal=True), "a/0:1,b/0:1")
        self.assertEqual(cases.layout(cases.CLUSTERS["local-2"], "a|b"), "local/0|local/1")
        self.assertEqual(cases.layout(four, "a+dc+b"), "a/0+d/0,c/0+b/0")
        self.assertEqual(cases.layout(four, "a+b+c|d"), "a/0+b/0+c/0|d/0")

    def test_at_least_24_cases_judge_and_none_of_them_is_on_a_tuning_cluster(self):
        judging = [case for case in cases.CASES if case.judges]
        self.assertGreaterEqual(len(judging), 24)
        tuning = {case.cluster.name for case in cases.CASES if not case.judges}
        self.assertFalse(tuning & {case.cluster.name for case in judging})

    def test_every_case_has_a_name_of_its_own_and_every_cluster_fits_two_cores(self):
        self.assertEqual(len({case.name for case in cases.CASES}), len(cases.CASES))
        self.assertEqual([clusters.problems(cluster, 2) for cluster in cases.CLUSTERS.values() if
                          clusters.problems(cluster, 2)], [])

    def test_what_planning_gains_is_measured_in_pairs_next_to_each_other(self):
        found = list(cases.gain_cases())
        self.assertGreaterEqual(len(found), 12)
        for equal, planned in zip(found[::2], found[1::2]):
            self.assertEqual((equal.plan, planned.plan), ("equal", "planned"))
            self.assertEqual((equal.cluster, equal.model), (planned.cluster, planned.model))
            self.assertIsNone(planned.layout)
            self.assertEqual(equal.layout.count(":1"), len(clusters.devices(equal.cluster)))
        self.assertEqual(len(cases.chosen(["mixed-4/cnn/*"], found)), 2)

    def test_discovered_plans_are_measured_next_to_those_by_full_profiles(self):
        found = list(cases.discover_cases())
        self.assertEqual(len(found), 2 * len(cases.PLANNED) * len(cases.TUNE + cases.GAINS))
        for full, quick in zip(found[::2], found[1::2]):
            self.assertEqual((full.plan, full.quick), ("planned", False))
            self.assertEqual((quick.plan, quick.quick), ("discovered", True))
            self.assertEqual((full.cluster, full.model, full.options()), (quick.cluster, quick.model, quick.options()))
            self.assertIsNone(quick.layout)
        self.assertEqual(len({case.name for case in found}), len(found))
        self.assertEqual(len(cases.chosen(["thin-link-3/*", "mixed-4/*"], found)), 4 * len(cases.PLANNED))

    def test_results_go_to_a_file_that_can_be_written(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(testbed.results_file(f"{folder}/a.json"), pathlib.Path(folder, "a.json"))
            for path, why in ((folder, f"'{folder}' is a folder, not a file"),
                              (f"{folder}/no/a.json", f"'{folder}/no/a.json' cannot be written: there is no folder "
                                                      f"'{folder}/no'")):
                with self.assertRaises(argparse.ArgumentTypeError) as raised:
                    testbed.results_file(path)
                self.assertEqual(str(raised.exception), why)

    def test_quick_cases_exist(self):
        self.assertEqual(len(cases.chosen(cases.QUICK)), len(cases.QUICK))


class Compare(unittest.TestCase):
    def test_errors_are_of_the_prediction_relative_to_the_measurement(self):
        found = compare.errors([result("x", 1.1, 1.0), result("y", 0.8, 1.0), result("z", 1.0, 1.0)])
        self.assertEqual(found["cases"], 3)
        self.assertAlmostEqual(found["median"], 0.1)
        self.assertAlmostEqual(found["p90"], 0.18)
        self.assertEqual(found["worst_case"], "judge/cnn/y")

    def test_repeats_show_the_noise_floor(self):
        case = cases.Case(clusters.Cluster("c", processes=2), "cnn", "x", None)
        found = compare.compared(case, 1.0, [[1.0, 1.0, 1.0], [1.2, 1.2, 1.2]])
        self.assertAlmostEqual(found["measured_seconds"], 1.1)
        self.assertAlmostEqual(found["repeat_difference"], 0.2 / 1.1)
        self.assertEqual(found["spread"], 0)

    def test_plans_are_ordered_only_where_they_measurably_differ_on_one_model_and_cluster(self):
        same = [result("a", 1.0, 1.0), result("b", 0.9, 1.05)]
        self.assertEqual(compare.orders(same), (0, []))
        self.assertEqual(compare.orders([result("a", 1.0, 1.0), result("b", 0.9, 2.0, model="bert_2")]), (0, []))
        wrong = [result("a", 1.0, 1.0), result("b", 0.9, 1.2), result("c", 1.5, 1.6)]
        self.assertEqual(compare.orders(wrong), (3, ["judge/cnn/a measured faster than b, predicted slower"]))

    def test_gains_are_over_equal_shares(self):
        found = compare.gains([result("equal", 3.0, 2.8), result("planned", 1.5, 1.4), result("2 x 2", 1.0, 1.0)])
        self.assertEqual(found, [{"case": "judge/cnn/planned", "base": "judge/cnn/equal", "predicted": 2.0, "measured": 2.0}])

    def test_teams_have_two_and_three_members_even_and_not_with_shares_and_in_pipelines(self):
        found = list(cases.team_cases())
        self.assertGreaterEqual(len(found), 8)
        self.assertTrue(all("+" in case.layout and case.judges for case in found))
        self.assertEqual(len({case.name for case in found}), len(found))
        layouts = {case.layout for case in found}
        self.assertLessEqual({"a/0+b/0", "a/0+b/0+c/0", "a/0+b/0,c/0+d/0", "a/0+b/0|c/0+d/0"}, layouts)

    def test_plans_for_short_memory_share_and_pipeline_and_get_less_than_they_take(self):
        found = list(cases.memory_cases())
        self.assertGreaterEqual(len(found), 10)
        self.assertEqual(len({case.name for case in found}), len(found))
        self.assertTrue(all(0 < case.of_peak < 1 and case.judges for case in found))
        self.assertLessEqual({"a/0,b/0", "a/0|b/0", "a/0,b/0|c/0", "a/0,b/0,c/0,d/0", None}, {case.layout for case in found})
        text = compare.memory_markdown([result("stages", 3.0, 2.5) | {"memory": 123_000_000, "peak": 120_000_000, "form": ("optimizer", "all / nothing")}])
        self.assertIn("| 123 | 120 | optimizer | all / nothing | 3000.0 | 2500.0 | +20.0% |", text)
        self.assertIn("median error 20.0%", text)

    def test_what_a_plan_divides_and_recomputes_is_read_from_its_text(self):
        with tempfile.TemporaryDirectory() as folder:
            plan = pathlib.Path(folder) / "a.plan"
            plan.write_text("stage s0 ranks=0-1 recompute=yes segments=7,2x3 operators=9\n"
                            "stage s1 ranks=2 recompute=no operators=9\nbucket b0 stage=s0 state=gradients parts=1,2\n")
            self.assertEqual(suite.form_of(plan), ("gradients", "7,2x3 / nothing"))
            plan.write_text("stage s0 ranks=0 recompute=yes operators=9\n")
            self.assertEqual(suite.form_of(plan), ("nothing", "all"))

    def test_flows_are_compared_with_the_ring(self):
        found = list(cases.flow_cases())
        self.assertEqual([case.plan for case in found[:2]], ["ring", "flow"])
        self.assertEqual(found[1].options()[-2:], ["--all-reduce", "flow"])
        text = compare.gains_markdown([result("ring", 4.0, 4.0), result("flow", 3.0, 2.0)])
        self.assertIn("ring, predicted ms | flow, predicted ms", text)
        self.assertIn("| 4000.0 | 3000.0 | 4000.0 | 2000.0 | 25.0% | 50.0% | -25.0 |", text)

    def test_wire_types_are_compared_with_fp32(self):
        found = list(cases.wire_cases())
        self.assertEqual([case.plan for case in found[:3]], ["fp32", "fp16", "bf16"])
        self.assertNotIn("--wire-type", found[0].options())
        self.assertEqual(found[2].options()[-2:], ["--wire-type", "bf16"])
        text = compare.gains_markdown([result("fp32", 4.0, 4.0), result("fp16", 3.0, 2.0), result("bf16", 2.0, 2.0)])
        self.assertIn("| cluster | model | plan | fp32, predicted ms | fp16 or bf16, predicted ms |", text)
        self.assertIn("| fp16 | 4000.0 | 3000.0 | 4000.0 | 2000.0 | 25.0% | 50.0% | -25.0 |", text)
        self.assertIn("| bf16 | 4000.0 | 2000.0 | 4000.0 | 2000.0 | 50.0% | 50.0% | +0.0 |", text)

    def test_gains_are_parts_of_the_step_with_equal_shares_and_differ_by_points(self):
        text = compare.gains_markdown([result("equal", 4.0, 5.0), result("planned", 3.0, 3.0),
                                       result("equal", 1.0, 1.0, model="bert_2"), result("planned", 0.5, 0.52, model="bert_2")])
        self.assertIn("| judge | cnn | 4000.0 | 3000.0 | 5000.0 | 3000.0 | 25.0% | 40.0% | -15.0 | 0.0% |\n", text)
        self.assertIn("| judge | bert_2 | 1000.0 | 500.0 | 1000.0 | 520.0 | 50.0% | 48.0% | +2.0 | 0.0% |\n", text)
        self.assertIn("within 5 points of measured ones: 1 of 2; the farthest is 15.0 points off (judge/cnn/planned).\n", text)

    def test_without_a_pair_there_is_no_gain(self):
        for report in (compare.gains_markdown, compare.discovered_markdown):
            self.assertEqual(report([result("equal", 1.0, 1.0)]), "No pair of plans was measured.\n")

    def test_discovered_plans_are_longer_or_shorter_than_those_by_full_profiles(self):
        text = compare.discovered_markdown([
            result("planned", 1.0, 2.0), result("discovered", 2.0, 2.5),
            result("planned", 1.0, 1.0, model="bert_2"), result("discovered", 0.9, 0.9, model="bert_2"),
            result("discovered", 9.0, 1.0, model="squeezenet")])  # without a plan to compare with
        self.assertIn("| judge | cnn | 2000.0 | 2500.0 | +25.0% | -50.0% | -20.0% | 0.0% |\n", text)
        self.assertIn("| judge | bert_2 | 1000.0 | 900.0 | -10.0% | +0.0% | +0.0% | 0.0% |\n", text)
        self.assertNotIn("| squeezenet |", text)
        self.assertIn("longer by +7.5% in the median, +25.0% at most.\n", text)
        self.assertIn("By profile, 2 cases: median error 25.0%, 90th percentile 45.0%, worst 50.0% (judge/cnn/planned).\n", text)
        self.assertIn("Discovered, 3 cases: median error 20.0%,", text)

    def test_tuning_cases_do_not_judge(self):
        text = compare.markdown([result("x", 1.02, 1.0), result("y", 2.0, 1.0, judges=False)])
        self.assertIn("Judging, 1 case: median error 2.0%, 90th percentile 2.0%, worst 2.0% (judge/cnn/x).\n", text)
        self.assertIn("| judge | cnn | x | 1020.0 | 1000.0 | +2.0% | 1000.0 / 1000.0 | 0.0% | 0.0% |\n", text)
        self.assertIn("Tuning, 1 case: median error 100.0%", text)
        tuning = [result("x", 2.0, 1.0, judges=False), result("y", 1.0, 2.0, judges=False)]  # in the wrong order
        self.assertIn("0 of 0 pairs", compare.markdown(tuning))

    def test_quick_fails_only_on_what_cannot_be_noise(self):
        found = testbed.beyond_noise([result("x", 1.9, 1.0), result("y", 2.1, 1.0), result("z", 0.4, 1.0)])
        self.assertEqual(found, ["judge/cnn/y", "judge/cnn/z"])



class Drift(unittest.TestCase):
    def events(self, moves_after):
        """A job of a second a step whose moves come so many steps after each change; (watcher, changes made at)."""
        now, changed = [0.0], []
        watcher = drift.Watcher(lambda number: changed.append((number, len(watcher.losses))), clock=lambda: now[0])
        with self.assertRaises(commands.Enough):
            for step in range(1000):
                since = step - changed[-1][1] if changed else -1
                if since == 10:
                    watcher({"event": "drift", "step": step})
                if since == moves_after:
                    watcher({"event": "switched", "step": step})
                now[0] += 1
                watcher({"event": "step", "step": step, "loss": 1 / (1 + step), "seconds": 1.0 if since < moves_after else 0.5})
        return watcher, changed

    def test_machines_change_once_the_job_is_quiet_and_back_once_it_has_settled(self):
        watcher, changed = self.events(moves_after=30)
        self.assertEqual(changed, [(0, drift.QUIET_STEPS), (1, drift.QUIET_STEPS + 30 + drift.SETTLED_STEPS)])
        there = watcher.turns[0]
        self.assertEqual((there.drift_after_steps, there.drift_seconds), (10, 10.0))
        self.assertEqual((there.switched_at - there.changed_at, there.switch_seconds), (30, 30.0))

    def test_a_job_that_never_moves_is_not_waited_for_forever(self):
        watcher, changed = self.events(moves_after=10_000)
        self.assertEqual(len(changed), 2)
        self.assertIsNone(watcher.turns[0].switch_seconds)

    def test_the_part_of_the_gain_counts_where_there_is_something_to_gain(self):
        rounds = [{"old": 2.0, "new": 1.2, "offline": 1.0}, {"old": 1.0, "new": 0.6, "offline": 0.5},  # as the machine slows down
                  {"old": 8.0, "new": 4.9, "offline": 3.0}]
        self.assertAlmostEqual(drift.gained(rounds), 0.8)
        self.assertEqual(drift.medians(rounds), {"old": 2.0, "new": 1.2, "offline": 1.0})
        self.assertIsNone(drift.gained([{"old": 1.02, "new": 1.0, "offline": 1.0}]))
        self.assertIsNone(drift.gained([{"old": 2.0, "offline": 1.0}]))

    def test_losses_are_compared_over_the_same_steps(self):
        self.assertAlmostEqual(drift.losses_differ({0: 1.0, 1: 2.0, 7: 5.0}, {0: 1.0, 1: 2.002}), 0.001 / 1.001)
        self.assertIsNone(drift.losses_differ({}, {0: 1.0}))

    def test_flapping_machines_change_every_30_seconds_until_the_end(self):
        self.assertEqual([drift.flips(100, 1000, 1000 + after) for after in (0, 29, 31, 89, 95, 500)], [0, 0, 1, 2, 3, 3])

    def test_what_was_promised_and_not_kept_is_said(self):
        good = {"change": "speed", "way": "there", "drift_after_steps": 9, "drift_seconds": 4.0, "switch_seconds": 20.0,
                "old_seconds": 2.0, "new_seconds": 1.0, "offline_seconds": 1.0, "gained": 1.0, "losses_differ": 1e-7,
                "why_kept": None}
        self.assertEqual(drift.misses([good], {"switches": 2, "flips": 20, "seconds": 600.0}), [])
        self.assertEqual(drift.misses([good | {"drift_after_steps": 31}], None), [])  # but soon
        self.assertEqual(drift.misses([good | {"drift_after_steps": 31, "drift_seconds": 9.0, "gained": 0.5}], {"switches": 3}),
                         ["speed, there: noticed after 31 steps, 9.0 s, not within 20 steps or 4 s",
                          "speed, there: 50% of the gain, not 80%", "flapping: 3 moves, more than 2"])
        stays = good | {"switch_seconds": None, "new_seconds": None, "gained": None}
        self.assertEqual(drift.misses([stays], None), ["speed, there: moved after - s, not within 60"])
        self.assertEqual(drift.misses([stays | {"offline_seconds": 1.98}], None), [])  # nothing to gain
        self.assertIn("| speed | there | 9 | 4.0 | 20.0 | 2000 | 1000 | 1000 | 100% | 1.0e-07 |", drift.markdown([good], None))

    def test_the_machines_of_all_changes_fit_two_cores_and_are_the_same_ones(self):
        for changed in (drift.BASE, *drift.CHANGES.values()):
            self.assertEqual(clusters.problems(changed, 2), [])
            self.assertEqual(clusters.devices(changed), clusters.devices(drift.BASE))
            self.assertEqual(clusters.homes(changed, 2), clusters.homes(drift.BASE, 2))


class RecordDrift(unittest.TestCase):
    def test_each_machine_changes_in_each_way_and_back(self):
        changes, steps = record_drift.schedule(1000, 1)
        self.assertEqual(changes[:4], [(1000, 0, 0.4, 1), (1300, 0, 1, 1), (1600, 0, 1, 0.25), (1900, 0, 1, 1)])
        self.assertEqual([change[1] for change in changes], [0] * 6 + [1] * 6 + [2] * 6)
        self.assertEqual(steps, 1000 + 18 * 300)

    def test_machines_that_change_are_the_same_ones_and_fit_two_cores(self):
        for rank, speed, rate in ((None, 1, 1), (1, 0.4, 0.25)):
            cluster = record_drift.cluster_of(rank, speed, rate)
            self.assertEqual(clusters.problems(cluster, 2), [])
            self.assertEqual([(round(machine.cpu, 9), machine.mbit) for machine in cluster.machines],
                             [(0.16, 50) if place == rank else (0.4, 200) for place in range(3)])

    def test_the_recording_has_probes_and_changes_before_the_exchange_from_which_they_hold(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for rank in range(3):
                (folder / f"rank-{rank}").write_text("".join(f"{rank}{line} 1 0 50 0\n" for line in range(5)))
            (folder / "links").write_text("0 1 1e-08 1e-04 0 \n0 1 2e-08 1e-04 0 \n")
            text = record_drift.text_of("load-4", folder, [(2, 1, 0.4, 1)], 8)
        self.assertEqual(text, """\
job load-4 7.2e-05 8 3
links 0 1 1e-08 1e-04 0
00 1 0 50 0 10 1 0 50 0 20 1 0 50 0
01 1 0 50 0 11 1 0 50 0 21 1 0 50 0
change 1 0.4 1
02 1 0 50 0 12 1 0 50 0 22 1 0 50 0
03 1 0 50 0 13 1 0 50 0 23 1 0 50 0
links 0 1 2e-08 1e-04 0
04 1 0 50 0 14 1 0 50 0 24 1 0 50 0
""")


if __name__ == "__main__":
    unittest.main()
