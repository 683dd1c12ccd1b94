# SPDX-License-Identifier: Apache-2.0
"""The commands that pip puts on the PATH."""

import os
import pathlib
import sys


def _become(command):
    file = pathlib.Path(__file__).with_name("bin") / command
    os.execv(file, [command, *sys.argv[1:]])


def compile_():
    _become("agpcs-compile")


def plan():
    _become("agpcs-plan")


def allreduce():
    _become("agpcs-allreduce")


def cluster():
    _become("agpcs-cluster")
