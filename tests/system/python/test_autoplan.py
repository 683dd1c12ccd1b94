#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.autoplan on two ranks over Gloo."""

import contextlib
import copy
import io
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import unittest
import warnings

from cases import BATCH, Data, GroupResNet18, build, loss_of, on_ranks, train, wrapped

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

import agpcs
import agpcs.torch
from agpcs.torch import PlanSampler

SECONDS = 3  # of measuring
STEPS = 5


class Net(nn.Module):
    """With all that steps change or plans leave out: batch norm, dropout, a frozen layer, a weight with two names."""

    def __init__(self, width=32):
        super().__init__()
        self.first, self.frozen = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.dropout = nn.BatchNorm1d(width), nn.Dropout(0.5)
        self.tied, self.last = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.last.weight = self.tied.weight
        self.frozen.requires_grad_(False)

    def forward(self, x):
        x = self.dropout(self.norm(self.frozen(torch.relu(self.first(x)))))
        return self.last(torch.relu(self.tied(x)))


class Slow(nn.Module):
    """Takes `times` as long as `net`, for the same result."""

    def __init__(self, net, times):
        super().__init__()
        self.net, self.times = net, times

    def forward(self, x):
        return sum(self.net(x) for _ in range(self.times)) / self.times


def squares(module, batch):
    return module(batch[0]).pow(2).mean()


def autoplan(model, loss_fn=squares, sample=None, batch=16, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how well fits explain measurements on a busy machine
        return agpcs.torch.autoplan(model, loss_fn, (torch.ones(4, 32),) if sample is None else sample, batch,
                                    **{"seconds": SECONDS, "cache": None, "quiet": True, **options})


def state_around_autoplan(rank):
    """What may not change, before and after, and the plan's text and names."""
    torch.manual_seed(rank)
    model = Net()
    model.dropout.eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    squares(model, (torch.randn(4, 32),)).backward()
    optimizer.step()
    scheduler.step()

    def state():
        return copy.deepcopy((
            [p.detach().numpy() for p in model.state_dict().values()], [p.grad for p in model.parameters()],
            optimizer.state_dict(), random.getstate(), torch.get_rng_state(), [part.training for part in model.modules()]))
    before = state()
    plan = autoplan(model, optimizer=optimizer)
    equal = all(map(same, before, state()))
    squares(model, (torch.randn(4, 32),)).backward()  # hooks that were left would be seen
    names = [name for group in plan.groups for name in group.parameters]
    return equal, plan.text, names, optimizer.state_dict()["state"][0]["step"].item()


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return (a == b).all() if hasattr(a, "all") else a == b


def losses_by_autoplan(rank):
    """Losses of DDP by the plan of an unequal job, and of one process over the whole batch."""
    model = build(GroupResNet18)
    times = 12 if rank == 1 else 1  # so that computing is most of a step on a busy machine, too
    slow = Slow(model, times)
    sample = tuple(GroupResNet18.samples(4, torch.Generator().manual_seed(1)).values())
    made = autoplan(slow, loss_of, sample, BATCH, max_samples=BATCH)
    plan = agpcs.Plan(made.text.replace(" net.", " "))
    data = Data(GroupResNet18, BATCH * STEPS)
    alone = train(build(GroupResNet18), DataLoader(data, batch_size=BATCH, shuffle=False))
    ddp, _ = wrapped(build(GroupResNet18), plan)
    sampler = PlanSampler(data, plan, rank, shuffle=False)

    def step(i, batch):
        loss = sampler.weigh(loss_of(ddp, batch), i)
        loss.backward()
        total = loss.detach() * plan.shares[rank] / plan.batch
        dist.all_reduce(total)
        return total
    # The slow module's parameters are the net's, under another prefix.
    return plan.shares, alone, train(ddp, DataLoader(data, batch_sampler=sampler), step), made.equal_step_seconds, \
        made.estimates.step_seconds


def plans_with_a_cache(rank, folder):
    """(calls of the loss, measuring_seconds, text, files) of three calls, the last for another batch."""
    calls = 0

    def counting(module, batch):
        nonlocal calls
        calls += 1
        return squares(module, batch)
    said = []
    for batch in (16, 16, 24):
        calls = 0
        plan = autoplan(Net(), counting, batch=batch, cache=folder)
        said.append((calls, plan.measuring_seconds, plan.text, plan.files))
    return said


def planned_again(rank, folder):
    """Shares, and the step with equal shares, of a plan; and of another one, once steps of plain DDP took no time."""
    model, said = Slow(Net(256), 12 if rank == 1 else 1), []
    sample = (torch.ones(4, 256),)
    for _ in range(2):
        plan = autoplan(model, sample=sample, batch=32, cache=folder)
        said.append((plan.shares, plan.in_ddp_buckets, plan.equal_step_seconds, plan.estimates.step_seconds))
        if rank == 0:
            pathlib.Path(plan.files[0].replace(".plan", ".rehearsed.json")).write_text('{"planned": 1, "equal": 0.9}')
        dist.barrier()
    ddp, state = wrapped(model, plan)
    squares(ddp, (torch.ones(16, 256),)).backward()
    buckets = [(reduction.group, reduction.copied) for reduction in state.step]
    return said, buckets, sum(reduction.elements for reduction in state.step)


def on_hosts(rank, folder, hosts):
    """Plans as ranks of these hosts, with a cache folder on each host. Returns calls of the loss, the devices, the number
    of ranks that measured, and the summary."""
    calls = 0

    def counting(module, batch):
        nonlocal calls
        calls += 1
        return squares(module, batch)
    socket.gethostname = lambda: hosts[rank]
    plan = autoplan(Net(), counting, cache=os.path.join(folder, hosts[rank]))
    with open(plan.files[1], encoding="utf-8") as cluster:
        listed = re.findall("- name: (.*)", cluster.read())
    return calls, plan.devices, plan.measured_ranks, listed, plan.summary().splitlines()[0].replace(folder, "")


def left_out(rank, leave_out):
    """The plan's ranks, this rank's number, the size of the group, and what would be best."""
    model = Slow(Net(), 60 if rank == 1 else 1)
    plan = autoplan(model, batch=8, leave_out=leave_out)
    if plan.rank is not None and leave_out:
        dist.all_reduce(torch.ones(1), group=plan.process_group)
    size = None if plan.rank is None else dist.get_world_size(plan.process_group)
    dist.barrier()
    return plan.ranks, plan.rank, size, plan.best_devices, plan.summary().splitlines()[-1]


def said_while_training(rank):
    """What a job prints in its first 60 steps."""
    model = Net()
    with contextlib.redirect_stderr(io.StringIO()) as said:
        plan = autoplan(model, quiet=False)
        ddp, state = wrapped(model, plan)
        batch = (torch.ones(plan.shares[rank], 32),)
        for _ in range(60):
            squares(ddp, batch).backward()
    return said.getvalue(), len(state.step_seconds)


def without_a_copy(rank):
    """Warnings of autoplan for a model that refuses to be copied."""
    model = Net()
    model.lock = threading.Lock()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        plan = agpcs.torch.autoplan(model, squares, (torch.ones(4, 32),), 16, seconds=SECONDS, cache=None, quiet=True)
    return plan.ranks, [str(warning.message) for warning in said if "copy" in str(warning.message)]


def refused(rank, what):
    model, loss_fn, sample, batch, options = Net(), squares, None, 16, {}
    if what == "loss":
        loss_fn = lambda module, batch: module(batch[0])  # noqa: E731
    elif what == "double":
        model = model.double()
    elif what == "frozen":
        model.requires_grad_(False)
    elif what == "batch":
        batch = 0
    elif what == "wrapped":
        model = wrapped(model)[0]
    elif what == "sample":
        sample = {"text": "none"}
    elif what == "one rank" and rank == 1:
        def loss_fn(module, batch):
            raise ValueError("no labels")
    elif what == "memory" and rank == 1:
        def loss_fn(module, batch):
            raise MemoryError("no room")
    elif what == "seconds":
        options = {"seconds": "60"}
    elif what == "optimizer":
        options = {"optimizer": "sgd"}
    elif what == "folder":
        options = {"cache": "/dev/null/cache"}
    elif what == "no parameters":
        model = nn.ReLU()
    elif what == "small":
        batch = 1
    elif what == "batches":
        batch += rank
    elif what == "models" and rank == 1:
        model = Slow(model, 1)
    return autoplan(model, loss_fn, sample, batch, **options)


def by_spoilt_files(rank, folder):
    """What is said of the files of an earlier job that are no longer whole, one file after the other."""
    stem = autoplan(Net(), cache=folder).files[0][:-len(".plan")]
    said = []
    for suffix in (".rehearsed.json", ".profile.yaml", ".yaml"):
        if rank == 0:
            pathlib.Path(stem + suffix).write_text("spoilt")
        dist.barrier()
        try:
            autoplan(Net(), cache=folder)
        except agpcs.Error as error:
            said.append(str(error).replace(stem, "STEM"))
    return said


class OtherNet(Net):
    """Has the parameters of Net, and other layers."""

    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(4, 32)

    def _get_name(self):
        return "Net"


def of_other_layers(rank, folder):
    """Whether models with the same parameters, and the same ones again, are measured."""
    return [autoplan(model, cache=folder).measuring_seconds is not None for model in (Net(), OtherNet(), Net(), OtherNet())]


def without_a_number(rank):
    """Warnings of autoplan for a model whose loss is nan."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        agpcs.torch.autoplan(Net(), lambda module, batch: squares(module, batch) * float("nan"), (torch.ones(4, 32),), 16,
                             seconds=SECONDS, cache=None, quiet=True)
    return [str(warning.message) for warning in said if "nan" in str(warning.message)]


def left_out_of_some(rank):
    group = dist.new_group([0, 1])
    dist.barrier()  # a rank that leaves early would end the other's connecting
    return autoplan(Net(), leave_out=True, process_group=group) if rank < 2 else None


class Autoplan(unittest.TestCase):
    def test_nothing_changes_and_what_trains_is_planned(self):
        (equal, text, names, step), (equal_1, text_1, _, _) = on_ranks(state_around_autoplan)
        self.assertTrue(equal and equal_1)
        self.assertEqual(text, text_1)
        self.assertEqual(sorted(names), ["first.bias", "first.weight", "norm.bias", "norm.weight", "tied.weight"])
        self.assertEqual(step, 1)

    def test_a_slow_rank_gets_less_and_losses_are_those_of_one_process(self):
        (shares, alone, losses, equal, planned), _ = on_ranks(losses_by_autoplan)
        self.assertEqual(sum(shares), BATCH)
        self.assertGreater(shares[0], shares[1])
        self.assertGreaterEqual(equal, planned, shares)
        for expected, loss in zip(alone, losses):
            self.assertAlmostEqual(loss, expected, delta=1e-5 * expected)

    def test_a_cache_is_taken_and_its_files_are_the_commands(self):
        with tempfile.TemporaryDirectory() as folder:
            (first, second, third), _ = on_ranks(plans_with_a_cache, folder)
            self.assertGreater(first[0], 0)
            self.assertGreater(first[1], 0)
            self.assertEqual(second, (0, None, first[2], first[3]))
            self.assertGreater(third[0], 0)
            endings = [path[len(folder) + 27:] for path in first[3]]
            self.assertEqual(endings, [".plan", ".yaml", ".profile.yaml", ".onnxtxt"])
            plan, cluster, _, model = first[3]
            self.assertEqual(pathlib.Path(plan).read_text(), first[2])
            of_docs = pathlib.Path(folder).glob("autoplan-*-????????.yaml")
            self.assertEqual({str(path) for path in of_docs}, {cluster, third[3][1]})
            tool = os.path.join(os.environ["AGPCS_BIN_DIR"], "agpcs-compile")
            run = [tool, model, cluster, "-o", os.path.join(folder, "again.plan"), "--seeder", "data_parallel",
                   "--refiner", "none", "--all-reduce", "ring"]
            done = subprocess.run(run, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("operators measured (100% of the time)", done.stdout)
            self.assertIn("agpcs-run cannot train by this plan: it does not run agpcs.Measured", done.stdout + done.stderr)

    def test_plain_ddp_with_equal_shares_that_was_faster_is_taken(self):
        with tempfile.TemporaryDirectory() as folder:
            ((_, (shares, in_buckets, equal, planned)), buckets, elements), _ = on_ranks(planned_again, folder)
        self.assertEqual((shares, in_buckets), ((16, 16), True))
        self.assertEqual(equal, planned)
        self.assertEqual(buckets[0], ("bucket 0", False))
        self.assertEqual(elements, sum(p.numel() for p in Net(256).parameters() if p.requires_grad))

    def test_ranks_that_are_left_are_planned_by_what_all_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            for hosts, expected in (
                    (["a", "a", "b"], (("a/0", "a/1", "b/0"), 3, ["a", "b"], "measured in ")),
                    (["b"], (("b/0",), 3, ["b", "a"], "by the measurements of a job of 3 ranks, /b/autoplan-")),
                    (["b"], (("b/0",), 3, ["b", "a"], "by the measurements of a job of 3 ranks, /b/autoplan-")),
                    (["a", "a"], (("a/0", "a/1"), 3, ["a", "b"], "by the measurements of a job of 3 ranks, /a/autoplan-")),
                    (["a", "b"], (("a/0", "b/0"), 3, ["a", "b"], "by the measurements of a job of 3 ranks, /a/autoplan-")),
                    (["b", "a", "a"], (("b/0", "a/0", "a/1"), 3, ["b", "a"], "by the measurements of /b/autoplan-")),
                    # "c" has no files, and was never measured with the others; then it has a copy.
                    (["c", "b"], (("c/0", "b/0"), 2, ["c", "b"], "measured in ")),
                    (["b", "a"], (("b/0", "a/0"), 3, ["b", "a"], "by the measurements of a job of 3 ranks, /b/autoplan-"))):
                *expected, words = expected
                results = on_ranks(on_hosts, folder, hosts, ranks=len(hosts))
                for calls, *found, said in results:
                    self.assertEqual(found, expected, said)
                    self.assertEqual(calls > 0, words == "measured in ", said)
                self.assertIn(f"agpcs: plan for {len(hosts)} ranks, batch 16 ({words}", results[0][-1])
            self.assertEqual(sorted(os.listdir(folder)), ["a", "b", "c"])

    def test_a_host_without_files_takes_those_of_another(self):
        with tempfile.TemporaryDirectory() as folder:
            on_ranks(on_hosts, folder, ["a", "b"])
            shutil.rmtree(os.path.join(folder, "a"))
            for calls, devices, *_ in on_ranks(on_hosts, folder, ["a", "b"]):
                self.assertEqual((calls, devices), (0, ("a/0", "b/0")))
            self.assertEqual(len(os.listdir(os.path.join(folder, "a"))), 5)

    def test_a_rank_that_slows_the_others_is_named_or_left_out(self):
        (ranks, rank, size, best, said), (_, rank_1, _, _, _) = on_ranks(left_out, False)
        self.assertEqual((ranks, rank, rank_1, size, len(best)), (2, 0, 1, 2, 1))
        self.assertEqual(said, "  hint: autoplan(..., leave_out=True) trains without, in plan.process_group")
        (ranks, rank, size, _, _), (_, rank_1, _, _, _) = on_ranks(left_out, True)
        self.assertEqual((ranks, rank, rank_1, size), (1, 0, None, 1))

    def test_a_job_is_told_what_was_planned_and_what_came_of_it(self):
        (said, steps), (said_1, _) = on_ranks(said_while_training)
        self.assertEqual(steps, 50)
        self.assertEqual(said_1, "")
        self.assertRegex(said, r"^agpcs: plan for 2 ranks, batch 16 \(measured in \d+ s, copies took \d+ MB\)\n"
                         r"agpcs: shares: \S+/0 \d+, \S+/1 \d+\n"
                         r"agpcs: a step takes [\d.]+ m?s, with equal shares [\d.]+ m?s: \d+\.\d\d times as fast\n"
                         r"(agpcs: without (.|\n)*)?"
                         r"agpcs: the last 50 steps took [\d.]+ m?s \(median\), the plan expects [\d.]+ m?s "
                         r"\([-+][\d.]+%\), with equal shares [\d.]+ m?s\n$")

    def test_refusals(self):
        expected = {
            "loss": ("TypeError", "loss_fn returned a tensor of shape (2, 32); it returns the mean loss of the batch, one "
                     "number with a gradient\n"
                     "  hint: autoplan(model, lambda model, batch: cross_entropy(model(batch[0]), batch[1]), ...)"),
            "double": ("InvalidInput", "parameter 'first.weight' is of type torch.float64; a plan has float32, float16 and "
                       "bfloat16\n  hint: model.float()"),
            "frozen": ("InvalidInput", "the model has no parameter with requires_grad\n  hint: plan the model that is trained"),
            "wrapped": ("UsageError", "the model is a DistributedDataParallel module\n"
                        "  hint: autoplan(ddp.module, ...), before the plan's hook is registered"),
            "batch": ("UsageError", "batch is 0\n  hint: it is a whole number from 1"),
            "sample": ("TypeError", "sample_batch is dict without a tensor that has a batch axis\n"
                       "  hint: give what the DataLoader yields: a tensor, or tuples, lists and dicts of tensors"),
            "seconds": ("UsageError", "seconds is '60'\n  hint: it is a number above 0"),
            "no parameters": ("InvalidInput", "the model has no parameter with requires_grad\n"
                              "  hint: plan the model that is trained"),
            "optimizer": ("UsageError", "optimizer is 'sgd'\n"
                          "  hint: autoplan(model, loss_fn, sample_batch, batch=512, optimizer=optimizer)"),
            "small": ("UsageError", "batch is 1, and the job has 2 ranks\n  hint: each rank takes a sample at least"),
            "batches": ("UsageError", "batch is 16 on rank 0 and 17 on rank 1\n"
                        "  hint: it is the number of samples of a step over all ranks, the same on each"),
            "models": ("UsageError", "the model of rank 1 has other parameters than that of rank 0\n"
                       "  hint: every rank plans the same model"),
            "folder": ("Error", "rank 0 cannot be planned: UsageError: the cache cannot be written: [Errno 20] Not a "
                       "directory: '/dev/null/cache'\n"
                       "  hint: autoplan(..., cache=FOLDER) with another folder; cache=None keeps nothing"),
            "one rank": ("Error", "rank 1 cannot be planned: ValueError: no labels"),
            "memory": ("Error", "rank 1 cannot be planned: Error: there is no memory for one sample: no room\n"
                       "  hint: a smaller model, activation checkpointing, or a device with more memory"),
        }
        for what, error in expected.items():
            with self.subTest(what):
                self.assertEqual(on_ranks(refused, what), [error, error])

    def test_spoilt_files_are_named_and_may_be_deleted(self):
        with tempfile.TemporaryDirectory() as folder:
            said, said_1 = on_ranks(by_spoilt_files, folder)
        self.assertEqual(said, said_1)
        hint = "\n  hint: delete STEM.*, and the ranks are measured again"
        self.assertEqual(said, [
            "rank 0 cannot be planned: InvalidInput: the files of an earlier job cannot be used: "
            "Expecting value: line 1 column 1 (char 0)" + hint,
            "rank 0 cannot be planned: InvalidInput: the files of an earlier job cannot be used: "
            "min() arg is an empty sequence" + hint,
            "rank 0 cannot be planned: InvalidInput: STEM.yaml: error: it is no cluster file of autoplan" + hint])

    def test_other_layers_with_the_same_parameters_are_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(on_ranks(of_other_layers, folder), [[True, True, False, False]] * 2)

    def test_a_loss_that_is_no_number_is_said_once(self):
        said = "the loss of sample_batch is nan: steps are measured all the same, but such a model does not train"
        self.assertEqual(on_ranks(without_a_number), [[said]] * 2)

    def test_a_model_that_refuses_to_be_copied_is_planned_with_a_warning(self):
        (ranks, said), (_, said_1) = on_ranks(without_a_copy)
        self.assertEqual((ranks, said_1), (2, []))
        self.assertEqual(said, ["rank 0 cannot copy the model: TypeError: cannot pickle '_thread.lock' object\n"
                                "  so no plan was tried: a step may take some percent longer than the plan expects"])

    def test_none_of_some_ranks_of_a_job_are_left_out(self):
        refused = ("UsageError", "leave_out makes a process group, which all ranks of a job make together, and "
                   "process_group has 2 of 3\n  hint: autoplan(..., leave_out=True) on all ranks, without process_group")
        self.assertEqual(on_ranks(left_out_of_some, ranks=3), [refused, refused, None])

    def test_a_process_group_is_needed(self):
        with self.assertRaises(agpcs.UsageError) as caught:
            autoplan(Net())
        self.assertEqual(str(caught.exception), "autoplan needs a process group\n"
                         "  hint: torch.distributed.init_process_group() first, under torchrun, srun or mpirun")


if __name__ == "__main__":
    unittest.main()
