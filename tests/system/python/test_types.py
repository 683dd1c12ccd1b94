#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The types of the package's public functions and classes, without a type checker: none is missing."""

import inspect
import pathlib
import sys
import unittest

try:
    import torch  # noqa: F401: agpcs.torch needs it
except ImportError:
    print("skipped: PyTorch is not here")
    sys.exit(77)

import agpcs
import agpcs.torch

SPECIAL = ("__init__", "__iter__", "__len__", "__eq__", "__hash__", "__repr__", "__call__")


def functions_of(module):
    """(name, function) of what a module exports: functions, and public methods of classes that are defined here."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isfunction(value):
            yield f"{module.__name__}.{name}", value
        if not inspect.isclass(value):
            continue
        for method, function in vars(value).items():
            function = function.fget if isinstance(function, property) else inspect.unwrap(function)
            made = not inspect.isfunction(function) or "agpcs" not in function.__code__.co_filename  # by a decorator
            if not made and (method in SPECIAL or not method.startswith("_")):
                yield f"{module.__name__}.{name}.{method}", function


def untyped(function):
    """The parameters, and "return", without a type."""
    signature = inspect.signature(function)
    lacking = [name for name, parameter in signature.parameters.items()
               if name != "self" and parameter.annotation is parameter.empty]
    return lacking + ["return"] * (signature.return_annotation is signature.empty)


class Types(unittest.TestCase):
    def test_every_public_signature_has_all_types(self):
        signatures = dict(entry for module in (agpcs, agpcs.torch) for entry in functions_of(module))
        for name in ("agpcs.plan", "agpcs.Plan.report", "agpcs.torch.autoplan", "agpcs.torch.AutoPlan.summary",
                     "agpcs.torch.PlanSampler.shares", "agpcs.torch.PlanSampler.__iter__", "agpcs.torch.PlanState.reduce"):
            self.assertIn(name, signatures)
        self.assertEqual({name: lacking for name, function in signatures.items() if (lacking := untyped(function))}, {})

    def test_a_signature_without_a_type_is_found(self):
        self.assertEqual(untyped(lambda self, a, *, b=1: None), ["a", "b", "return"])

    def test_type_checkers_are_told_that_there_are_types(self):
        self.assertTrue(pathlib.Path(agpcs.__file__).with_name("py.typed").is_file())


if __name__ == "__main__":
    unittest.main()
