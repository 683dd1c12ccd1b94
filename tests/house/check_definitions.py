#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on two definitions of one name in namespace agpcs.

Two sources that never include each other may both define `agpcs::X` without a word from compiler or linker, which keeps
one of the two destructors for both types. What counts is what has linkage: in agpcs or a namespace within it, in no
unnamed namespace, and no `static` function or plain constant. Rules:
  * the product defines each type (class, struct, union, enum, alias) once, in headers and .cc files alike;
  * it defines each free function (by name and types of parameters) and each variable once;
  * a test or benchmark, which is linked with the product, defines nothing that the product defines;
  * what a header of the tests defines is defined nowhere else in the tests.
"""

import argparse
import collections
import pathlib
import re
import sys
from typing import NamedTuple

PRODUCT = ["ir", "frontend", "cost_model", "codegen", "planner", "runtime", "tools"]
TESTS = "tests"
SOURCES = {".h", ".cc", ".cu"}
NAMESPACE = "agpcs"
# Of these files a program is linked with one.
ALTERNATIVES = {"runtime/nccl/sum.cu", "runtime/nccl/sum_absent.cc", "runtime/torch/ops/draw.cu", "runtime/torch/ops/draw_absent.cc",
                "tests/runtime/nccl/emulated_cuda.cc"}
KEYS = {"class", "struct", "union", "enum"}
FUNDAMENTAL = {"auto", "bool", "char", "const", "double", "float", "int", "long", "short", "signed", "unsigned", "void"}
PAIRS = {"(": ")", "[": "]", "{": "}"}

TOKEN = re.compile(r"""
    (?P<space>\s+ | //(?:[^\n\\]|\\.)* | /\*.*?\*/)
  | (?P<literal>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"
              | (?:u8|[uUL])?"(?:\\.|[^"\\\n])*" | (?:u8|[uUL])?'(?:\\.|[^'\\\n])*')
  | (?P<number>\.?[0-9](?:'?[0-9a-zA-Z_.])*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<sign>::|\[\[|\]\]|.)
""", re.VERBOSE | re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w+)(?:[^\n\\]|\\.)*", re.MULTILINE | re.DOTALL)


class Token(NamedTuple):
    text: str
    line: int

    def is_word(self):
        return self.text[0].isalpha() or self.text[0] == "_"


class Definition(NamedTuple):
    name: str  # agpcs::X, agpcs::f(int, const Plan&)
    file: str
    line: int


def without_directives(text):
    """`text` with each preprocessor line blank, and each branch of an #if but the first."""
    kept, at, left_out = [], 0, []  # left_out: of each open #if, whether the present branch is
    for match in DIRECTIVE.finditer(text):
        before = text[at:match.start()]
        kept += ["\n" * before.count("\n") if any(left_out) else before, "\n" * match[0].count("\n")]
        at = match.end()
        if match[1] in ("if", "ifdef", "ifndef"):
            left_out.append(False)
        elif match[1] in ("else", "elif"):
            left_out[-1] = True
        elif match[1] == "endif":
            left_out.pop()
    return "".join(kept) + text[at:]


def tokens_of(text):
    """The tokens of a source: without comments and attributes, each literal as \"\"."""
    tokens, line, attributes = [], 1, 0
    for match in TOKEN.finditer(without_directives(text)):
        if match[0] in ("[[", "]]"):
            attributes += 1 if match[0] == "[[" else -1
        elif not match["space"] and attributes == 0:
            tokens.append(Token('""' if match["literal"] else match[0], line))
        line += match[0].count("\n")
    return tokens


def words_of(tokens):
    return [token.text for token in tokens]


def after_pair(tokens, at, opening, closing):
    """One after the bracket that closes the one at `at`."""
    depth = 0
    while at < len(tokens):
        depth += (tokens[at].text == opening) - (tokens[at].text == closing)
        at += 1
        if depth == 0:
            return at
    return at


def parameter_type(tokens):
    """The type of a parameter: without its name and its default."""
    words = words_of(tokens)
    if "=" in words:
        tokens, words = tokens[:words.index("=")], words[:words.index("=")]
    named = len(words) > 1 and tokens[-1].is_word() and words[-1] not in FUNDAMENTAL
    if named and words[-2] not in ("::", "const", "typename", *KEYS):
        words.pop()
    return "".join(f"{word} " if word == "const" else word for word in words)


def parameter_types(tokens):
    """The types of the parameters between a function's parentheses."""
    types, begin, depth = [], 0, 0
    for at, token in enumerate(tokens):
        depth += (token.text in "([{<") - (token.text in ")]}>")
        if token.text == "," and depth == 0:
            types.append(parameter_type(tokens[begin:at]))
            begin = at + 1
    types.append(parameter_type(tokens[begin:]) if tokens[begin:] else "")
    return ", ".join(types)


class Reader:
    """Collects what one source defines in NAMESPACE with linkage."""

    def __init__(self, file, text):
        self.file = file
        self.tokens = tokens_of(text)
        self.found = []

    def read(self):
        at = 0
        while at < len(self.tokens):
            if self.tokens[at].text == "}":
                raise ValueError(f"{self.file}:{self.tokens[at].line}: a '}}' too many, as this script reads it")
            at = self.read_declaration(at, [])
        return self.found

    def read_namespace(self, at, names):
        """Reads up to the end of the namespace `names`, in which "" stands for an unnamed one."""
        while at < len(self.tokens) and self.tokens[at].text != "}":
            at = self.read_declaration(at, names)
        return at + 1

    def read_declaration(self, at, names):
        words = words_of(self.tokens[at:at + 3])
        if words == ["extern", '""', "{"]:
            return self.read_namespace(at + 3, names)
        if "namespace" in words[:2] and words[0] in ("namespace", "inline"):
            brace = at
            while self.tokens[brace].text not in "{;":
                brace += 1
            if self.tokens[brace].text == ";":
                return brace + 1
            inner = [token.text for token in self.tokens[at + 1:brace]
                     if token.is_word() and token.text != "namespace"]
            return self.read_namespace(brace + 1, names + (inner or [""]))
        end = self.end_of_declaration(at)
        if names[:1] == [NAMESPACE] and "" not in names:
            self.note(self.tokens[at:end], "::".join(names))
        return end

    def end_of_declaration(self, at):
        """One after the ';' that ends it, or the '}' of a function's body."""
        is_type, value = self.is_type(at), False
        while at < len(self.tokens):
            text = self.tokens[at].text
            if text == ";":
                return at + 1
            value = value or (text == "=" and self.tokens[at - 1].text != "operator")
            if text not in PAIRS:
                at += 1
                continue
            at = after_pair(self.tokens, at, text, PAIRS[text])
            following = self.tokens[at].text if at < len(self.tokens) else ""
            if text == "{" and not is_type and not value and following not in (";", ",", "{"):
                return at
        return at

    def after_template(self, at):
        while words_of(self.tokens[at:at + 2]) == ["template", "<"]:
            at = after_pair(self.tokens, at + 1, "<", ">")
        return at

    def is_type(self, at):
        """Whether a class, struct, union or enum is declared or defined there."""
        at = self.after_template(at)
        if at >= len(self.tokens) or self.tokens[at].text not in KEYS:
            return False
        while at < len(self.tokens) and (self.tokens[at].is_word() or self.tokens[at].text == "::"):
            at += 1
            if self.tokens[at].text == "<":
                at = after_pair(self.tokens, at, "<", ">")
        name_ends = self.tokens[at - 1].text
        return self.tokens[at].text in ("{", ":", ";") and name_ends not in KEYS

    def note(self, tokens, namespace):
        """Notes what the declaration defines, if anything."""
        template = 0
        while words_of(tokens[template:template + 2]) == ["template", "<"]:
            template = after_pair(tokens, template + 1, "<", ">")
        head = tokens[template:]
        name = self.name_of_type(head) or self.name_of_function(head) or self.name_of_variable(head)
        if name:
            self.found.append(Definition(f"{namespace}::{name}", self.file, head[0].line))

    def name_of_type(self, head):
        """X of `using X = ...;` and of `struct X final : Y {...};`"""
        words = words_of(head)
        if words[0] == "using":
            return words[1] if words[2:3] == ["="] else None
        if words[0] not in KEYS or "{" not in words:
            return None
        words = words[1:words.index("{")]
        if words[:1] in (["class"], ["struct"]):  # of `enum class`
            words.pop(0)
        if ":" in words:
            words = words[:words.index(":")]
        if words[-1:] == ["final"]:
            words.pop()
        of_type = "(" not in words and "=" not in words
        return "".join(words) if of_type and not ("<" not in words and self.are_two_names(words)) else None

    @staticmethod
    def are_two_names(words):
        """Whether it is `struct X x{...};`."""
        return len(words) > 1 and "::" not in words

    def name_of_function(self, head):
        """f(int) of `int f(int a) {...}`; none of a member's, of `static` ones and of declarations."""
        words = words_of(head)
        if head[-1].text != "}" or "(" not in words or "static" in words[:words.index("(")]:
            return None
        open_at = words.index("(")
        if "operator" in words[:open_at]:
            begin = words.index("operator")
            if words[open_at:open_at + 2] == ["(", ")"] and open_at == begin + 1:
                open_at += 2
        else:
            begin = open_at - 1
        if "=" in words[:begin] or words[begin - 1] == "::" or not head[begin].is_word():
            return None
        close = after_pair(head, open_at, "(", ")")
        return f"{''.join(words[begin:open_at])}({parameter_types(head[open_at + 1:close - 1])})"

    def name_of_variable(self, head):
        """x of `inline int x = 1;`; none of constants that are not inline, and of declarations."""
        words = words_of(head)
        ends = [words.index(sign) for sign in "={[;" if sign in words]
        if not ends or words[0] in {"extern", "friend", "static_assert", "static", "typedef", *KEYS}:
            return None
        before = words[:min(ends)]
        if "(" in before or "::" in before[-2:-1] or not before or not head[len(before) - 1].is_word():
            return None
        constant = "constexpr" in before or "const" in before
        return before[-1] if len(before) > 1 and ("inline" in before or not constant) else None


def sources_of(root, folder):
    return sorted(path for path in (root / folder).rglob("*") if path.suffix in SOURCES)


def read_folder(root, folder):
    found = []
    for path in sources_of(root, folder):
        found += Reader(path.relative_to(root).as_posix(), path.read_text()).read()
    return found


def doubles(product, tests):
    """The errors among the definitions of product and tests."""
    by_name = collections.defaultdict(list)
    for definition in product + tests:
        by_name[definition.name].append(definition)
    errors = []
    of_tests = set(tests)
    for name, all_of_it in by_name.items():
        shared = [d for d in all_of_it if d not in of_tests or d.file.endswith(".h")]
        if len(all_of_it) < 2 or not shared:
            continue
        first = shared[0]
        errors += [f"{d.file}:{d.line}: '{name}' is defined in {first.file}:{first.line}, too"
                   for d in all_of_it if d != first and not {d.file, first.file} <= ALTERNATIVES]
    return sorted(errors)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    product = [definition for folder in PRODUCT for definition in read_folder(root, folder)]
    tests = read_folder(root, TESTS)
    errors = doubles(product, tests)
    for error in errors:
        print(error)
    if errors:
        print("  hint: rename one, or put it into an unnamed namespace of its .cc file")
    print(f"check_definitions: {len(product) + len(tests)} definitions, {len(errors)} errors")
    return 1 if errors or not product else 0


if __name__ == "__main__":
    sys.exit(main())
