#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_definitions.py: single and double definitions in small sources."""

import unittest

import check_definitions


def names_in(text):
    """What is defined in `text` as a source."""
    return [definition.name for definition in check_definitions.Reader("ir/a.cc", text).read()]


def within(text):
    return f"// SPDX\n#include <x>\nnamespace agpcs {{\n{text}\n}}  // namespace agpcs\n"


def errors_of(product, tests=None):
    """The checker's errors on such files, {path: text within namespace agpcs}."""
    def read(files):
        return [definition for path, text in (files or {}).items()
                for definition in check_definitions.Reader(path, within(text)).read()]
    return check_definitions.doubles(read(product), read(tests))


class Definitions(unittest.TestCase):
    """What counts as one."""

    def assert_defines(self, text, *names):
        self.assertEqual(names_in(within(text)), [f"agpcs::{name}" for name in names])

    def test_types(self):
        self.assert_defines("struct A { int a = 0; };", "A")
        self.assert_defines("class A final : public B<C>, private D {\n void f() { if (x) { y(); } }\n};", "A")
        self.assert_defines("enum class A : std::uint8_t { kOne };\nenum B { kTwo };\nunion C { int a; };", "A", "B", "C")
        self.assert_defines("template <typename T, class U = V>\nclass A { T t; };", "A")
        self.assert_defines("template <>\nstruct A<int> {};", "A<int>")
        self.assert_defines("struct [[nodiscard]] A {};\nstruct A::B {};", "A", "A::B")
        self.assert_defines("using A = std::vector<int>;\ntemplate <typename T>\nusing B = C<T>;", "A", "B")

    def test_functions(self):
        self.assert_defines("int f() { return 1; }\nvoid g(const A& a, std::map<int, B> b = {}, int) {}",
                            "f()", "g(const A&, std::map<int,B>, int)")
        self.assert_defines("inline bool operator==(const A& a, const A& b) { return a.x == b.x; }",
                            "operator==(const A&, const A&)")
        self.assert_defines("template <typename T>\nT f(T value, const char* name) { return value; }", "f(T, const char*)")

    def test_variables(self):
        self.assert_defines("inline constexpr int kA = 3;\ninline const std::vector<int> kB{1, 2};\nint c = 4;",
                            "kA", "kB", "c")

    def test_inner_namespaces(self):
        self.assert_defines("namespace testing { struct A {}; }\nnamespace b::c { void f() {} }",
                            "testing::A", "b::c::f()")

    def test_no_declarations(self):
        self.assert_defines("class A;\nenum class B : int;\nextern int c;\nint f(int a);\nusing std::swap;\n"
                            "namespace fs = std::filesystem;\nstatic_assert(sizeof(int) == 4, \"\");")

    def test_nothing_without_linkage(self):
        self.assert_defines("namespace {\nstruct A {};\nvoid f() {}\n}\nstatic void g() {}\nconstexpr int kA = 1;\n"
                            "const char* const kB = \"\";")

    def test_nothing_within_types_and_functions(self):
        self.assert_defines("class A {\n struct B { int b; };\n void f() { struct C {}; }\n};\n"
                            "void A::f() { struct D {}; }\nA::A() : a_{1}, b_(2) {}\nA& A::operator=(A&& a) { return *this; }",
                            "A")

    def test_nothing_outside_of_agpcs(self):
        self.assertEqual(names_in("struct A {};\nnamespace other { struct B {}; }\nextern \"C\" { void f() {} }"), [])

    def test_nothing_in_comments_literals_and_other_branches(self):
        self.assert_defines("// struct A {};\n/* struct B {}; */\nconst char* const kText = R\"(} struct C {};)\";\n"
                            "const char kBrace = '}';\n#if X\nvoid f() {\n#else\nvoid f(int a) {\n#endif\n}", "f()")

    def test_a_text_that_is_not_read_right_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "^ir/a.cc:3: a '}' too many, as this script reads it$"):
            names_in("namespace agpcs {\n}\n}\n")


class Doubles(unittest.TestCase):
    def test_accepts_one_of_each(self):
        self.assertEqual(errors_of({"cost_model/a.h": "struct A {};", "runtime/a.h": "struct B {};"},
                                   {"tests/ir/a_test.cc": "struct C {};"}), [])

    def test_refuses_a_type_in_two_headers(self):
        self.assertEqual(errors_of({"cost_model/a.h": "struct A {\n int a;\n};", "runtime/b.h": "\nclass A {};"}),
                         ["runtime/b.h:5: 'agpcs::A' is defined in cost_model/a.h:4, too"])

    def test_refuses_a_type_in_a_header_and_a_source(self):
        self.assertEqual(errors_of({"cost_model/a.h": "struct A {};", "runtime/b.cc": "enum class A { kB };"}),
                         ["runtime/b.cc:4: 'agpcs::A' is defined in cost_model/a.h:4, too"])
        self.assertEqual(errors_of({"cost_model/a.h": "struct A {};", "runtime/b.cc": "namespace { struct A {}; }"}), [])

    def test_refuses_an_alias_by_the_name_of_a_type(self):
        self.assertEqual(errors_of({"cost_model/a.h": "struct A {};", "runtime/b.h": "using A = int;"}),
                         ["runtime/b.h:4: 'agpcs::A' is defined in cost_model/a.h:4, too"])

    def test_refuses_a_function_with_the_same_types_only(self):
        self.assertEqual(errors_of({"cost_model/a.cc": "inline int f(int a) { return a; }",
                                    "runtime/b.cc": "template <typename T>\nint f(int b) { return 2; }",
                                    "runtime/c.cc": "inline int f(double a) { return 3; }"}),
                         ["runtime/b.cc:5: 'agpcs::f(int)' is defined in cost_model/a.cc:4, too"])

    def test_refuses_what_a_test_defines_again(self):
        self.assertEqual(errors_of({"cost_model/a.h": "struct A {};"}, {"tests/ir/a_test.cc": "struct A {};"}),
                         ["tests/ir/a_test.cc:4: 'agpcs::A' is defined in cost_model/a.h:4, too"])
        self.assertEqual(errors_of({}, {"tests/ir/a_test.cc": "struct A {};", "tests/ir/b.h": "struct A {};"}),
                         ["tests/ir/a_test.cc:4: 'agpcs::A' is defined in tests/ir/b.h:4, too"])

    def test_lets_two_tests_define_what_is_theirs(self):
        self.assertEqual(errors_of({}, {"tests/ir/a_test.cc": "struct A {};", "tests/ir/b_test.cc": "struct A {};"}), [])

    def test_lets_alternatives_define_the_same(self):
        text = "bool can_add_on_gpu() { return false; }"
        self.assertEqual(errors_of({"runtime/nccl/sum.cu": text, "runtime/nccl/sum_absent.cc": text}), [])


if __name__ == "__main__":
    unittest.main()
