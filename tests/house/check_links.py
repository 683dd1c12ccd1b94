#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a link in the documentation that leads nowhere.

The documentation is every *.md in the root and all of docs/**/*.md. Rules:
  * a link to a file is relative to its page, stays in the repository, and names a file or folder that exists;
  * the `#anchor` of a link to a page is the slug that GitHub makes of one of its headings, or the id of an HTML tag.
Links that begin with a scheme (https:, mailto:) are not looked at, and code is no link.
"""

import argparse
import pathlib
import re
import sys
import urllib.parse

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
LIST_ITEM = re.compile(r"^\s*([-*+]|\d+[.)])\s")
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
INLINE_LINK = re.compile(r"\]\(\s*<?([^()\s<>]*(?:\([^()\s]*\)[^()\s<>]*)*)>?(?:\s+(?:\"[^\"]*\"|'[^']*'))?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)>?")
HTML_LINK = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)\s*=\s*[\"']([^\"']*)[\"']", re.I)
HTML_ID = re.compile(r"<\w+\b[^>]*?\b(?:id|name)\s*=\s*[\"']([^\"']+)[\"']", re.I)
SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*:|//)", re.I)


def lines_of_text(text):
    """(number, line) of every line of a page that is not in a code block."""
    fence, in_list, code_may_begin = None, False, True
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if fence:
            if mark and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = None
            continue
        if mark:
            fence = mark[1]
            continue
        if not line.strip():
            code_may_begin = True
            continue
        indented = line.startswith(("    ", "\t"))
        if indented and code_may_begin and not in_list:
            continue
        code_may_begin = False
        if LIST_ITEM.match(line):
            in_list = True
        elif not line.startswith(" "):
            in_list = False
        yield number, line


def slug(heading):
    """The anchor that GitHub gives a heading: its text in lower case, punctuation left out, blanks as hyphens."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)  # of a link, the words
    text = re.sub(r"<[^>]+>", "", text)
    text = re.sub(r"(?<!\w)_(.+?)_(?!\w)", r"\1", text)  # of emphasis, the words
    text = re.sub(r"[*`]", "", text)
    text = re.sub(r"[^\w\- ]", "", text.lower())
    return text.replace(" ", "-")


def anchors_of(text):
    """Every anchor of a page. A slug that a page has twice gets -1 the second time, then -2."""
    anchors, seen = set(), {}
    for _, line in lines_of_text(text):
        anchors.update(HTML_ID.findall(line))
        if match := HEADING.match(line):
            name = slug(match[2])
            anchors.add(f"{name}-{seen[name]}" if name in seen else name)
            seen[name] = seen.get(name, 0) + 1
    return anchors


def links_of(text):
    """(line number, target) of every link of a page."""
    for number, line in lines_of_text(text):
        line = CODE_SPAN.sub("`code`", line)
        for pattern in (INLINE_LINK, REFERENCE, HTML_LINK):
            for target in pattern.findall(line):
                yield number, target


class Checker:
    def __init__(self, root):
        self.root = root.resolve()
        self.links = 0
        self.anchors = {}  # page -> its anchors

    def pages(self):
        return sorted(self.root.glob("*.md")) + sorted((self.root / "docs").rglob("*.md"))

    def run(self):
        errors = []
        for page in self.pages():
            where = page.relative_to(self.root).as_posix()
            for number, target in links_of(page.read_text(encoding="utf-8")):
                self.links += 1
                if why := self.fault_of(page, target):
                    errors.append(f"{where}:{number}: {target}: {why}")
        return errors

    def fault_of(self, page, target):
        """What is wrong with a link of `page`; None if nothing is."""
        if SCHEME.match(target):
            return None
        if target.startswith("/"):
            return "a link to a file is relative to its page"
        path, _, anchor = target.partition("#")
        file = (page.parent / urllib.parse.unquote(path)).resolve() if path else page
        if not file.is_relative_to(self.root):
            return "leaves the repository"
        if not file.exists():
            return "there is no such file"
        if not anchor or file.suffix != ".md":
            return None
        if file not in self.anchors:
            self.anchors[file] = anchors_of(file.read_text(encoding="utf-8"))
        if urllib.parse.unquote(anchor) in self.anchors[file]:
            return None
        return f"{file.relative_to(self.root).as_posix()} has no heading #{anchor}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    checker = Checker(parser.parse_args().root)
    errors = checker.run()
    for error in errors:
        print(error)
    print(f"check_links: {len(checker.pages())} pages, {checker.links} links, {len(errors)} errors")
    return 1 if errors or not checker.links else 0


if __name__ == "__main__":
    sys.exit(main())
