#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job: checkpoints that other plans and other programs read, whole or not at all."""

import functools
import multiprocessing
import os
import pathlib
import pickle
import tempfile
import unittest
from unittest import mock

from cases import LIMIT, build, on_ranks
import job_cases
from job_cases import FOUR, NEWER, TOLERANCE, TWO, TWO_BY_TWO, Mlp, Tied, TiedHead, Transformer, batches, plan_of

import torch
import torch.distributed as dist
from torch import nn

import agpcs
import agpcs.torch

if NEWER:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import state_dict as torch_state

FIRST, STEPS = 3, 6  # steps before the checkpoint, and in all


def optimizer_of(parameters):
    # A larger eps than usual: some gradients are 0 but for rounding, which Adam would make steps of.
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1, eps=1e-3)


def schedule_of(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


job_of = functools.partial(job_cases.job_of, optimizer_fn=optimizer_of)


def by_one_process(rank, kind):
    model = build(kind)
    optimizer = optimizer_of(model.parameters())
    schedule, losses = schedule_of(optimizer), []
    for *inputs, labels in batches(kind, STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(*inputs), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses, {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def begins(rank, kind, plan, path):
    """Losses of a job that saves a checkpoint at its end, once before over one that is there."""
    job = job_of(kind, plan)
    schedule, losses = schedule_of(job.optimizer), []
    job.save(path)
    for batch in batches(kind, FIRST):
        losses.append(job.step(batch).item())
        schedule.step()
    job.save(path, extra={"step": FIRST, "schedule": schedule.state_dict()})
    return losses


def goes_on(rank, kind, plan, path):
    """Losses and the final state of a job that goes on from a checkpoint."""
    job = job_of(kind, plan)
    extra = job.load(path)
    schedule, losses = schedule_of(job.optimizer), []
    schedule.load_state_dict(extra["schedule"])
    for batch in batches(kind, STEPS)[extra["step"]:]:
        losses.append(job.step(batch).item())
        schedule.step()
    return losses, {name: tensor.numpy() for name, tensor in job.state_dict().items()}


def read_by_torch(rank, kind, path):
    """Losses of a script without AGPCS that goes on from a checkpoint of a job."""
    model = build(kind)
    optimizer = optimizer_of(model.parameters())
    options = torch_state.StateDictOptions(flatten_optimizer_state_dict=True)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]  # as a schedule of the rate sets it
    module, states = torch_state.get_state_dict(model, optimizer, options=options)
    checkpoint.load({"model": module, "optim": states}, checkpoint_id=path)
    torch_state.set_state_dict(model, optimizer, model_state_dict=module, optim_state_dict=states, options=options)
    schedule, losses = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5, last_epoch=FIRST - 1), []
    for *inputs, labels in batches(kind, STEPS)[FIRST:]:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(*inputs), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def fails_to_save(rank, plan, path):
    """What a job says that saves while rank 1 cannot write, and whether it reads its checkpoint from before."""
    job = job_of(Mlp, plan)
    job.save(path, extra="whole")
    before = {name: tensor.clone() for name, tensor in job.state_dict().items()}
    job.step(batches(Mlp, 1)[0])
    write = checkpoint.FileSystemWriter.write_data

    def full(self, *arguments):
        if dist.get_rank() == 1:
            raise OSError("no room")
        return write(self, *arguments)

    with mock.patch.object(checkpoint.FileSystemWriter, "write_data", full):
        try:
            job.save(path, extra="half")
        except agpcs.Error as error:
            said = str(error)
    left = sorted(os.listdir(os.path.dirname(path)))
    dist.barrier()
    extra = job.load(path)
    same = all(torch.equal(tensor, before[name]) for name, tensor in job.state_dict().items())
    job.save(path, extra="again")  # over what the failure left
    return said, left, extra, same, job.load(path)


def killed(rank, plan, path):
    """Rank 1 ends at once within the writing of its part."""
    job = job_of(Mlp, plan)
    write = checkpoint.FileSystemWriter.write_data

    def killing(self, *arguments):
        write(self, *arguments).wait()
        if dist.get_rank() == 1:
            os._exit(0)

    with mock.patch.object(checkpoint.FileSystemWriter, "write_data", killing):
        job.save(path)


def ranked(rank, folder, work, *arguments):
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    work(rank, *arguments)


def refused(rank, kind, plan, path, optimizer_fn):
    job = job_of(kind, plan, optimizer_fn=optimizer_fn)
    before = {name: tensor.clone() for name, tensor in job.state_dict().items()}
    try:
        job.load(path)
    except (agpcs.Error, OSError) as error:
        said = f"{type(error).__name__}: {error}"
    return said, all(torch.equal(tensor, before[name]) for name, tensor in job.state_dict().items())


def damaged(rank, plan, path):
    """What a job says that loads a checkpoint of which a tensor of rank 1 is damaged, and then goes on: at once, and after
    it loaded one that is whole."""
    from torch.distributed.checkpoint import FileSystemReader
    job = job_of(Mlp, plan)
    job.save(f"{path}.whole", extra="whole")
    job.save(path)
    before = {name: tensor.clone() for name, tensor in job.state_dict().items()}
    dist.barrier()
    if rank == 0:
        place = next(place for index, place in FileSystemReader(path).read_metadata().storage_data.items()
                     if index.fqn == "model.layers.10.weight")
        with open(os.path.join(path, place.relative_path), "r+b") as file:
            file.seek(place.offset)
            file.write(bytes(place.length))
    dist.barrier()
    batch, said = batches(Mlp, 1)[0], []
    for work in (lambda: job.load(path), lambda: job.step(batch), job.state_dict, lambda: job.load_state_dict(before),
                 lambda: job.save(f"{path}.next")):
        try:
            said.append(repr(work()))
        except agpcs.Error as error:
            said.append(str(error))
    job.load(f"{path}.whole")
    same = all(torch.equal(tensor, before[name]) for name, tensor in job.state_dict().items())
    job.step(batch)
    dist.barrier()
    if rank == 0:
        pathlib.Path(f"{path}/.metadata").write_bytes(b"no pickle")
    dist.barrier()
    kept = {name: tensor.clone() for name, tensor in job.state_dict().items()}
    for work in (lambda: job.load(path), lambda: job.load_state_dict({**kept, "layers.0.bias": torch.zeros(16 + rank)})):
        try:
            said.append(repr(work()))
        except agpcs.Error as error:
            said.append(f"{type(error).__name__}: {error}")
    return said, same, all(torch.equal(tensor, kept[name]) for name, tensor in job.state_dict().items())


class Trap:
    """Makes a file where it is unpickled."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return open, (self._path, "w")


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Checkpoint(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "checkpoint")

    def saved(self, kind, layout):
        plan = plan_of(kind, layout)
        losses = on_ranks(begins, kind, plan, self.path, ranks=plan.ranks)[0]
        self.assertNotIsInstance(losses[0], str, losses)
        return losses

    def assert_near(self, found, wanted):
        self.assertEqual(len(found), len(wanted))
        for a, b in zip(found, wanted):
            self.assertLess(abs(a - b), TOLERANCE * abs(b), f"{found}\n{wanted}")

    def check_goes_on(self, kind, first, *others):
        (losses, state), = on_ranks(by_one_process, kind, ranks=1)
        self.assert_near(self.saved(kind, first), losses[:FIRST])
        for layout in others:
            plan = plan_of(kind, layout)
            for found, tensors in on_ranks(goes_on, kind, plan, self.path, ranks=plan.ranks):
                self.assertNotIsInstance(found, str, tensors)
                self.assert_near(found, losses[FIRST:])
                for name, tensor in state.items():
                    self.assertLess(abs(tensor - tensors[name]).max() / abs(tensor).max(), TOLERANCE, name)
        return losses

    def test_of_two_stages_is_read_by_uneven_replicas_by_four_stages_and_by_torch_alone(self):
        losses = self.check_goes_on(Transformer, TWO, TWO_BY_TWO, FOUR)
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ["checkpoint"])
        found, = on_ranks(read_by_torch, Transformer, self.path, ranks=1)
        self.assert_near(found, losses[FIRST:])

    def test_of_uneven_replicas_is_read_by_two_stages_with_tied_parameters(self):
        self.check_goes_on(Tied, TWO_BY_TWO, TWO)
        self.check_goes_on(TiedHead, TWO, TWO_BY_TWO)  # two stages hold its table

    def test_is_there_whole_or_not_at_all(self):
        for said, left, extra, same, again in on_ranks(fails_to_save, plan_of(Mlp, TWO), self.path):
            self.assertEqual(said, f"rank 1 cannot write the checkpoint '{self.path}.partial': OSError: no room")
            self.assertEqual(left, ["checkpoint", "checkpoint.partial"])
            self.assertEqual((extra, same, again), ("whole", True, "again"))

    def test_that_is_damaged_leaves_no_rank_with_half_of_it(self):
        results = on_ranks(damaged, plan_of(Mlp, TWO), self.path)
        half = (f"the job has a part of the checkpoint '{self.path}', the rest of which could not be read\n  hint: job.load of "
                "a whole checkpoint, or a new job")
        for said, same, kept in results:
            self.assertRegex(said[0], f"^rank [01] cannot read the checkpoint '{self.path}': ")
            self.assertEqual(said[1:5], [half] * 4)
            self.assertTrue(same)
            self.assertRegex(said[5], f"^InvalidInput: {self.path}/.metadata: is damaged: ")
            self.assertTrue(kept)
        first, second = (said[6] for said, _, _ in results)
        self.assertEqual(second, "PlanMismatch: the state is of another module: 'layers.0.bias' differs")
        self.assertEqual(first, f"Error: rank 1 cannot load the state: {second}")

    def test_runs_nothing_that_it_names(self):
        from agpcs._job.checkpoint import _loaded, metadata_of
        sprung = f"{self.path}.sprung"
        checkpoint.save({"weight": torch.ones(2), "trap": Trap(sprung)}, checkpoint_id=self.path, no_dist=True)
        self.assertEqual(set(metadata_of(self.path).state_dict_metadata), {"weight", "trap"})
        with self.assertRaisesRegex(agpcs.Error, f"cannot read the checkpoint '{self.path}': UnpicklingError: 'trap' names io.open,"):
            _loaded(self.path, {"trap": None}, {"trap": ("trap",)})
        pathlib.Path(f"{self.path}/.metadata").write_bytes(pickle.dumps(Trap(sprung)))
        with self.assertRaisesRegex(agpcs.InvalidInput, "it names _?io.open, which no checkpoint needs"):
            metadata_of(self.path)
        self.assertFalse(os.path.exists(sprung))

    def test_reads_no_file_that_is_not_its_own(self):
        from agpcs._job.checkpoint import _loaded, metadata_of
        checkpoint.save({"weight": torch.ones(2)}, checkpoint_id=self.path, no_dist=True)
        found = metadata_of(self.path)
        name = next(iter(found.storage_data.values())).relative_path
        metadata = pathlib.Path(self.path, ".metadata")
        for other in (f"../{name}", f"{self.path}/{name}"):
            for place in found.storage_data.values():
                place.relative_path = other
            metadata.write_bytes(pickle.dumps(found))
            with self.assertRaisesRegex(agpcs.InvalidInput, f"it names the file '{other}', which is not in its folder"):
                metadata_of(self.path)
            with self.assertRaisesRegex(agpcs.Error, f"it names the file '{other}', which is not in its folder"):
                _loaded(self.path, {"weight": torch.zeros(2)}, {"weight": ("weight",)})

    def test_waits_for_no_pipe(self):
        from agpcs._job.checkpoint import metadata_of
        checkpoint.save({"weight": torch.ones(2)}, checkpoint_id=self.path, no_dist=True)
        name = next(iter(metadata_of(self.path).storage_data.values())).relative_path
        for pipe in (name, ".metadata"):
            os.remove(os.path.join(self.path, pipe))
            os.mkfifo(os.path.join(self.path, pipe))
            with self.assertRaisesRegex(agpcs.InvalidInput, f"'{pipe}' is not a file"):
                metadata_of(self.path)

    def test_whose_rank_was_killed_is_none(self):
        context = multiprocessing.get_context("fork")
        with tempfile.TemporaryDirectory() as folder:
            ranks = [context.Process(target=ranked, args=(rank, folder, killed, plan_of(Mlp, TWO), self.path)) for rank in (0, 1)]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join(LIMIT)
                self.assertIsNotNone(process.exitcode, "a rank waits for one that is gone")
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ["checkpoint.partial"])
        self.assertIn("__1_0.distcp", os.listdir(f"{self.path}.partial"))
        for path in (self.path, f"{self.path}.partial"):
            for said, same in on_ranks(refused, Mlp, plan_of(Mlp, TWO), path, optimizer_of):
                self.assertTrue(same)
                self.assertEqual(said, f"FileNotFoundError: '{path}' is no checkpoint: it has no '.metadata', which is "
                                       "written last")

    def test_is_found_where_a_job_ended_between_two_names(self):
        self.saved(Mlp, TWO)
        os.rename(self.path, f"{self.path}.replaced")
        losses, _ = on_ranks(goes_on, Mlp, plan_of(Mlp, TWO), self.path)[0]
        self.assertEqual(len(losses), STEPS - FIRST)

    def test_of_another_module_or_optimizer_is_refused_by_name(self):
        self.saved(Mlp, TWO)
        for said, same in on_ranks(refused, Transformer, plan_of(Transformer, TWO), self.path, optimizer_of):
            self.assertTrue(same)
            self.assertRegex(said, "^PlanMismatch: the checkpoint is of another module: 'head.bias' differs, and [0-9]+ more$")
        for said, same in on_ranks(refused, Mlp, plan_of(Mlp, TWO), self.path, sgd_of):
            self.assertTrue(same)
            self.assertRegex(said, "^PlanMismatch: the checkpoint has the state of AdamW for 'layers.[0-9]+.weight', and the "
                                   "job's optimizer is SGD$")

    def test_never_replaces_what_is_none(self):
        pathlib.Path(self.path).mkdir()
        pathlib.Path(self.path, "notes.txt").write_text("mine")
        first, second = on_ranks(begins, Mlp, plan_of(Mlp, TWO), self.path)
        self.assertEqual(first, ("UsageError", f"'{self.path}' is in the way: it is no checkpoint, it has 'notes.txt'"))
        self.assertEqual(second, ("Error", f"rank 0 cannot save: UsageError: {first[1]}"))
        self.assertEqual(pathlib.Path(self.path, "notes.txt").read_text(), "mine")


def sgd_of(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


if __name__ == "__main__":
    unittest.main()
