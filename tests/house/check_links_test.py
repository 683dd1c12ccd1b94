#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_links.py: right and wrong links in a small tree of its own."""

import pathlib
import tempfile
import unittest

import check_links

PAGE = """# The page

## What is read: files, pipes & `--config`

## Twice

## Twice

## [A link](https://example.org) in an _important_ heading, `with_code`

<a id="by-hand"></a>

```
## In code
```
"""


def errors_of(text, page="README.md", files=()):
    """The checker's errors on a tree in which `page` has `text`, beside docs/page.md, tools/run.sh and `files`."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, content in {"docs/page.md": PAGE, "tools/run.sh": "", **dict(files), page: text}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
        return check_links.Checker(root).run()


class CheckLinksTest(unittest.TestCase):
    def assert_refused(self, link, why, page="README.md"):
        self.assertEqual(errors_of(f"a line\n[words]({link})\n", page), [f"{page}:2: {link}: {why}"])

    def assert_accepted(self, *links, page="README.md"):
        self.assertEqual(errors_of("".join(f"[words]({link})\n" for link in links), page), [])

    def test_accepts_files_and_folders_that_exist(self):
        self.assert_accepted("docs/page.md", "docs", "tools/run.sh", "tools/run.sh#L3", "./docs/../docs/page.md")
        self.assert_accepted("page.md", "../tools/run.sh", "../docs/page.md#twice", page="docs/other.md")

    def test_accepts_other_schemes(self):
        self.assert_accepted("https://example.org/none.md#none", "mailto:a@example.org", "http://example.org/a_(b)")

    def test_refuses_a_file_that_does_not_exist(self):
        self.assert_refused("docs/pages.md", "there is no such file")
        self.assert_refused("docs/page.md", "there is no such file", page="docs/other.md")
        self.assert_refused("docs/Page.md", "there is no such file")

    def test_refuses_a_path_from_the_root(self):
        self.assert_refused("/docs/page.md", "a link to a file is relative to its page")

    def test_refuses_a_link_out_of_the_repository(self):
        self.assert_refused("../outside.md", "leaves the repository")

    def test_knows_the_anchors_of_githubs_headings(self):
        self.assert_accepted("docs/page.md#the-page", "docs/page.md#what-is-read-files-pipes----config",
                             "docs/page.md#twice", "docs/page.md#twice-1",
                             "docs/page.md#a-link-in-an-important-heading-with_code", "docs/page.md#by-hand")

    def test_refuses_an_anchor_without_a_heading(self):
        for anchor in ("twice-2", "The-page", "what-is-read", "in-code"):
            self.assert_refused(f"docs/page.md#{anchor}", f"docs/page.md has no heading #{anchor}")

    def test_looks_at_anchors_of_the_same_page(self):
        self.assertEqual(errors_of("# Here\n[there](#here)\n[nowhere](#there)\n"),
                         ["README.md:3: #there: README.md has no heading #there"])

    def test_looks_at_images_references_and_html(self):
        text = '![picture](a.svg)\n\n[words]: b.md "title"\n<img alt="" src="c.svg">\n<a href="d.md">d</a>\n'
        self.assertEqual(errors_of(text),
                         [f"README.md:{line}: {file}: there is no such file"
                          for line, file in ((1, "a.svg"), (3, "b.md"), (4, "c.svg"), (5, "d.md"))])

    def test_looks_at_every_link_of_a_line_and_a_table(self):
        self.assertEqual(errors_of("| [a](a.md) | [page](docs/page.md) | [b](b.md \"title\") |\n"),
                         ["README.md:1: a.md: there is no such file", "README.md:1: b.md: there is no such file"])

    def test_does_not_look_at_code(self):
        self.assertEqual(errors_of("`[a](a.md)` and ``[b](`b.md)``\n\n    [c](c.md)\n\n```text\n[d](d.md)\n```\n"), [])

    def test_looks_at_indented_lines_of_a_list(self):
        self.assertEqual(errors_of("- item\n\n    [a](a.md)\n"), ["README.md:3: a.md: there is no such file"])

    def test_looks_at_pages_of_the_root_and_of_docs(self):
        files = {page: "[a](a.md)" for page in ("CONTRIBUTING.md", "docs/start/x.md", "tests/fuzz/README.md")}
        self.assertEqual(errors_of("", files=files), ["CONTRIBUTING.md:1: a.md: there is no such file",
                                                      "docs/start/x.md:1: a.md: there is no such file"])


if __name__ == "__main__":
    unittest.main()
