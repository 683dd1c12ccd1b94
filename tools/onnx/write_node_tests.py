# SPDX-License-Identifier: Apache-2.0
"""Writes ONNX's node tests as files: FOLDER/node/NAME/{model.onnx,test_data_set_0/...}.

    write_node_tests.py FOLDER

ONNX's own command writes its model tests alone; this one hands it the node tests in their place.
"""

import argparse
import sys

from onnx.backend.test import cmd_tools
from onnx.backend.test.case import node

cmd_tools.model_test = node
cmd_tools.generate_data(argparse.Namespace(output=sys.argv[1]))
