#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of what the paper's table computes; no plan is made."""

import unittest

import paper_table


def plan(step, exposed, bound=None, seed=None, sent=0, **use):
    devices = [{"device": name, "utilization": part, "exposed_communication_seconds": exposed / max(1, len(use))}
               for name, part in use.items()]
    report = {"step_seconds": step, "seed_step_seconds": seed, "bytes_sent": sent, "devices": devices}
    return paper_table.figures(report | ({"lower_bound_seconds": bound} if bound else {}))


class PaperTable(unittest.TestCase):
    def test_the_goal_is_reached_against_both_baselines(self):
        baselines = {"degree": plan(2.0, 1.0, a=1), "equal": plan(1.0, 0.4, a=1)}
        self.assertEqual(paper_table.missed(plan(0.79, 0.33, a=1), baselines), [])
        self.assertEqual(paper_table.missed(plan(0.85, 0.36, a=1), baselines),
                         ["15.0% shorter than equal, not 20%", "10.0% less exposed communication than equal, not 15%"])

    def test_a_plan_near_its_bound_is_good_enough(self):
        baselines = {"equal": plan(1.0, 0.4, a=1)}
        self.assertEqual(paper_table.missed(plan(1.0, 0.4, bound=0.98, a=1), baselines), [])
        self.assertEqual(len(paper_table.missed(plan(1.0, 0.4, bound=0.9, a=1), baselines)), 2)

    def test_a_baseline_that_does_not_fit_is_not_compared_with(self):
        baselines = {"degree": None, "equal": plan(2.0, 0, a=1)}
        self.assertEqual(paper_table.missed(plan(1.0, 0, a=1), baselines), [])
        self.assertEqual(paper_table.missed(plan(1.0, 0.1, a=1), baselines),
                         ["not less exposed communication than equal, not 15%"])
        row = paper_table.step_row("m", "c", plan(1.0, 0, a=1), baselines)
        self.assertEqual(row, ["m", "c", "-", "2000.0", "1000.0", "-", "50%", "-", "-", "-"])
        row = paper_table.network_row("m", "c", plan(1.0, 0, a=1), baselines)
        self.assertEqual(row, ["m", "c", "-", "0.0", "0.0", "-", "-", "-", "0.0", "0.0", "-", "-"])

    def test_what_the_search_gained_is_told_apart_from_what_the_best_seed_gained(self):
        baselines = {"degree": plan(4.0, 0, a=1), "equal": plan(2.0, 0, a=1)}
        row = paper_table.step_row("m", "c", plan(1.0, 0, bound=0.8, seed=1.0045, a=1), baselines)
        self.assertEqual(row, ["m", "c", "4000.0", "2000.0", "1000.0", "75%", "50%", "0.45%", "800.0", "25.0%"])
        self.assertEqual(len(row), len(paper_table.STEP_HEAD))

    def test_bytes_sent_stand_beside_exposed_time(self):
        baselines = {"degree": plan(4.0, 0.4, sent=5e6, a=1), "equal": plan(2.0, 0.2, sent=2e6, a=1)}
        row = paper_table.network_row("m", "c", plan(1.0, 0.1, sent=2e6, a=1), baselines)
        self.assertEqual(row, ["m", "c", "400.0", "200.0", "100.0", "75%", "50%", "5.0", "2.0", "2.0", "60%", "0%"])
        self.assertEqual(len(row), len(paper_table.NETWORK_HEAD))

    def test_devices_that_are_used_alike_are_one_line_and_those_left_out_do_nothing(self):
        before = plan(1, 0, **{"a/0": 0.5, "a/1": 0.5, "b/0": 0.25})
        self.assertEqual(paper_table.use_chart(before, plan(1, 0, **{"a/0": 1.0, "a/1": 1.0})),
                         "            before (equal)             after (ours)\n"
                         "a/0 .. a/1  ##########..........   50%  ####################  100%\n"
                         "b/0         #####...............   25%  ....................    0%")


if __name__ == "__main__":
    unittest.main()
