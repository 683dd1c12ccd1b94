#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_options.py on small pages and helps."""

import unittest

import check_options

HELP = """Does something.
Usage: agpcs-some [OPTIONS] file

Positionals:
  file TEXT REQUIRED          with --no-option

Options:
  -h,--help                   Print this help message and exit
  -o,--output TEXT            the file, by --nothing
  --save-every INT:POSITIVE Needs: --save
                              --also so many steps
  -q                          no progress

Examples:
  agpcs-some --example
"""
PAGE = """# agpcs-some

`--elsewhere` is of another command.

| option | meaning |
| --- | --- |
| `-o FILE` | see `--elsewhere` |
| `--save-every N`, `-q` | |
| `-h`, `--help` | |

| launcher | options |
| --- | --- |
| `other --elsewhere` | |
"""


class Options(unittest.TestCase):
    def test_a_page_with_all_options_is_good(self):
        self.assertEqual(check_options.problems("agpcs-some", [HELP], PAGE), [])

    def test_an_option_that_the_page_lacks(self):
        self.assertEqual(check_options.problems("agpcs-some", [HELP], PAGE.replace(", `-q`", "")),
                         ["agpcs-some: -q is in --help, and in no table of its page"])
        self.assertEqual(check_options.problems("agpcs-some", [HELP], PAGE.replace("| `-o FILE` |", "| FILE |")),
                         ["agpcs-some: --output/-o is in --help, and in no table of its page"])
        self.assertEqual(len(check_options.problems("agpcs-some", [HELP], "no table at all")), 4)

    def test_an_option_that_only_the_page_has(self):
        self.assertEqual(check_options.problems("agpcs-some", [HELP], PAGE.replace("`-q`", "`-q`, `--quiet`")),
                         ["agpcs-some: its page has --quiet, which is not in --help"])

    def test_commands_of_a_command_have_their_options_in_usages(self):
        page = PAGE + "\n| command | says |\n| --- | --- |\n| `some PLAN [--model M \\| -x]` | `--other` |\n"
        self.assertEqual(check_options.problems("agpcs-some", [HELP, "Options:\n  --model TEXT\n  -x  FLAG\n"], page), [])

    def test_a_help_without_options_is_not_understood(self):
        self.assertEqual(check_options.problems("agpcs-some", ["usage: none"], PAGE)[-1],
                         "agpcs-some: --help lists no option")


if __name__ == "__main__":
    unittest.main()
