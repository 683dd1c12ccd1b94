#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether AGPCS takes models that nobody else takes: changes ONNX's node tests at random, one fault
a model, and compares the importer's verdict with those of ONNX's checker (with strict shape
inference) and of ONNX Runtime (a session, and a run with the test's own inputs where they fit).

    mutated_models.py NODE_TESTS [--models 10000] [--seed 1] [--keep FOLDER] [--refused]

A model that AGPCS accepts and both others refuse is a finding, unless AGPCS warns that values differ
from what the file declares: it is printed with the fault and both reasons, and kept in FOLDER. Exit code 1: there are findings. What ONNX Runtime has no kernel for is
not refused by it. Needs PyPI's onnx and onnxruntime; NODE_TESTS is the folder of onnx's
backend/test/data/node, which tools/install_deps.sh --tests keeps.
"""
import argparse
import collections
import multiprocessing
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
INTEGERS = (-(2 ** 31), -3, -2, -1, 0, 1, 2, 3, 5, 7, 2 ** 20)
TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.DOUBLE, onnx.TensorProto.BOOL,
         onnx.TensorProto.FLOAT16, onnx.TensorProto.INT32)


def other(rng, choices, than):
    """Returns one of `choices` that is not `than`."""
    return rng.choice([choice for choice in choices if choice != than])


def needed_nodes(model):
    """Returns the nodes that an output of the graph depends on: faults elsewhere are in no one's way."""
    makers = {output: node for node in model.graph.node for output in node.output if output}
    open_names, needed = [output.name for output in model.graph.output], {}
    while open_names:
        node = makers.get(open_names.pop())
        if node is not None and id(node) not in needed:
            needed[id(node)] = node
            open_names += node.input
    return list(needed.values())


def fault_in_attribute(model, rng):
    """Changes, shortens, lengthens or removes an attribute."""
    attributes = [(node, attribute) for node in needed_nodes(model) for attribute in node.attribute
                  if attribute.type in (onnx.AttributeProto.INT, onnx.AttributeProto.INTS, onnx.AttributeProto.STRING)]
    if not attributes:
        return None
    node, attribute = rng.choice(attributes)
    kind = attribute.type
    if rng.random() < 0.15:
        node.attribute.remove(attribute)
        return f"{node.op_type} without {attribute.name}"
    if kind == onnx.AttributeProto.INT:
        attribute.i = other(rng, INTEGERS, attribute.i)
        value = attribute.i
    elif kind == onnx.AttributeProto.STRING:
        attribute.s = rng.choice((b"BOGUS", b"", b"valid", b"SAME"))
        value = attribute.s
    else:
        how = rng.random()
        if attribute.ints and how < 0.6:
            at = rng.randrange(len(attribute.ints))
            attribute.ints[at] = other(rng, INTEGERS, attribute.ints[at])
        elif attribute.ints and how < 0.8:
            del attribute.ints[-1]
        else:
            attribute.ints.append(rng.choice(INTEGERS))
        value = list(attribute.ints)
    return f"{node.op_type} with {attribute.name}={value}"


def tensor_inputs(model):
    return [value for value in model.graph.input if value.type.tensor_type.HasField("shape")]


def fault_in_shape(model, rng):
    """Changes, drops or adds an extent of an input."""
    inputs = tensor_inputs(model)
    if not inputs:
        return None
    value = rng.choice(inputs)
    dims = value.type.tensor_type.shape.dim
    how = rng.random()
    if len(dims) and how < 0.7:
        at = rng.randrange(len(dims))
        dims[at].dim_value = other(rng, (1, 2, 3, 4, 5, 7, 11), dims[at].dim_value)
    elif len(dims) and how < 0.85:
        del dims[rng.randrange(len(dims))]
    else:
        dims.add().dim_value = rng.choice((1, 2, 3))
    return f"input {value.name} of {[dim.dim_value for dim in dims]}"


def fault_in_type(model, rng):
    """Gives an input another element type."""
    inputs = tensor_inputs(model)
    if not inputs:
        return None
    value = rng.choice(inputs)
    value.type.tensor_type.elem_type = other(rng, TYPES, value.type.tensor_type.elem_type)
    return f"input {value.name} of {onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)}"


def fault_in_edges(model, rng):
    """Drops, doubles, swaps or empties inputs of a node, or renames one."""
    node = rng.choice(needed_nodes(model))
    if not node.input:
        return None
    at = rng.randrange(len(node.input))
    how = rng.randrange(5)
    if how == 0:
        del node.input[at]
        return f"{node.op_type} without input {at}"
    if how == 1:
        node.input.append(node.input[at])
        return f"{node.op_type} with input {at} once more"
    if how == 2:
        node.input[at] = ""
        return f"{node.op_type} with an empty input {at}"
    if how == 3:
        node.input[at] = "nobody_writes_this"
        return f"{node.op_type} with an input {at} that nothing writes"
    node.input[at], node.input[0] = node.input[0], node.input[at]
    return f"{node.op_type} with inputs 0 and {at} swapped" if at else None


def fault_in_operator(model, rng):
    """Gives a node another operator, domain or outputs."""
    node = rng.choice(needed_nodes(model))
    how = rng.randrange(4)
    if how == 0:
        node.op_type = other(rng, ("Conv", "Gemm", "MatMul", "Relu", "Concat", "Softmax", "Gather", "MaxPool",
                                   "BatchNormalization", "ReduceMean", "Transpose", "Reshape"), node.op_type)
        return f"{node.op_type} in place of another operator"
    if how == 1:
        node.op_type += "X"
        return f"operator {node.op_type}"
    if how == 2:
        node.domain = "nowhere"
        return f"{node.op_type} of the domain nowhere"
    node.output.append("one_more")
    return f"{node.op_type} with one output more"


def fault_in_versions(model, rng):
    """Gives the model another opset or IR version."""
    if rng.random() < 0.3:
        model.ir_version = rng.choice((0, 2 ** 40, 2 ** 62))
        return f"ir_version {model.ir_version}"
    if not model.opset_import:
        return None
    chosen = rng.choice(model.opset_import)
    chosen.version = other(rng, (0, -1, 1, 5, 9, 12, 13, 18, 99, 2 ** 40), chosen.version)
    return f"opset {chosen.domain or 'ai.onnx'} {chosen.version}"


FAULTS = (fault_in_attribute, fault_in_attribute, fault_in_shape, fault_in_shape, fault_in_shape, fault_in_type,
          fault_in_edges, fault_in_operator, fault_in_versions)


class Importer:
    """AGPCS's verdicts, from one process."""

    def __init__(self, command):
        self.process = subprocess.Popen([command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def verdict(self, path):
        """Returns None for an accepted model, else why it is refused. `warned`: with such a warning."""
        print(path, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline().rstrip("\n")
        if not line:
            kept = pathlib.Path(path).read_bytes()
            pathlib.Path("crash.onnx").write_bytes(kept)
            raise SystemExit(f"the importer ended with {self.process.wait()}: the model is kept in crash.onnx")
        self.warned = line == "warned"
        return line if line.startswith("refused") else None


def checker_refuses(model):
    """Returns why ONNX's checker refuses a model, or None."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # it raises several kinds, RuntimeError among them
        return str(error).strip().split("\n")[0]
    return None


def feeds_of(model, folder):
    """Returns the test's own inputs, repeated or cut where extents differ; zeros of another type."""
    feeds = {}
    for index, value in enumerate(model.graph.input):
        tensor = value.type.tensor_type
        dims = [dim.dim_value for dim in tensor.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        own = folder / "test_data_set_0" / f"input_{index}.pb"
        array = np.zeros(dims, kind)
        if own.exists():
            kept = numpy_helper.to_array(onnx.load_tensor(str(own)))
            if kept.dtype == kind and kept.size:
                array = np.resize(kept, dims)
        feeds[value.name] = array
    return feeds


def runtime_refuses(model, folder):
    """Returns why ONNX Runtime refuses a model or its run, or None. What it lacks is no refusal."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        session.run(None, feeds_of(model, folder))
    except Exception as error:
        text = str(error).strip().split("\n")[0]
        lacks = "NOT_IMPLEMENTED" in text or "Could not find an implementation" in text
        return None if lacks else text
    return None


def answer(connection):
    """Judges the models that arrive, until the other end closes."""
    while True:
        try:
            serialized, folder = connection.recv()
        except EOFError:
            return
        model = onnx.ModelProto.FromString(serialized)
        connection.send(checker_refuses(model))
        connection.send(runtime_refuses(model, folder))


class Judges:
    """ONNX's checker and ONNX Runtime, in a process of their own: some models end it."""

    def __init__(self):
        self.process = None

    def ask(self):
        if self.process is None:
            return "it ended before"
        try:
            return self.connection.recv()
        except EOFError:
            self.process.join()
            code, self.process = self.process.exitcode, None
            return f"it ended with {code}"

    def verdicts(self, model, folder):
        """Returns why the checker refuses a model, and why the runtime does: None where they take it."""
        if self.process is None:
            self.connection, theirs = multiprocessing.Pipe()
            self.process = multiprocessing.Process(target=answer, args=(theirs,), daemon=True)
            self.process.start()
            theirs.close()
        self.connection.send((model.SerializeToString(), folder))
        return self.ask(), self.ask()


def sound_tests(folder, importer, judges):
    """Returns the node tests that AGPCS and ONNX's checker accept, and ONNX Runtime runs, by name."""
    tests = {}
    for path in sorted(folder.glob("*/model.onnx")):
        if importer.verdict(path) is not None:
            continue
        model = onnx.load(str(path))
        if judges.verdicts(model, path.parent) == (None, None):
            tests[path.parent.name] = model
    return tests


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=pathlib.Path)
    parser.add_argument("--models", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--importer", default=REPOSITORY / "build/release/fuzz/import_verdicts")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--refused", action="store_true", help="print what AGPCS alone refuses, too")
    args = parser.parse_args()
    if not args.tests.is_dir():
        raise SystemExit(f"{args.tests}: not a folder\n  hint: tools/install_deps.sh --tests keeps ONNX's node tests")
    rng = random.Random(args.seed)
    importer = Importer(args.importer)
    judges = Judges()
    tests = sound_tests(args.tests, importer, judges)
    names = sorted(tests)
    print(f"{len(names)} node tests are accepted by all three", flush=True)
    tally = collections.Counter()
    findings = 0
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "model.onnx"
        while tally["models"] < args.models:
            name = rng.choice(names)
            model = onnx.ModelProto()
            model.CopyFrom(tests[name])
            fault = rng.choice(FAULTS)(model, rng)
            if fault is None:
                continue
            tally["models"] += 1
            path.write_bytes(model.SerializeToString())
            refused = importer.verdict(path)
            if refused is not None:
                tally["refused"] += 1
                if args.refused and judges.verdicts(model, args.tests / name) == (None, None):
                    tally["refused by AGPCS alone"] += 1
                    print(f"{name}: {fault}\n    {refused}", flush=True)
                continue
            if importer.warned:
                tally["accepted with a warning of what the file declares"] += 1
                continue
            tally["accepted"] += 1
            checker, reason = judges.verdicts(model, args.tests / name)
            if checker is None or reason is None:
                tally["accepted, and by the checker" if checker is None else "accepted, and run"] += 1
                continue
            findings += 1
            print(f"{name}: {fault}\n    checker: {checker}\n    runtime: {reason}", flush=True)
            if args.keep:
                args.keep.mkdir(parents=True, exist_ok=True)
                (args.keep / f"{findings}_{name}.onnx").write_bytes(model.SerializeToString())
    for what, count in tally.items():
        print(f"{count:7} {what}")
    print(f"{findings:7} accepted by AGPCS alone")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
