#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job by plans that keep the optimizer's state in the memory of hosts: it trains as one process does, piece by piece."""

import pathlib
import tempfile
import unittest
import warnings
from unittest import mock

from cases import build, divided, gathered, on_ranks
from job_cases import NEWER, STEPS, TWO, TWO_BY_TWO, Transformer, batches, exported, job_of, plan_of
from switching import Switches, Training, adamw, by_checkpoints, by_one_process

import torch
from torch import nn

import agpcs
import agpcs.torch
from agpcs._job import host_state

PIECE = 100  # elements, so that parameters have several pieces


def offloaded(plan, *stages):
    """The plan with the state of these stages, or of all, in the memory of hosts."""
    lines = plan.text.splitlines()
    for i, line in enumerate(lines):
        if line.startswith("stage ") and (not stages or line.split()[1] in stages):
            lines[i] = line.replace(" operators=", " state-in=host operators=")
    found = agpcs.Plan("\n".join(lines) + "\n")
    assert any(stage.state_in == "host" for stage in found.stages), found.text
    return found


OPTIMIZERS = {
    "SGD": dict(lr=0.1, momentum=0.9, nesterov=True), "Adam": dict(amsgrad=True), "AdamW": {}, "NAdam": {}, "RAdam": dict(lr=0.1),
    "RMSprop": dict(centered=True, momentum=0.5), "Adagrad": dict(initial_accumulator_value=0.5), "Adadelta": {}, "Adamax": {}, "ASGD": dict(t0=1),
    "Rprop": {}}


def parameters(seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((7, 31), (5,), (), (250,), (4, 3, 5, 5))]
    found[-1].data = found[-1].detach().to(memory_format=torch.channels_last)
    return found


def grouped(own):
    return [{"params": own[:2], "lr": 0.02}, {"params": own[2:]}]


def give_gradients(own, step):
    generator = torch.Generator().manual_seed(100 + step)
    for number, parameter in enumerate(own):
        gradient = torch.randn(parameter.shape, generator=generator)
        parameter.grad = None if (step, number) == (0, 1) else gradient  # of another layout than one of the parameters


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Pieces(unittest.TestCase):
    """Updates in pieces are those of the optimizer alone."""

    def setUp(self):
        patch = mock.patch.object(host_state, "PIECE", PIECE)
        patch.start()
        self.addCleanup(patch.stop)

    def test_every_optimizer_that_treats_each_element_by_itself(self):
        for name, settings in OPTIMIZERS.items():
            with self.subTest(optimizer=name):
                kind = getattr(torch.optim, name)
                own, wanted = parameters(), parameters()
                optimizer, alone = kind(grouped(own), **settings), kind(grouped(wanted), **settings)
                host = host_state.HostState(optimizer, torch.device("cpu"))
                for step in range(6):
                    give_gradients(own, step)
                    give_gradients(wanted, step)
                    host.step()
                    alone.step()
                    if step == 3:  # as a checkpoint does
                        host.load(optimizer.state_dict())
                for one, other in zip(own, wanted):
                    self.assertTrue(torch.allclose(one, other, 1e-5, 1e-7), name)
                    self.assertEqual(set(optimizer.state[one]), set(alone.state[other]))
                    for key, value in alone.state[other].items():
                        kept = optimizer.state[one][key]
                        self.assertEqual(getattr(kept, "shape", None), getattr(value, "shape", None), key)
                        self.assertTrue(torch.allclose(torch.as_tensor(kept), torch.as_tensor(value), 1e-5, 1e-7), (name, key))
                        if isinstance(kept, torch.Tensor) and kept.dim() > 0:
                            self.assertEqual(kept.stride(), one.stride(), key)

    def test_the_window_has_three_pieces_at_most(self):
        own = parameters()
        optimizer = torch.optim.Adam(own)
        host, seen = host_state.HostState(optimizer, torch.device("cpu")), []

        def counted(step):
            def counting(other):
                seen.append(sum(parameter.numel() for group in other.param_groups for parameter in group["params"]))
                step(other)
            return counting

        plain = host_state._plain_step
        with mock.patch.object(host_state, "_plain_step", lambda optimizer: counted(plain(optimizer))):
            for step in range(3):
                give_gradients(own, step + 1)
                host.step()
        elements = sum(parameter.numel() for parameter in own)
        self.assertEqual((sum(seen), max(seen)), (3 * elements, PIECE))
        self.assertGreater(len(seen), 3 * host_state.WINDOW)
        rooms = [room.numel() for slot in host._slots for room in slot._tensors.values()]
        self.assertEqual(rooms, [PIECE] * 2 * host_state.WINDOW)
        state = 8 * elements
        self.assertEqual(host_state.window_bytes(state, optimizer), 8 * PIECE * host_state.WINDOW)
        self.assertEqual(host_state.window_bytes(state, torch.optim.Adam(own[:1])), state)

    def test_hooks_are_called_once_and_schedules_go_on(self):
        own, called = parameters(), []
        optimizer = torch.optim.Adam(own)
        optimizer.register_step_pre_hook(lambda *_: called.append("before"))
        optimizer.register_step_post_hook(lambda *_: called.append("after"))
        host = host_state.HostState(optimizer, torch.device("cpu"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rate = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            for step in range(2):
                give_gradients(own, step)
                host.step()
                rate.step()
        self.assertEqual(called, ["before", "after"] * 2)
        self.assertEqual(optimizer.param_groups[0]["lr"], 1e-3 / 4)

    def test_what_it_refuses(self):
        device = torch.device("cpu")
        with self.assertRaisesRegex(agpcs.UsageError, "the plan keeps the optimizer's state in the memory of hosts, and torch.optim.lbfgs.LBFGS "
                                                      r"may need all of a parameter at once: (.|\n)*without=\['offload'\]"):
            host_state.HostState(torch.optim.LBFGS(parameters()), device)
        gaps = nn.Parameter(torch.randn(4, 6)[:, :3])
        with self.assertRaisesRegex(agpcs.UsageError, r"a parameter of shape \(4, 3\) leaves gaps in its memory: its strides are \(6, 1\)"):
            host_state.HostState(torch.optim.SGD([gaps]), device)


def trained(rank, plan):
    """(losses, final state, whether all states of elements have the shapes of what the optimizer has)."""
    with mock.patch.object(host_state, "PIECE", PIECE):
        training = Training(Transformer, plan, adamw)
        assert training.job._update._host is not None, "no state is in the host's memory"
        training.train(STEPS)
    optimizer = training.job.optimizer
    alike = all(value.shape == parameter.shape for parameter, state in optimizer.state.items() for value in (state["exp_avg"], state["exp_avg_sq"]))
    return training.losses, training.state(), alike and len(optimizer.state) > 0


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Trains(Switches):
    def test_as_one_process_does(self):
        (wanted, final), = on_ranks(by_one_process, Transformer, adamw, STEPS, ranks=1)
        shares = plan_of(Transformer, "a/0,b/0", 2, all_reduce="ring")
        plans = {"a pipeline": plan_of(Transformer, TWO), "replicas in a pipeline": plan_of(Transformer, TWO_BY_TWO),
                 "divided state": divided(shares, 5, 3), "divided parameters": gathered(shares, 5, 3)}
        for name, plan in plans.items():
            with self.subTest(name):
                for losses, state, alike in on_ranks(trained, offloaded(plan), ranks=plan.ranks):
                    self.assertNotIsInstance(losses, str, state)
                    self.assert_same(losses, wanted, state, final)
                    self.assertTrue(alike)

    def test_switches_to_and_from_states_on_devices(self):
        plans = [plan_of(Transformer, layout) for layout in (TWO, "a/0,b/0")]
        self.check(Transformer, [offloaded(plans[0], "s0"), plans[1], offloaded(plans[1]), offloaded(plans[0]), plans[0]], adamw)

    def test_goes_on_from_checkpoints(self):
        plan, other = plan_of(Transformer, TWO), plan_of(Transformer, "a/0,b/0")
        plans = [offloaded(plan), other, offloaded(other), plan]
        self.check_checkpoints(Transformer, plans, adamw, by=in_pieces)


def in_pieces(rank, *what):
    """By checkpoints, with states that come in small pieces."""
    with mock.patch.object(host_state, "PIECE", PIECE):
        return by_checkpoints(rank, *what)


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Refuses(unittest.TestCase):
    def test_an_optimizer_that_may_need_all_of_a_parameter(self):
        for kind, said in on_ranks(begun, offloaded(plan_of(Transformer, TWO), "s0")):
            self.assertIn(kind, ("UsageError", "Error"))
            self.assertIn("the plan keeps the optimizer's state in the memory of hosts, and torch.optim.lbfgs.LBFGS may need", said)


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2048, 2048, bias=False) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x

    @staticmethod
    def samples(count, generator):
        return torch.randn(count, 2048, generator=generator), torch.randint(0, 2048, (count,), generator=generator)


# It has memory for parameters and gradients, and for a quarter of Adam's state.
SHORT = """\
device_kinds:
  gpu: {memory: 160 MB, memory_bandwidth: 100 GB/s, peak: {fp32: 5 TFLOPS}, launch_overhead: 0, host_link: {bandwidth: 12 GB/s}}
hosts: [{name: a, devices: {kind: gpu}, memory: 1 GB}]
training: {batch: 10, optimizer: adam}
"""


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Plans(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cluster = pathlib.Path(folder.name, "cluster.yaml")
        self.cluster.write_text(SHORT)
        exported(Wide)  # here, and not on each rank

    def test_where_memory_is_short_a_plan_keeps_state_in_hosts_and_a_job_fits(self):
        plan = agpcs.torch.plan(build(Wide), batches(Wide, 1)[0], cluster=self.cluster, bound=False)
        self.assertEqual([stage.state_in for stage in plan.stages], ["host"])
        plan = agpcs.Plan(plan.text)
        (wanted, pieces), = on_ranks(by_one_job, plan, None, ranks=1)
        self.assertEqual(pieces, 12)
        (losses, _), = on_ranks(by_one_job, agpcs.Plan(plan.text.replace(" state-in=host", "")), None, ranks=1)
        self.assertEqual(losses, wanted)
        (losses, pieces), = on_ranks(by_one_job, plan, self.cluster, ranks=1)
        self.assertEqual((losses, pieces), (wanted, 12))

    def test_without_it_nothing_fits(self):
        for options in ({"without": ["offload"]}, {"data_parallel": True}, {"data_parallel": True, "without": ["offload"]}):
            with self.subTest(options=options), self.assertRaises(agpcs.Infeasible):
                agpcs.plan(exported(Wide), self.cluster, bound=False, **options)


def by_one_job(rank, plan, cluster):
    """Losses of three steps, and into how many pieces the last update was cut."""
    pieces = []

    def noted(optimizer):
        pieces.append(cut(optimizer))
        return pieces[-1]

    cut = host_state._pieces
    with mock.patch.object(host_state, "_pieces", noted):
        job = job_of(Wide, plan, optimizer_fn=lambda own: torch.optim.Adam(own, lr=1e-3), cluster=cluster)
        losses = [job.step(batch).item() for batch in batches(Wide, 3)]
    return losses, len(pieces[-1]) if pieces else 0


def begun(rank, plan):
    job_of(Transformer, plan, optimizer_fn=lambda own: torch.optim.LBFGS([parameter for _, parameter in own]))
    return None, None


if __name__ == "__main__":
    unittest.main()
