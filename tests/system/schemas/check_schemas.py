#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that docs/reference/schema describes the JSON of every command.

    tests/system/schemas/check_schemas.py build/release/bin

Runs the commands and validates what they print and write. Besides,
  * every schema is one of JSON Schema 2020-12, and some output is validated against it;
  * every property is described, and no object takes keys that its schema does not name;
  * every property of every schema is in some output (but for those in UNSEEN);
  * an output with one key more, or one key less, is refused.
Without agpcs-run, which needs LibTorch, its outputs and those of `agpcs-plan drift` are left out.
"""

import argparse
import collections
import copy
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCHEMAS = ROOT / "docs/reference/schema"
MODEL, CLUSTER = "samples/models/small_cnn.onnxtxt", "samples/clusters/local-2.yaml"
LANGUAGE_MODEL = "tests/system/training/models/words.onnx"
OPERATOR = "Conv_conv1"
EVERY_EVENT = ROOT / "tests/tools/run/every_event.jsonl"  # of agpcs-run; a test of its report prints the same
TEAMS = "tests/fuzz/corpus/plan/teams.plan"
# Messages cost so little that teams divide whatever they can.
NEAR = """\
device_kinds:
  slow: {peak: {fp32: 1 GFLOPS}, memory: 4 GiB, memory_bandwidth: 10 GB/s, launch_overhead: 0 us}
hosts:
  - name: a
    devices: {kind: slow, count: 2}
    interconnect: {kind: nvlink, bandwidth: 500 GB/s, latency: 1 ns}
training: {batch: 8, optimizer: {kind: sgd}}
"""
UNSEEN = {("agpcs_allreduce_compare", "error")}  # takes more than 1024 servers: too long for a test
UNSEEN |= {("agpcs_plan_json", "mean")}  # no model here has a mean over an axis that teams divide
OF_RUN = {"agpcs_run", "agpcs_run_trace", "agpcs_plan_drift"}

sys.path.insert(0, str(ROOT / "tests/golden"))
import run_golden  # noqa: E402

try:
    from jsonschema import Draft202012Validator
except ImportError:
    sys.exit("check_schemas.py: error: there is no Python package jsonschema\n"
             "  hint: tools/install_deps.sh --tests")


def refuse_constant(word):
    raise ValueError(f"{word} is not JSON")


def parse(text):
    return json.loads(text, parse_constant=refuse_constant)


class Outputs:
    """Runs the commands in `binaries`: (schema, where it comes from, the value) of all that they print."""

    def __init__(self, binaries, folder):
        self.binaries, self.folder = binaries, folder

    def run(self, *words, cwd=ROOT):
        command = [self.binaries / words[0], *words[1:]]
        done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def all(self):
        yield from self.of_goldens()
        yield from self.of_plans()
        yield from self.of_allreduce()
        for number, line in enumerate(EVERY_EVENT.read_text().splitlines(), 1):
            yield "agpcs_run", f"{EVERY_EVENT.name}:{number}", parse(line)
        if (self.binaries / "agpcs-run").exists():
            yield from self.of_runs()

    def of_goldens(self):
        """Golden compilations: those with --json, and the plans of the others."""
        for path in sorted(run_golden.DEFAULTS.parent.glob("*.txt")):
            if path.name == "CMakeLists.txt" or path.name.startswith("bad_"):
                continue
            head, sections = run_golden.read_golden(path)
            args = run_golden.field(head, "args").split()
            if "plan" in sections:
                plan = self.folder / f"{path.stem}.plan"
                plan.write_text(sections["plan"])
                yield "agpcs_plan_json", f"json {plan.name}", parse(self.run("agpcs-plan", "json", plan))
                if path.stem in ("offload", "host_activations"):
                    yield from self.of_offload(path.stem, plan, args, sections)
            elif "--json" in args or path.stem == "not_executed":
                args += [] if "--json" in args else ["--json"]
                _, text = run_golden.run_once(self.binaries / "agpcs-compile", " ".join(args), sections, "stdout")
                yield "agpcs_compile", path.name, parse(text)

    def of_offload(self, name, plan, args, sections):
        """A stage whose state, or activations, are in the memory of a host."""
        _, text = run_golden.run_once(self.binaries / "agpcs-compile", " ".join([*args, "--json"]), sections, "stdout")
        yield "agpcs_compile", name, parse(text)
        for file in args[:2]:
            (self.folder / file).write_text(sections[file])
        yield "agpcs_plan_json", name, parse(self.run("agpcs-plan", "json", plan, "--model", self.folder / args[0],
                                                      "--cluster", self.folder / args[1]))

    def of_plans(self):
        """A plan for replicas, with a bucket to reduce, and a pipeline, with transfers."""
        plan = self.folder / "replicas.plan"
        yield "agpcs_compile", plan.name, parse(
            self.run("agpcs-compile", MODEL, CLUSTER, "-o", plan, "--json", "--budget", "100"))
        pipeline = self.folder / "pipeline.plan"
        yield "agpcs_compile", pipeline.name, parse(
            self.run("agpcs-compile", MODEL, CLUSTER, "-o", pipeline, "--json", "--refiner", "none",
                     "--seeder", "linear", "--micro-batches", "4", "--wire-type", "bf16", "--attention", "fused"))
        words = self.folder / "words.plan"
        yield "agpcs_compile", words.name, parse(
            self.run("agpcs-compile", LANGUAGE_MODEL, CLUSTER, "-o", words, "--json", "--refiner", "none",
                     "--next-token", "auto", "--ignore-index", "0", "--label-smoothing", "0.1", "--class-axis=-1"))
        yield "agpcs_plan_json", words.name, parse(self.run("agpcs-plan", "json", words))
        nesterov = self.folder / "nesterov.plan"
        nesterov.write_text(plan.read_text().replace("momentum=0.9 ", "momentum=0.9 nesterov=yes "))
        yield "agpcs_plan_json", nesterov.name, parse(self.run("agpcs-plan", "json", nesterov))
        segments = self.folder / "segments.plan"
        segments.write_text(plan.read_text().replace("recompute=no", "recompute=yes segments=1", 1))
        yield "agpcs_plan_json", segments.name, parse(self.run("agpcs-plan", "json", segments))
        for kind in ("sgd", "adam"):
            cluster, clips = self.folder / f"{kind}.yaml", self.folder / f"{kind}.plan"
            cluster.write_text(re.sub(r"optimizer: \{.*?\}", f"optimizer: {{kind: {kind}, max_norm: 1}}", (ROOT / CLUSTER).read_text()))
            self.run("agpcs-compile", MODEL, cluster, "-o", clips, "-q", "--refiner", "none")
            yield "agpcs_plan_json", clips.name, parse(self.run("agpcs-plan", "json", clips))
        yield "agpcs_plan_json", TEAMS, parse(self.run("agpcs-plan", "json", TEAMS))
        near = self.folder / "near.yaml"
        near.write_text(NEAR)
        for model in (MODEL, LANGUAGE_MODEL):
            teams = self.folder / f"teams_{pathlib.Path(model).stem}.plan"
            self.run("agpcs-compile", model, near, "-o", teams, "-q", "--no-bound", "--layout", "a/0+a/1,parts=5+3", "--micro-batches", "1")
            yield "agpcs_plan_json", teams.name, parse(self.run("agpcs-plan", "json", teams, "--model", model))
            yield "agpcs_plan_explain", teams.name, parse(self.run("agpcs-plan", "explain", teams, model, near, "--json"))
        teams = self.folder / f"teams_{pathlib.Path(MODEL).stem}.plan"
        yield "agpcs_plan_explain", "asked", parse(self.run("agpcs-plan", "explain", teams, MODEL, near, "--json", "--teams"))
        interleaved = self.folder / "interleaved.plan"
        self.run("agpcs-compile", MODEL, near, "-o", interleaved, "-q", "--no-bound", "--layout",
                 "a/0|a/1|schedule=interleaved,each=2", "--micro-batches", "2")
        yield "agpcs_plan_explain_operator", interleaved.name, parse(
            self.run("agpcs-plan", "explain", interleaved, MODEL, near, "--operator", OPERATOR, "--json"))
        yield "agpcs_plan_explain_operator", "teams", parse(
            self.run("agpcs-plan", "explain", teams, MODEL, near, "--operator", OPERATOR, "--json"))
        yield "agpcs_plan_kinds", "kinds", parse(self.run("agpcs-plan", "kinds", "--json"))
        yield "agpcs_plan_splits", MODEL, parse(
            self.run("agpcs-plan", "splits", MODEL, "--members", "5:3", "--samples", "512", "--json"))
        for made in (plan, pipeline):
            yield "agpcs_plan_json", made.name, parse(
                self.run("agpcs-plan", "json", made, "--model", MODEL, "--cluster", CLUSTER))
            yield "agpcs_plan_explain", made.name, parse(
                self.run("agpcs-plan", "explain", made, MODEL, CLUSTER, "--json"))
            yield "agpcs_plan_explain_operator", made.name, parse(
                self.run("agpcs-plan", "explain", made, MODEL, CLUSTER, "--operator", OPERATOR, "--json"))
            yield "agpcs_plan_trace", made.name, parse(
                self.run("agpcs-plan", "trace", made, MODEL, CLUSTER, "-o", "-"))

    def of_allreduce(self):
        for words in (["torus:3", "--method", "ring"], [CLUSTER, "--bytes", "1MB"]):
            yield "agpcs_allreduce", words[0], parse(self.run("agpcs-allreduce", *words, "--json"))
        for topology in ("switch:4", "bcube:2,1"):
            yield "agpcs_allreduce_compare", topology, parse(
                self.run("agpcs-allreduce", topology, "--compare", "--json"))

    def of_runs(self):
        """A job that saves a checkpoint, and one that goes on from it and writes a trace; and one that clips gradients."""
        for line in self.run("agpcs-run", self.folder / "adam.plan", MODEL, "--json", "--transport", "loopback", "--steps", "2").splitlines():
            yield "agpcs_run", line, parse(line)
        for name in ("replicas", "pipeline"):
            plan, saved, trace = (self.folder / f"{name}.{end}" for end in ("plan", "saved", "json"))
            run = ["agpcs-run", plan, MODEL, "--json", "--transport", "loopback", "--threads", "1", "--save", saved]
            for more in (["--steps", "3"],
                         ["--steps", "8", "--resume", saved, "--trace", trace, "--trace-cluster", CLUSTER]):
                for line in self.run(*run, *more).splitlines():
                    yield "agpcs_run", line, parse(line)
            yield "agpcs_run_trace", trace.name, parse(trace.read_text())
            yield "agpcs_plan_drift", name, parse(self.run("agpcs-plan", "drift", plan, trace, "--json"))


def objects_of(schema, path=""):
    """(path, schema) of every object in a schema."""
    if isinstance(schema, dict):
        if "properties" in schema or schema.get("type") == "object":
            yield path, schema
        for key, part in schema.items():
            yield from objects_of(part, f"{path}/{key}")
    elif isinstance(schema, list):
        for i, part in enumerate(schema):
            yield from objects_of(part, f"{path}/{i}")


def faults_of_schema(name, schema):
    Draft202012Validator.check_schema(schema)
    if schema.get("$schema") != "https://json-schema.org/draft/2020-12/schema":
        yield f"{name}: it does not say that it is one of JSON Schema 2020-12"
    for path, part in objects_of(schema):
        closed = part.get("additionalProperties")
        if closed is not False and not (isinstance(closed, dict) and "properties" not in part):
            yield f"{name}{path}: additionalProperties is not false"
        for key, value in part.get("properties", {}).items():
            if not value.get("description"):
                yield f"{name}{path}/properties/{key}: no description"
        for key in part.get("required", []):
            if key not in part.get("properties", {}):
                yield f"{name}{path}: requires {key}, which is not among its properties"


def properties_of(schema):
    """The keys of all properties in a schema."""
    return {key for _, part in objects_of(schema) for key in part.get("properties", {})}


def keys_of(value):
    if isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from keys_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from keys_of(part)


def message(error):
    """What is wrong: where no branch of a oneOf fits, in the branch whose constants fit, else in the first."""
    while error.context:
        branches = collections.defaultdict(list)
        for cause in error.context:
            branches[cause.schema_path[0]].append(cause)
        error = min(branches.values(), key=lambda causes: any(cause.validator == "const" for cause in causes))[0]
    return f"{'/'.join(map(str, error.absolute_path)) or 'the whole'}: {error.message[:300]}"


def changed(value):
    """(what was changed, the value so changed), by one key."""
    more = copy.deepcopy(value)
    more["surplus"] = 0
    yield "a key more", more
    less = copy.deepcopy(value)
    less.pop(next(iter(less)))
    yield "a key less", less


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binaries", type=pathlib.Path, help="folder of the commands")
    binaries = parser.parse_args().binaries.resolve()
    schemas = {path.stem: parse(path.read_text()) for path in sorted(SCHEMAS.glob("*.json"))}
    faults = [fault for name, schema in schemas.items() for fault in faults_of_schema(name, schema)]
    validators = {name: Draft202012Validator(schema) for name, schema in schemas.items()}
    seen = {name: set() for name in schemas}
    outputs = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for name, source, value in Outputs(binaries, pathlib.Path(folder)).all():
            if name not in schemas:
                sys.exit(f"check_schemas.py: there is no {SCHEMAS.relative_to(ROOT)}/{name}.json")
            faults += [f"{name}, {source}: {message(error)}" for error in validators[name].iter_errors(value)]
            if not outputs[name]:
                faults += [f"{name}, {source}: it is valid with {what}" for what, other in changed(value)
                           if validators[name].is_valid(other)]
            seen[name].update(keys_of(value))
            outputs[name] += 1
    expected = set(schemas) if (binaries / "agpcs-run").exists() else set(schemas) - OF_RUN
    for name in sorted(expected):
        missing = sorted(key for key in properties_of(schemas[name]) - seen[name] if (name, key) not in UNSEEN)
        faults += [f"{name}: no output has {', '.join(missing)}"] if missing else []
        faults += [] if outputs[name] else [f"{name}: no output was validated"]
    for fault in faults:
        print(fault)
    print(f"check_schemas: {len(schemas)} schemas, {sum(outputs.values())} outputs, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
