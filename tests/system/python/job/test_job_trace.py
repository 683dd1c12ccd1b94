#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job: traces of its steps beside the plan's, which agpcs-plan drift reads."""

import collections
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from cases import ROOT, divided, gathered, on_ranks
from job_cases import CLUSTER, FOUR, NEWER, TWO_BY_TWO, Mlp, TiedHead, UNet, batches, exported, job_of, plan_of

import agpcs

sys.path.insert(0, str(ROOT / "tests/tools/common"))
from check_trace import check  # noqa: E402

STEPS = 5


def traced(rank, kind, plan, other, folder):
    """Losses with a trace and without, what a job says that has none, and the traces by `plan` and, after a switch, by
    `other`."""
    job = job_of(kind, plan, trace=True)
    losses = [job.step(batch).item() for batch in batches(kind, STEPS)]
    job.write_trace(f"{folder}/both.json", cluster=f"{folder}/cluster.yaml")
    said = []
    for path in ("nowhere/trace.json", "early.json"):
        try:
            job.write_trace(f"{folder}/{path}")
        except agpcs.Error as error:
            said.append(str(error))
        except OSError as error:
            said.append(type(error).__name__)
        if path.startswith("nowhere"):
            job.switch(other)
    job.step(batches(kind, 1)[0])
    job.write_trace(f"{folder}/later.json")
    plain = job_of(kind, plan)
    try:
        plain.write_trace(f"{folder}/none.json")
    except agpcs.UsageError as error:
        said.append(str(error))
    return losses, [plain.step(batch).item() for batch in batches(kind, STEPS)], said


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Traces(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "cluster.yaml").write_text(CLUSTER)

    def run_plan(self, *words):
        return subprocess.run([pathlib.Path(os.environ["AGPCS_BIN_DIR"], "agpcs-plan"), *words], capture_output=True, text=True)

    def slices(self, trace):
        """By process, the titles with their bytes."""
        names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
        found = collections.defaultdict(list)
        for e in trace["traceEvents"]:
            if e["ph"] == "X":
                args = None if e["cat"].startswith("gather_") else e.get("args")  # where parameters are there still, it moves nothing
                found[names[e["pid"]]].append((e["name"], e["cat"], e["tid"], e["cname"], args))
        return {name: sorted(of_rank, key=str) for name, of_rank in found.items()}

    def read(self, name):
        trace = json.loads((self.folder / name).read_text())
        with contextlib.redirect_stdout(io.StringIO()) as said:
            check(trace)
        return trace, said.getvalue()

    def compare(self, kind, layout, other):
        plan = layout if isinstance(layout, agpcs.Plan) else plan_of(kind, layout)
        other = plan_of(kind, other, 2)
        results = on_ranks(traced, kind, plan, other, str(self.folder), ranks=4)
        for rank, result in enumerate(results):
            self.assertEqual(len(result), 3, result)
            self.assertEqual(result[0], result[1], "the trace changed the losses")
            self.assertRegex(result[2][0], "^rank 0 cannot write the trace: FileNotFoundError: " if rank else "^FileNotFoundError$")
            self.assertEqual(result[2][1:], ["the job has no step to trace by this plan\n  hint: job.step() before it",
                                             "the job notes no times\n  hint: Job(..., trace=True)"])
        trace, facts = self.read("both.json")
        plan.save(self.folder / "model.plan")
        (self.folder / "model.onnx").write_bytes(exported(kind))
        planned = self.run_plan("trace", self.folder / "model.plan", self.folder / "model.onnx", self.folder / "cluster.yaml", "-o", "-")
        wanted, found = self.slices(json.loads(planned.stdout)), self.slices(trace)
        self.assertEqual(len(wanted), 4)
        self.assertEqual(found, {f"{name} {how}": lines for name, lines in wanted.items() for how in ("measured", "planned")})
        arrows = sum(e["ph"] == "s" for e in json.loads(planned.stdout)["traceEvents"])
        self.assertGreater(arrows, 0)
        self.assertIn(f"\narrows {2 * arrows}\n", facts)
        drift = self.run_plan("drift", self.folder / "model.plan", self.folder / "both.json", "--json")
        self.assertEqual(drift.stderr, "")
        figures = json.loads(drift.stdout)
        self.assertEqual((figures["steps"], figures["step"] in range(STEPS)), (STEPS, True))
        for figure in figures["figures"]:
            self.assertGreater(figure["measured_seconds"], 0, figure)
        step = next(f["measured_seconds"] for f in figures["figures"] if f["quantity"] == "step")
        for figure in figures["figures"]:
            self.assertTrue(figure["quantity"] != "compute" or figure["measured_seconds"] < step, figures)
        return other

    def test_of_uneven_replicas_and_of_the_next_plan(self):
        other = self.compare(Mlp, TWO_BY_TWO, FOUR)
        other.save(self.folder / "other.plan")
        self.read("later.json")
        said = self.run_plan("drift", self.folder / "other.plan", self.folder / "later.json").stdout
        self.assertTrue(said.startswith(f"medians of 1 step; the trace shows step {STEPS}\n"), said)
        refused = self.run_plan("drift", self.folder / "model.plan", self.folder / "later.json")
        self.assertIn("the trace is of another plan", refused.stderr)

    def test_of_divided_state(self):
        self.compare(Mlp, divided(plan_of(Mlp, TWO_BY_TWO, all_reduce="ring"), 3, 1, 0, 1), FOUR)
        self.compare(Mlp, divided(plan_of(Mlp, TWO_BY_TWO, all_reduce="ring"), 3, 1, 0, 1, level="gradients"), FOUR)
        self.compare(Mlp, gathered(plan_of(Mlp, TWO_BY_TWO, all_reduce="ring"), 3, 1, 0, 1, model=exported(Mlp), cluster=CLUSTER), FOUR)
        moved = collections.Counter(e["args"]["bytes"] > 0 for e in self.read("both.json")[0]["traceEvents"]
                                    if e["ph"] == "X" and e["cat"].startswith("gather_") and e["pid"] % 2 == 0)
        self.assertTrue(moved[True] and moved[False], moved)

    def test_of_idle_ranks(self):
        self.compare(Mlp, plan_of(Mlp, "a/0|b/0", idle_ranks=True), "a/1:1,b/1:3|a/0:1,b/0:3")

    def test_of_skips_and_of_shared_parameters(self):
        self.compare(UNet, FOUR, TWO_BY_TWO)
        self.compare(TiedHead, TWO_BY_TWO, FOUR)


if __name__ == "__main__":
    unittest.main()
