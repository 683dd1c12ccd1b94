#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What mypy says of scripts that use agpcs and agpcs.torch. Skipped where mypy or PyTorch is missing."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest

for module, name in (("torch", "PyTorch"), ("mypy", "mypy")):
    if importlib.util.find_spec(module) is None:
        print(f"skipped: {name} is not here")
        sys.exit(77)

TRAINING = """\
    import io
    import pathlib

    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset

    import agpcs
    import agpcs.torch

    Batch = list[torch.Tensor]


    def loss_fn(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        images, labels = batch
        return torch.nn.functional.cross_entropy(model(images), labels)


    def told(changes: list[agpcs.torch.Change]) -> None:
        for change in changes:
            print(change.text, change.rank + 1, change.factor)


    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: Dataset[Batch]) -> None:
        plan = agpcs.torch.autoplan(model, loss_fn, [torch.zeros(4, 8), torch.zeros(4)], batch=512, optimizer=optimizer)
        sampler = agpcs.torch.PlanSampler(data, plan, micro_batches=plan.micro_batches)
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(*agpcs.torch.plan_hook(plan, sampler=sampler, on_drift=told, replan=True))
        loader: DataLoader[Batch] = DataLoader(data, batch_sampler=sampler)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for i, batch in enumerate(loader):
                optimizer.zero_grad()
                with sampler.sync(ddp, i):
                    loss = sampler.weigh(loss_fn(ddp, batch), i, counted=len(batch))
                    loss.backward()  # type: ignore[no-untyped-call]  # PyTorch has no types for it
                optimizer.step()
        state = sampler.state_dict()
        sampler.load_state_dict(state)


    def pipelined(model: torch.nn.Module, loader: DataLoader[Batch]) -> dict[str, torch.Tensor]:
        agpcs.torch.profile(model, torch.nn.functional.cross_entropy, lambda parameters: torch.optim.SGD(parameters, lr=0.1),
                            [torch.zeros(4, 8), torch.zeros(4)], cluster="cluster.yaml", path="job.profile.yaml", seconds=30)
        plan = agpcs.torch.plan(model, [torch.zeros(4, 8), torch.zeros(4)], cluster="cluster.yaml", batch=64, seed=1)
        print(plan, plan.modules[0][0], plan.bound)
        job = agpcs.torch.Job(model, plan, torch.nn.functional.cross_entropy,
                              lambda parameters: torch.optim.SGD(parameters, lr=0.1), [torch.zeros(4, 8), torch.zeros(4)],
                              input_names=["image"], max_norm=1.0, autocast="fp16", scaler=torch.amp.GradScaler("cpu"),
                              compile={"dynamic": True})
        for batch in loader:
            print(job.stage, job.step(batch).item(), job.plan.batch)
        job.save("checkpoint", extra={"step": 1})
        print(job.load("checkpoint")["step"], job.grad_norm, job.scaler)
        state = job.state_dict()
        job.load_state_dict(state)
        return state


    def planned(model: torch.nn.Module) -> agpcs.Plan:
        file = io.BytesIO()
        agpcs.torch.export(model, (torch.zeros(4, 8),), file, input_names=["image"])
        try:
            plan = agpcs.plan(file.getvalue(), pathlib.Path("cluster.yaml"), batch=64, dims={"n": 2}, freeze=["w"],
                              data_parallel=True, slower={"a/0": 1.5})
        except agpcs.Infeasible as error:
            raise SystemExit(str(error)) from error
        plan.save("model.plan")
        print(plan.explain(top=3), plan.compare(agpcs.load("model.plan")), agpcs.__version__.split("."))
        return plan
"""

REVEALED = {
    "agpcs.__version__": "str",
    "agpcs.load('a').shares": "tuple[int, ...]",
    "agpcs.load('a').wire_type": "str | None",
    "agpcs.load('a').groups[0].parameters": "tuple[str, ...]",
    "agpcs.load('a').stages[0].samples": "tuple[int, ...]",
    "agpcs.load('a').estimates.utilization": "dict[str, float]",
    "automatic.equal_step_seconds": "float | None",
    "automatic.rank": "int | None",
    "job.optimizer": "torch.optim.optimizer.Optimizer | None",
    "automatic.process_group": "torch._C._distributed_c10d.ProcessGroup | None",
    "sampler.loss_weight(0)": "float | torch._tensor.Tensor",
    "next(iter(sampler))": "list[int]",
    "sampler.part_of_gradient": "float",
    "agpcs.torch.plan_hook('a')[0].groups[0].name": "str",
    "agpcs.torch.plan_hook('a')[0].step_seconds": "collections.deque[float]",
}


class MyPy(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def check(self, script):
        """The lines that mypy --strict prints of a script. What it knows of PyTorch is kept beside the package."""
        (self.folder / "script.py").write_text(script)
        cache = pathlib.Path(os.environ["AGPCS_BIN_DIR"]).parent / "mypy_cache"
        done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context",
                               "--cache-dir", cache, "script.py"], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.splitlines()

    def test_a_typed_script_that_plans_and_trains_passes(self):
        self.assertEqual(self.check(textwrap.dedent(TRAINING)), [])

    def test_results_have_types(self):
        script = ("import agpcs\nimport agpcs.torch\nimport torch\n"
                  "def f(automatic: agpcs.torch.AutoPlan, sampler: agpcs.torch.PlanSampler, job: agpcs.torch.Job) -> None:\n"
                  + "".join(f"    reveal_type({expression})\n" for expression in REVEALED))
        told = [re.search('Revealed type is "(.*)"$', line) for line in self.check(script)]
        types = [match and re.sub(r"\bbuiltins\.", "", match.group(1)) for match in told]
        self.assertEqual(dict(zip(REVEALED, types)), REVEALED)
        self.assertEqual(len(types), len(REVEALED))

    def test_wrong_arguments_are_named(self):
        self.assertEqual(
            self.check("import agpcs\nimport agpcs.torch\n"
                       "agpcs.plan('model.onnx', 'cluster.yaml', batch='64')\n"
                       "agpcs.load('model.plan').shares.keys()\n"
                       "agpcs.torch.plan_hook('model.plan', replan=1.5)\n"),
            ['script.py:3: error: Argument "batch" to "plan" has incompatible type "str"; expected "int | None"  '
             "[arg-type]",
             'script.py:4: error: "tuple[int, ...]" has no attribute "keys"  [attr-defined]',
             'script.py:5: error: Argument "replan" to "plan_hook" has incompatible type "float"; expected "bool"  '
             "[arg-type]"])


if __name__ == "__main__":
    unittest.main()
