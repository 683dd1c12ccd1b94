#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job by plans whose replicas are unlike teams: it trains as one process does, and sums gradients slice by slice."""

import random
import tempfile
import unittest

from cases import build, on_ranks
from job_cases import BATCH, NEWER, TOLERANCE, Compares, UNet, batches, expected, optimizer_fn_of, plan_of, trained_by_job
from switching import EACH, Switches, Training, adamw, by_one_process as adamw_by_one_process
from team_cases import BatchNet, Gpt4, Llama
from test_job_teams import NEAR
from test_job_training import Compares as Near, by_job, by_one_process

import torch
from torch.nn import functional

from agpcs._job.teams.exchange import COPY, Lying, part_of
from agpcs._job.teams.slices import slice_sums

TWO_AND_ONE, ONE_AND_TWO = "a/0+a/1,b/0", "a/0,b/0+b/1"
SIX = NEAR.replace("count: 2", "count: 3")


class SixHeads(Gpt4):
    """Whose heads three members divide, and so do two."""

    def __init__(self):
        super().__init__(2, 48, 6)


def unlike(kind, layout, micro_batches=2, cluster=NEAR):
    plan = plan_of(kind, layout, micro_batches, cluster=cluster)
    assert "body=t0,t1" in plan.text and "part:" in plan.text, plan.text
    return plan


def divided(generator, extent, members):
    """Random parts of an axis, in one range each or in two."""
    bands, first, ranges = generator.choice([1, 2]), 0, [[] for _ in range(members)]
    for _ in range(bands):
        ends = sorted(generator.sample(range(1, extent // bands), members - 1))
        for own, begin, end in zip(ranges, [0, *ends], [*ends, extent // bands]):
            own.append((first + begin, first + end))
        first += extent // bands
    return tuple(map(tuple, ranges))


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Slices(unittest.TestCase):
    """Of random divisions."""

    SHAPE = (12, 16)

    def test_each_rank_gets_the_sums_of_all_that_it_has_and_each_replica_counts_once(self):
        generator = random.Random(1)
        for case in range(50):
            counts = [generator.randint(1, 3) for _ in range(generator.randint(2, 4))]
            ranks, first, every = list(range(sum(counts))), 0, []
            generator.shuffle(ranks)
            for count in counts:
                axis = generator.randrange(2)
                lying = COPY if count == 1 or generator.random() < 0.3 else Lying("part", axis, divided(generator, self.SHAPE[axis], count))
                every.append((ranks[first:first + count], {} if lying == COPY else {"w": lying}))
                first += count
            with self.subTest(case=case, replicas=every):
                self.check(every)

    def check(self, replicas):
        wholes = [torch.randint(0, 1000, self.SHAPE) for _ in replicas]
        wanted = sum(wholes)
        place = {rank: (number, member) for number, (ranks, _) in enumerate(replicas) for member, rank in enumerate(ranks)}
        lies = [held.get("w", COPY) for _, held in replicas]

        def own(whole, rank):
            number, member = place[rank]
            return whole.clone() if lies[number] == COPY else part_of(whole, lies[number], member).clone()

        summed = {rank: torch.full_like(own(wanted, rank), -1) for rank in place}
        sums = slice_sums(["w"], replicas)
        self.assertEqual([one.ranks for one in sums], sorted({one.ranks for one in sums}))
        for one in sums:
            for part in one.boxes:
                total = sum(part.of(own(wholes[place[rank][0]], rank), lies[place[rank][0]], place[rank][1])
                            for rank in one.ranks if one.counts(replicas[place[rank][0]][0], rank))
                for rank in one.ranks:
                    into = part.of(summed[rank], lies[place[rank][0]], place[rank][1])
                    self.assertTrue((into == -1).all(), "an element is in two sums")
                    into.copy_(total)
        for rank, tensor in summed.items():
            self.assertTrue(torch.equal(tensor, own(wanted, rank)))

    def test_copies_of_one_number_are_summed_apart_and_others_once_for_each_replica(self):
        halves = Lying("part", 0, (((0, 6),), ((6, 12),)))
        (one,) = slice_sums(["w"], [([0], {}), ([1, 2], {})])
        self.assertEqual((one.ranks, [one.counts([1, 2], rank) for rank in (1, 2)]), ((0, 1, 2), [True, False]))
        self.assertEqual([sum.ranks for sum in slice_sums(["w"], [([0, 1], {}), ([2, 3], {})])], [(0, 2), (1, 3)])
        sums = slice_sums(["w"], [([0], {}), ([2, 1], {"w": halves})])
        self.assertEqual([(sum.ranks, [part.ranges for part in sum.boxes]) for sum in sums],
                         [((0, 1), [((0, 6, 12),)]), ((0, 2), [((0, 0, 6),)])])


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Trains(Compares):
    """Losses of all steps and final parameters equal those of one process."""

    def test_a_gpt_by_a_team_beside_a_rank_alone(self):
        for layout in (TWO_AND_ONE, "a/0:1,b/0+b/1:4"):
            with self.subTest(layout=layout):
                self.compare(Gpt4, unlike(Gpt4, layout))

    def test_a_gpt_by_three_replicas_of_one_two_and_one(self):
        self.compare(Gpt4, unlike(Gpt4, "a/0,a/1+a/2,b/0", 1, SIX))

    def test_a_llama_by_a_rank_alone_beside_a_team(self):
        self.compare(Llama, unlike(Llama, ONE_AND_TWO))

    def test_a_gpt_by_teams_of_three_and_two(self):
        self.compare(SixHeads, unlike(SixHeads, "a/0+a/1+a/2:3,b/0+b/1:2", 1, SIX))

    def test_in_a_wire_type(self):
        losses, _ = expected(Gpt4, ((0, BATCH),))
        plan = plan_of(Gpt4, TWO_AND_ONE, 2, cluster=NEAR, wire_type="bf16")
        for found, tensors, _ in on_ranks(trained_by_job, Gpt4, plan, False, ranks=3):
            self.assertNotIsInstance(found, str, tensors)
            differences = [abs(a - b) / a for a, b in zip(losses, found, strict=True)]
            self.assertLess(max(differences), 1e-3)
            self.assertGreater(max(differences), 1e-7, "nothing was rounded")

    def test_in_a_pipeline(self):
        self.compare(Gpt4, unlike(Gpt4, "a/0,b/0+b/1|a/1"))

    def test_convolutions_and_skips(self):
        self.compare(UNet, unlike(UNet, ONE_AND_TWO))

    def test_running_statistics_are_those_of_the_first_replica(self):
        (losses, state), = on_ranks(by_one_process_in_halves, ranks=1)
        for layout in ("a/0:1,b/0+b/1:1", "a/0+a/1:1,b/0:1"):
            with self.subTest(layout=layout):
                for found, tensors, _ in on_ranks(trained_by_job, BatchNet, unlike(BatchNet, layout, 1), False, ranks=3):
                    self.assertNotIsInstance(found, str, tensors)
                    for a, b in zip(losses, found, strict=True):
                        self.assertLess(abs(a - b), TOLERANCE * a)
                    for name, tensor in state.items():
                        self.assertLess(abs(tensor - tensors[name]).max() / max(abs(tensor).max(), 1e-3), TOLERANCE, name)


def by_one_process_in_halves(rank):
    """Losses and the final state of a BatchNet that computes each batch in halves, of which the first changes running statistics."""
    model = build(BatchNet)
    optimizer, losses = optimizer_fn_of(BatchNet)(model.parameters()), []
    for inputs, labels in batches(BatchNet):
        optimizer.zero_grad()
        losses.append(0)
        for begin, end in ((0, 5), (5, 10)):
            before = {name: buffer.clone() for name, buffer in model.named_buffers()}
            loss = functional.cross_entropy(model(inputs[begin:end]), labels[begin:end]) / 2
            loss.backward()
            losses[-1] += loss.item()
            for name, buffer in model.named_buffers() if begin > 0 else ():
                buffer.copy_(before[name])
        optimizer.step()
    return losses, {name: tensor.numpy() for name, tensor in model.state_dict().items()}


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Clips(Near):
    def test_each_element_counts_once(self):
        limit = 0.5
        (losses, norms, _, state), = on_ranks(by_one_process, Gpt4, ((0, BATCH),), limit, ranks=1)
        self.assertGreater(min(norms), limit, "nothing was clipped")
        plan = unlike(Gpt4, "a/0+a/1:4,b/0:1")
        results = on_ranks(by_job, Gpt4, plan, {"max_norm": limit}, ranks=plan.ranks)
        self.assert_alike(results, losses, state)
        for _, found, *_ in results:
            self.assert_near(found, norms)


def by_checkpoint(rank, kind, plans, folder):
    """Losses of three steps by each plan, each from the checkpoint of the one before; the state that is left is also taken by a new job
    of the first plan."""
    losses, training = [], None
    for number, plan in enumerate(plans):
        other = Training(kind, plan, adamw)
        if training is not None:
            training.job.save(f"{folder}/{number}", extra={"schedule": training.rate.state_dict()})
            other.rate.load_state_dict(other.job.load(f"{folder}/{number}")["schedule"])
        training = other
        for batch in batches(kind, EACH * (number + 1))[EACH * number:]:
            losses.append(training.job.step(batch).item())
            training.rate.step()
    last = Training(kind, plans[0], adamw)
    last.job.load_state_dict(training.job.state_dict())
    for name, tensor in last.job.state_dict().items():
        assert torch.equal(tensor, training.job.state_dict()[name]), name
    return losses, training.state()


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class GoesOn(Switches):
    def test_from_checkpoints_of_other_plans(self):
        plans = [unlike(Gpt4, TWO_AND_ONE), unlike(Gpt4, ONE_AND_TWO), plan_of(Gpt4, "a/0|a/1|b/0", 2), unlike(Gpt4, ONE_AND_TWO)]
        (wanted, final), = on_ranks(adamw_by_one_process, Gpt4, adamw, EACH * len(plans), ranks=1)
        with tempfile.TemporaryDirectory() as folder:
            for losses, state in on_ranks(by_checkpoint, Gpt4, plans, folder, ranks=3):
                self.assertNotIsInstance(losses, str, state)
                self.assert_same(losses, wanted, state, final)

    def test_a_switch_to_and_from_unlike_teams(self):
        four = "a/0+a/1,b/0+b/1,parts=5+3"
        self.check(Gpt4, [unlike(Gpt4, "a/0+a/1,b/0|b/1"), plan_of(Gpt4, four, 2, cluster=NEAR),
                          unlike(Gpt4, "a/0|a/1,b/0+b/1"), plan_of(Gpt4, "a/0|a/1|b/0|b/1", 2)], adamw)


if __name__ == "__main__":
    unittest.main()
