#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.PlanSampler."""

import unittest

from cases import Bert, plan_of  # plans of batch 8

from torch.utils.data import DataLoader

import agpcs
from agpcs.torch import PlanSampler

SHARES = plan_of(Bert, shares="3:1").shares


def batches(samples, rank, **options):
    return list(PlanSampler(samples, plan_of(Bert, shares="3:1"), rank, **options))


def epoch_of(sampler, epoch):
    sampler.set_epoch(epoch)
    return list(sampler)


def state_after(sampler, steps):
    """The state after so many trained steps, when more batches have been drawn."""
    for epoch in range(3):
        sampler.set_epoch(epoch)
        drawn = list(sampler)
        for step in range(len(drawn)):
            sampler.loss_weight(step)
            steps -= 1
            if steps == 0:
                return sampler.state_dict()
    raise AssertionError("there are not so many steps")


class Sampler(unittest.TestCase):
    def test_each_rank_has_its_share_of_every_batch(self):
        self.assertEqual(SHARES, (6, 2))
        for rank in (0, 1):
            self.assertEqual([len(batch) for batch in batches(32, rank)], [SHARES[rank]] * 4)

    def test_micro_batches_of_two_sizes_make_the_batch(self):
        plan = plan_of(Bert, shares="3:1", batch=11, micro_batches=2)  # of 6 and 5 samples
        self.assertIn("odd=", plan.text)
        self.assertEqual(sum(plan.shares), 11)
        found = [list(PlanSampler(33, plan, rank, shuffle=False)) for rank in (0, 1)]
        for step in range(3):
            self.assertEqual([len(batch[step]) for batch in found], list(plan.shares))
            self.assertEqual(found[0][step] + found[1][step], list(range(11 * step, 11 * step + 11)))

    def test_ranks_share_an_epoch_without_overlap(self):
        seen = sum(batches(27, 0) + batches(27, 1), [])
        self.assertEqual(sorted(seen), list(range(27)))

    def test_a_batch_is_the_same_samples_for_any_shares(self):
        alone = PlanSampler(32, plan_of(Bert, layout="local/0"), 0)
        for whole, first, second in zip(alone, batches(32, 0), batches(32, 1)):
            self.assertEqual(whole, first + second)

    def test_epochs_and_seeds_shuffle_otherwise_and_are_reproducible(self):
        sampler = PlanSampler(64, plan_of(Bert, shares="3:1"), 0, seed=3)
        first = list(sampler)
        sampler.set_epoch(1)
        self.assertNotEqual(first, list(sampler))
        sampler.set_epoch(0)
        self.assertEqual(first, list(sampler))
        self.assertNotEqual(first, batches(64, 0, seed=4))

    def test_goes_on_within_an_epoch(self):
        sampler = PlanSampler(27, plan_of(Bert, shares="3:1"), 0, micro_batches=2)
        sampler.set_epoch(3)
        whole = list(sampler)
        for first in range(len(whole) + 1):
            sampler.set_epoch(3, first)
            self.assertEqual(list(sampler), whole[first:])
            self.assertEqual(len(sampler), len(whole))
        sampler.set_epoch(3)
        self.assertEqual(list(sampler), whole)
        with self.assertRaisesRegex(IndexError, f"^batch {len(whole) + 1} of {len(whole)}$"):
            sampler.set_epoch(3, len(whole) + 1)

    def test_refuses_to_be_dealt_out_to_ranks(self):
        with self.assertRaises(agpcs.PlanMismatch) as raised:
            getattr(PlanSampler(32, plan_of(Bert, shares="3:1"), 0), "batch_size", None)
        self.assertEqual(str(raised.exception),
                         "PlanSampler yields the batches of one rank, and something asks for their size, as libraries do "
                         "that divide batches among ranks\n  hint: accelerate: agpcs.torch.planned_loader; "
                         "Lightning: Trainer(use_distributed_sampler=False)")

    def test_without_shuffling_samples_come_in_order(self):
        self.assertEqual(batches(16, 1, shuffle=False), [[6, 7], [14, 15]])

    def test_the_last_batch_is_divided_by_the_shares_or_dropped(self):
        self.assertEqual([len(batch) for batch in batches(12, 0)], [6, 3])
        self.assertEqual([len(batch) for batch in batches(12, 1)], [2, 1])
        self.assertEqual([len(batch) for batch in batches(12, 0, drop_last=True)], [6])
        self.assertEqual([len(batch) for batch in batches(10, 1)], [2, 1])  # one at least
        self.assertEqual(len(batches(9, 0)), 1)  # fewer than ranks
        self.assertEqual(len(batches(9, 1)), 1)

    def test_weights_make_the_mean_over_the_batch(self):
        for options in ({}, {"micro_batches": 2}, {"averaged": True}, {"averaged": True, "micro_batches": 2},
                        {"divided": True, "micro_batches": 2}):
            for samples in range(8, 17):
                samplers = [PlanSampler(samples, plan_of(Bert, shares="3:1"), rank, **options) for rank in (0, 1)]
                self.assertEqual(len({len(sampler) for sampler in samplers}), 1)
                parts = options.get("micro_batches", 1)
                weight = {}  # of each sample in its step's gradient
                for rank, sampler in enumerate(samplers):
                    reduced = 0.5 if "averaged" in options else SHARES[rank] / 8
                    reduced /= parts if "divided" in options else 1
                    for i, batch in enumerate(sampler):
                        for sample in batch:
                            weight[i // parts, sample] = sampler.loss_weight(i) / len(batch) * reduced
                for step in {step for step, _ in weight}:
                    of_step = [w for (s, _), w in weight.items() if s == step]
                    for w in of_step:
                        self.assertAlmostEqual(w, 1 / len(of_step), msg=f"{options} {samples} samples")

    def test_weighs_nothing_where_there_is_nothing_to_weigh(self):
        sampler = PlanSampler(32, plan_of(Bert, shares="3:1"), 1)
        self.assertEqual([sampler.loss_weight(i) for i in range(4)], [1.0] * 4)
        self.assertEqual(sampler.weigh(2.5, 3), 2.5)
        with self.assertRaisesRegex(IndexError, "batch 4 of 4"):
            sampler.loss_weight(4)

    def test_is_a_batch_sampler(self):
        plan = plan_of(Bert, shares="3:1")
        loader = DataLoader(list(range(20)), batch_sampler=PlanSampler(range(20), plan, 1))
        self.assertEqual([batch.tolist() for batch in loader], batches(20, 1))
        self.assertEqual(len(loader), 3)

    def test_goes_on_within_an_epoch_with_other_ranks_and_workers(self):
        whole = [batch for epoch in range(3) for batch in epoch_of(PlanSampler(36, plan_of(Bert, layout="local/0"), 0), epoch)]
        for trained in range(1, 15):
            samplers = [PlanSampler(36, plan_of(Bert, shares="3:1"), rank) for rank in (0, 1)]
            states = [state_after(sampler, trained) for sampler in samplers]
            self.assertEqual(*states)
            resumed = PlanSampler(36, plan_of(Bert, layout="local/0"), 0)
            resumed.load_state_dict(states[0])
            left = []
            for epoch in range(resumed.epoch, 3):
                resumed.set_epoch(epoch)
                expected = len(resumed)
                batches_here = list(DataLoader(range(36), batch_sampler=resumed, num_workers=2 if trained == 2 else 0))
                self.assertEqual(len(batches_here), expected)
                left += [batch.tolist() for batch in batches_here]
            self.assertEqual(left, whole[trained:], trained)

    def test_a_resumed_epoch_is_weighed_by_its_own_numbers(self):
        sampler = PlanSampler(13, plan_of(Bert, shares="3:1"), 1)  # steps of 8 and 5 samples; 2 of the 5 are this rank's
        full = sampler.loss_weight(1)
        self.assertNotEqual(full, 1.0)
        sampler.loss_weight(0)
        resumed = PlanSampler(13, plan_of(Bert, shares="3:1"), 1)
        resumed.load_state_dict(sampler.state_dict())
        self.assertEqual([len(batch) for batch in resumed], [2])
        self.assertEqual(resumed.loss_weight(0), full)
        with self.assertRaisesRegex(IndexError, "batch 1 of 1"):
            resumed.loss_weight(1)
        self.assertEqual(resumed.state_dict()["epoch"], 1)

    def test_micro_batches_resume_at_steps(self):
        sampler = PlanSampler(24, plan_of(Bert, shares="3:1"), 0, micro_batches=2)
        found = list(sampler)
        for batch in range(3):
            sampler.loss_weight(batch)
        resumed = PlanSampler(24, plan_of(Bert, shares="3:1"), 0, micro_batches=2)
        resumed.load_state_dict(sampler.state_dict())  # in the middle of the second step
        self.assertEqual(list(resumed), found[2:])

    def test_refuses_states_that_say_nothing_or_are_of_other_batches(self):
        sampler = PlanSampler(32, plan_of(Bert, shares="3:1"), 0)
        state = sampler.state_dict()
        self.assertEqual(state, {"epoch": 0, "steps": 0, "samples": 32, "batch": 8, "seed": 0, "shuffle": True})
        next(iter(sampler))
        with self.assertRaises(agpcs.UsageError) as caught:
            sampler.state_dict()
        self.assertEqual(str(caught.exception), "batches were drawn, and no loss was weighed: which of them are trained is "
                         "not known\n  hint: sampler.weigh(loss, i).backward() in each step, and state_dict() after a step")
        with self.assertRaises(agpcs.PlanMismatch) as caught:
            PlanSampler(32, plan_of(Bert, shares="3:1"), 0, seed=5).load_state_dict(state)
        self.assertEqual(str(caught.exception), "the state is of a sampler with seed 0, this one has 5\n"
                         "  hint: the batches are the same with the same dataset, batch, seed and shuffle only")

    def test_refuses_what_does_not_fit(self):
        plan = plan_of(Bert, shares="3:1")
        for words, arguments, options in (
                ("no rank 2 in the plan, which is for 2 ranks", (32, plan, 2), {}),
                ("1 samples do not make a batch of 2", (1, plan, 0), {}),
                ("7 samples do not make a batch of 8", (7, plan, 0), {"drop_last": True}),
                ("a share of 2 samples does not make 3 micro-batches", (32, plan, 0), {"micro_batches": 3}),
                ("idle ranks", (32, plan_of(Bert, layout="local/0", idle_ranks=True), 0), {}),
                ("2 pipeline stages", (32, plan_of(Bert, layout="local/0|local/1"), 0), {})):
            with self.assertRaisesRegex(agpcs.PlanMismatch, words):
                PlanSampler(*arguments, **options)


if __name__ == "__main__":
    unittest.main()
