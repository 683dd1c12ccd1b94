#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job by plans whose replicas are teams: it trains as one process does, and a member holds its part."""

import functools
import itertools
import json
import tempfile
import unittest

from cases import build, divided, gathered, on_ranks
from job_cases import (BATCH, CLUSTER, NEWER, TOLERANCE, Compares, OneBert, Transformer, UNet, batches, exported, job_of,
                       optimizer_fn_of, plan_of)
from switching import EACH, Switches, Training, adamw, by_one_process as adamw_by_one_process, sgd
from team_cases import PLACES, WORDS, BatchNet, Gpt4, Llama, Mixture, OneHead, OneHotMixture
from test_job_dropout import SEED, by_one_process as dropped_by_one_process
from test_job_parameters import GroupNet
from test_job_switch import refusing, started
from test_job_training import Compares as Near, by_job, by_one_process

import torch
import torch.distributed as dist
from torch.nn import functional

import agpcs
import agpcs.torch
from agpcs._job.teams.exchange import COPY, SUM, Lying, TeamLink, exchange_between, part_of
from agpcs._job.teams.member_ops import _rows_of_part
from agpcs._torch_watch import Change

# Between whose devices messages cost next to nothing, so that members divide whatever they can.
NEAR = CLUSTER.replace("40 GFLOPS", "1 GFLOPS").replace("20 us", "1 ns").replace("5 us", "0 us").replace(
    "bandwidth: 2 GB/s", "bandwidth: 500 GB/s").replace("10 Gbit", "800 Gbit")
EVEN, UNEVEN = "a/0+a/1,parts=1+1", "a/0+a/1,parts=5+3"


def lyings(members):
    """Ways in which a tensor of 3 x 8 x 12 may lie, in unlike parts and in bands."""
    parts = {2: ((1, ((0, 5),), ((5, 8),)), (1, ((0, 2), (4, 6)), ((2, 4), (6, 8))), (2, ((0, 2), (6, 8)), ((2, 6), (8, 12)))),
             3: ((1, ((0, 3),), ((3, 7),), ((7, 8),)), (2, ((0, 2), (6, 8)), ((2, 5), (8, 11)), ((5, 6), (11, 12))))}
    return [COPY, SUM, *(Lying("part", axis, ranges) for axis, *ranges in parts[members] for ranges in [tuple(ranges)])]


def exchanged(rank, ranks):
    """By (from, to): whether the member's tensor is what it should be, and what the member has of a sum."""
    link, found = TeamLink(list(ranks), rank), {}
    link.join(dist.new_group(sorted(ranks)))
    generator = torch.Generator().manual_seed(1)

    def own(whole, summands, lying):
        if lying == SUM:
            return summands[link.member].clone()
        return whole.clone() if lying == COPY else part_of(whole, lying, link.member).clone()

    for (i, source), (j, target) in itertools.product(enumerate(lyings(len(ranks))), repeat=2):
        whole, *summands = torch.randn(len(ranks), 3, 8, 12, generator=generator, dtype=torch.float64)
        summands.append(whole - sum(summands))
        made = link.exchange(own(whole, summands, source), source, target)
        right = None if target == SUM else bool(torch.allclose(made, own(whole, summands, target)))
        found[i, j] = right, made.numpy() if target == SUM else None, whole.numpy()
    return found


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Exchanges(unittest.TestCase):
    def test_every_exchange_of_unlike_parts(self):
        for ranks in ((0, 1), (1, 0), (2, 0, 1)):
            every, names = on_ranks(exchanged, ranks, ranks=len(ranks)), set()
            for (i, source), (j, target) in itertools.product(enumerate(lyings(len(ranks))), repeat=2):
                with self.subTest(ranks=ranks, source=source, target=target):
                    names.add(exchange_between(source, target))
                    if target == SUM:
                        whole = every[0][i, j][2]
                        self.assertLess(abs(sum(of_rank[i, j][1] for of_rank in every) - whole).max(), 1e-12)
                    else:
                        self.assertTrue(all(of_rank[i, j][0] for of_rank in every))
            self.assertEqual(len(names), 8, "an exchange was not tried")


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Rows(unittest.TestCase):
    def test_rows_of_a_table_add_up_to_the_whole(self):
        (found, gradient), = on_ranks(of_rows, ranks=1)
        self.assertTrue(found and gradient)


def of_rows(rank):
    """Whether what three members have of a look-up, and of the table's gradient, is that of the whole table."""
    table, indices = torch.randn(10, 4), torch.tensor([[0, 3, 9], [3, 5, 7]])
    whole = table.clone().requires_grad_()
    looked_up, factors = functional.embedding(indices, whole, 3), torch.randn(2, 3, 4)
    (looked_up * factors).sum().backward()
    parts, sums = [], 0
    for begin, end in ((0, 2), (2, 6), (6, 10)):
        parts.append(table[begin:end].clone().requires_grad_())
        sums = sums + _rows_of_part(parts[-1], indices, begin, end, 3)
    (sums * factors).sum().backward()
    return torch.equal(sums, looked_up), torch.equal(torch.cat([part.grad for part in parts]), whole.grad)


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Trains(Compares):
    """Losses of all steps and final parameters equal those of one process."""

    def compare_teams(self, kind, *others):
        for layout, cluster in ((EVEN, NEAR), (UNEVEN, NEAR), *others):
            with self.subTest(layout=layout, near=cluster is NEAR):
                plan = plan_of(kind, layout, 2, cluster=cluster)
                self.assertTrue("part:" in plan.text or cluster is CLUSTER, "nothing is divided")
                self.compare(kind, plan)

    def test_a_gpt_of_four_layers(self):
        self.compare_teams(Gpt4, (UNEVEN, CLUSTER))

    def test_a_llama_with_grouped_queries(self):
        self.compare_teams(Llama, (UNEVEN, CLUSTER))

    def test_some_queries_of_a_causal_attention(self):
        for layout in (EVEN, UNEVEN):
            with self.subTest(layout=layout):
                plan = plan_of(OneHead, layout, 2, cluster=NEAR)
                self.assertIn("split=queries", plan.text)
                self.compare(OneHead, plan)

    def test_teams_beside_replicas_and_in_pipelines(self):
        for layout in ("a/0+a/1,parts=5+3|b/0", "a/0|b/0+b/1", "a/0+a/1,parts=5+3|b/0+b/1", "a/0+a/1:3,b/0+b/1:1,parts=5+3"):
            with self.subTest(layout=layout):
                plan = plan_of(Gpt4, layout, 4, cluster=NEAR)
                self.assertIn("part:", plan.text)
                self.compare(Gpt4, plan)

    def test_a_transformer_whose_places_are_averaged(self):
        self.compare_teams(Transformer)

    def test_a_bert_with_a_mask(self):
        self.compare_teams(OneBert)

    def test_convolutions_and_skips(self):
        self.compare_teams(UNet)

    def test_a_mixture_of_experts(self):
        """Members have experts of their own; and where messages cost next to nothing, groups of tokens."""
        experts = NEAR.replace("500 GB/s", "5 GB/s")
        for kind, layout, cluster, letter in ((Mixture, EVEN, experts, "e"), (Mixture, UNEVEN, experts, "e"),
                                              (OneHotMixture, EVEN, NEAR, "g")):
            with self.subTest(kind=kind.__name__, layout=layout, letter=letter):
                plan = plan_of(kind, layout, 2, cluster=cluster)
                self.assertIn(f'einsum_1 split="index {letter}"', plan.text)
                self.assertEqual("parameter layers.0.up type=fp32 shape=8x32x64 forms=part:0:" in plan.text, letter == "e")
                self.compare(kind, plan)

    def test_batch_norm(self):
        plan = plan_of(BatchNet, UNEVEN, 2, cluster=NEAR)
        self.assertIn("part:", plan.text)
        self.compare(BatchNet, plan, ((0, 5), (5, 10)))  # running statistics, too


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Moves(Switches):
    """From and to plans with teams. Losses are those of one process."""

    def plans(self, kind, *layouts, micro_batches=2):
        return [plan_of(kind, layout, micro_batches, cluster=NEAR) for layout in layouts]

    def test_from_a_pipeline_to_teams_and_on_to_others_and_back(self):
        plans = self.plans(Gpt4, "a/0|a/1", UNEVEN, EVEN, "a/0|a/1")
        self.assertTrue(all("part:" in plan.text for plan in plans[1:3]))
        self.check(Gpt4, plans, adamw, 0.5)

    def test_between_teams_and_ranks_that_divide_state_and_parameters(self):
        shares = plan_of(Gpt4, "a/0,a/1", 2, cluster=NEAR, all_reduce="ring")
        teams, = self.plans(Gpt4, UNEVEN)
        of_parameters = gathered(shares, 3, 1, model=exported(Gpt4), cluster=NEAR)
        self.assertIn("state=parameters", of_parameters.text)
        self.check(Gpt4, [teams, divided(shares, 3, 1), teams, of_parameters, teams], adamw)

    def test_a_new_plan_for_a_rank_that_has_become_slower(self):
        plan, = self.plans(Gpt4, EVEN)
        steps = 2 * EACH
        (wanted, final), = on_ranks(adamw_by_one_process, Gpt4, adamw, steps, ranks=1)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(NEAR)
            file.flush()
            for losses, before, after, state in on_ranks(replanned, plan, file.name):
                self.assertNotIsInstance(losses, str, before)
                self.assertIn("part:", after, "the new plan has no teams")
                self.assertNotEqual(before, after)
                self.assert_same(losses, wanted, state, final)

    def test_between_teams_with_shares_and_teams_in_a_pipeline(self):
        self.check(Gpt4, self.plans(Gpt4, "a/0+a/1:3,b/0+b/1:1,parts=5+3", "a/0+a/1,parts=5+3|b/0+b/1", "a/0|a/1|b/0|b/1",
                                    "a/0+a/1:1,b/0+b/1:1"), adamw)

    def test_with_dropout_by_the_sample(self):
        slower = NEAR.replace("500 GB/s", "5 GB/s")  # on faster links members divide what is dropped, which is refused
        plans = [plan_of(Dropped, layout, 2, cluster=slower) for layout in ("a/0|a/1", UNEVEN)] * 2
        self.assertIn("part:", plans[1].text)
        (wanted, final), = on_ranks(functools.partial(dropped_by_one_process, steps=EACH * len(plans)), Dropped, ranks=1)
        for losses, state in on_ranks(dropping, plans):
            self.assertNotIsInstance(losses, str, state)
            self.assert_same(losses, wanted, state, final)

    def test_of_a_switch_that_fails_is_whole_or_not_at_all(self):
        alone, uneven, even = self.plans(Gpt4, "a/0|a/1", UNEVEN, EVEN)
        (wanted, final), = on_ranks(adamw_by_one_process, Gpt4, sgd, 4, ranks=1)
        for before, after in ((alone, uneven), (uneven, even), (uneven, alone)):
            first, second = on_ranks(refusing, Gpt4, before, [], after)
            for losses, _, state in (first, second):
                self.assertNotIsInstance(losses, str, state)
                self.assert_same(losses, wanted, state, final)
            self.assertEqual((first[1], second[1]), (["Error: rank 1 cannot switch: ValueError: no optimizer today"],
                                                     ["ValueError: no optimizer today"]))

    def test_a_member_that_is_lost_is_named_and_the_job_goes_on_from_its_newest_checkpoint(self):
        plan, = self.plans(Gpt4, UNEVEN)
        self.assertIn("part:", plan.text)
        with tempfile.TemporaryDirectory() as folder:
            first, said = started(plan, folder, 1, Gpt4)
            rest, no_more = started(plan, folder, None, Gpt4)
        self.assertRegex(said, r"^rank 1 \(host \S+, process \d+\) is gone: its process ended\n  hint: ")
        self.assertEqual((len(first), rest[:EACH], no_more), (2 * EACH - 1, [None] * EACH, ""))
        (wanted, _), = on_ranks(adamw_by_one_process, Gpt4, adamw, 3 * EACH, ranks=1)
        for a, b in [*zip(first, wanted), *zip(rest[EACH:], wanted[EACH:], strict=True)]:
            self.assertLess(abs(a - b), TOLERANCE * b, (first, rest, wanted))

    def test_running_statistics(self):
        plans = self.plans(BatchNet, "a/0|a/1", UNEVEN, EVEN, "a/0|a/1", micro_batches=1)
        self.assertIn("part:", plans[1].text)
        self.check(BatchNet, plans, adamw)


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Clips(Near):
    def test_parts_count_on_their_members_and_copies_once(self):
        limit = 0.5
        (losses, norms, _, state), = on_ranks(by_one_process, Gpt4, ((0, BATCH),), limit, ranks=1)
        self.assertGreater(min(norms), limit, "nothing was clipped")
        for layout in (UNEVEN, "a/0+a/1:3,b/0+b/1:1,parts=5+3", "a/0+a/1,parts=5+3|b/0"):
            with self.subTest(layout=layout):
                plan = plan_of(Gpt4, layout, 2, cluster=NEAR)
                results = on_ranks(by_job, Gpt4, plan, {"max_norm": limit}, ranks=plan.ranks)
                self.assert_alike(results, losses, state)
                for _, found, *_ in results:
                    self.assert_near(found, norms)


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Holds(unittest.TestCase):
    def test_each_member_has_its_part_of_parameters_and_of_what_the_optimizer_keeps(self):
        plan, model = plan_of(Gpt4, UNEVEN, 2, cluster=NEAR), exported(Gpt4)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(NEAR)
            file.flush()
            data = json.loads(plan._command("json", [plan, "--model", model, "--cluster", file.name]))
        found = on_ranks(held, plan)
        self.assertEqual([elements for elements, _ in found], [memory["gradients"] // 4 for memory in data["memory"]])
        self.assertGreater(found[0][0], found[1][0])
        self.assertEqual([kept for _, kept in found], [elements for elements, _ in found])

    def test_running_statistics_are_in_parts(self):
        for parts in on_ranks(statistics, plan_of(BatchNet, UNEVEN, 2, cluster=NEAR)):
            self.assertEqual(sum(parts), 3 * 16)
            self.assertGreater(min(parts), 0)


def held(rank, plan):
    """The elements of parameters, and of their momenta, on a member."""
    model = build(Gpt4)
    own = dict(model.named_parameters())
    job = job_of(Gpt4, plan, model)
    job.step(batches(Gpt4, 1)[0])
    assert all(model.get_parameter(name) is parameter for name, parameter in own.items()), "a parameter is not the user's object"
    momenta = (state["momentum_buffer"] for state in job.optimizer.state.values())
    return sum(parameter.numel() for parameter in own.values()), sum(momentum.numel() for momentum in momenta)


def statistics(rank, plan):
    model = build(BatchNet)
    job_of(BatchNet, plan, model)
    own = torch.tensor([norm.running_mean.numel() for norm in model.norms])
    every = [torch.empty_like(own) for _ in range(2)]
    dist.all_gather(every, own)
    return [int(of_rank.sum()) for of_rank in every]


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class GoesOn(Near):
    """A job goes on from the checkpoint, or the state, of one by another plan: with other teams, or none."""

    def test_from_checkpoints(self):
        uneven, even = (plan_of(Gpt4, layout, 2, cluster=NEAR) for layout in (UNEVEN, EVEN))
        alone = plan_of(Gpt4, "a/0|b/0", 2)
        (losses, state), = on_ranks(adamw_by_one_process, Gpt4, adamw, 6, ranks=1)
        for first, second in ((uneven, even), (even, alone), (alone, uneven)):
            with tempfile.TemporaryDirectory() as folder:
                for found, tensors in on_ranks(by_checkpoint, first, second, folder):
                    self.assertNotIsInstance(found, str, tensors)
                    self.assert_near(found, losses)
                    for name, tensor in state.items():
                        self.assertLess(abs(tensor - tensors[name]).max() / max(abs(tensor).max(), 1e-3), TOLERANCE, name)


def by_checkpoint(rank, first, second, folder):
    """Losses of three steps by each plan, and the state that is left."""
    begun = Training(Gpt4, first, adamw)
    begun.train()
    begun.job.save(folder + "/three", extra={"schedule": begun.rate.state_dict()})
    other = Training(Gpt4, second, adamw)
    other.rate.load_state_dict(other.job.load(folder + "/three")["schedule"])
    for batch in batches(Gpt4, 6)[3:]:
        other.losses.append(other.job.step(batch).item())
        other.rate.step()
    third = Training(Gpt4, first, adamw)
    third.job.load_state_dict(other.job.state_dict())
    for name, tensor in third.job.state_dict().items():
        assert torch.equal(tensor, other.job.state_dict()[name]), name
    return begun.losses + other.losses, {name: tensor.numpy() for name, tensor in other.job.state_dict().items()}


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Plans(unittest.TestCase):
    def plan(self, kind, **options):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(NEAR)
            file.flush()
            return agpcs.torch.plan(build(kind), batches(kind, 1)[0], cluster=file.name, bound=False, **options)

    def test_what_a_plan_says_of_teams(self):
        plan = self.plan(Gpt4, layout="a/0+a/1:3,b/0+b/1:1,parts=5+3", micro_batches=2)
        stage, = plan.stages
        self.assertEqual((stage.ranks, stage.further, stage.all_ranks), ((0, 2), ((1,), (3,)), (0, 1, 2, 3)))
        self.assertEqual((plan.ranks, plan.devices, plan.shares), (4, ("a/0", "a/1", "b/0", "b/1"), (8, 8, 2, 2)))
        self.assertIn(" on a/0+a/1, b/0+b/1, samples 4, 1", str(plan))

    def test_teams_are_chosen_where_they_are_asked_for_and_job_runs_them(self):
        options = {"seeders": ["data_parallel", "teams"], "refiner": "none", "batch": 1}  # a sample has one replica
        self.assertTrue(any(stage.further for stage in self.plan(Gpt4, teams=True, **options).stages))
        self.assertFalse(any(stage.further for stage in self.plan(Gpt4, **{**options, "seeders": ["data_parallel"]}).stages))
        with self.assertWarnsRegex(UserWarning, "the plan has no teams, for agpcs.torch.Job does not run those.*group_norm"):
            plan = self.plan(GroupNet, teams=True, **options)
        self.assertFalse(any(stage.further for stage in plan.stages))


class Dropped(Gpt4):
    """Whole words of a sample count for nothing."""

    DROPS = True

    def forward(self, tokens):
        return super().forward(tokens) * functional.dropout((tokens >= 0).float(), 0.2).unsqueeze(1)


def dropping(rank, plans):
    """Losses of a job that switches from plan to plan, and the final state."""
    job, losses = job_of(Dropped, plans[0], optimizer_fn=optimizer_fn_of(Dropped), dropout="by-sample", seed=SEED), []
    for number, batch in enumerate(batches(Dropped, EACH * len(plans))):
        if number > 0 and number % EACH == 0:
            job.switch(plans[number // EACH])
        losses.append(job.step(batch).item())
    return losses, {name: tensor.numpy() for name, tensor in job.state_dict().items()}


class Dropping(Gpt4):
    def forward(self, tokens):
        return super().forward(tokens) * functional.dropout(torch.ones(WORDS, PLACES), 0.1)


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Refuses(unittest.TestCase):
    """By name, on every rank."""

    def refused(self, said, work, *arguments):
        for result in on_ranks(work, *arguments):
            self.assertIsInstance(result[0], str, "nothing was refused")
            self.assertIn(said, result[1])

    def test_what_teams_do_not_do(self):
        plan = plan_of(Gpt4, UNEVEN, 2, cluster=NEAR)
        self.refused("stage s0 of the plan has teams, which agpcs.torch.Job does not compile", begun, Gpt4, plan, {"compile": True})
        self.refused("torch.optim.lbfgs.LBFGS may need all of a parameter at once", begun, Gpt4, plan, {"optimizer_fn": lbfgs})
        self.refused("stage s0 of the plan has teams, which agpcs.torch.Job does not compile", switched,
                     plan_of(Gpt4, "a/0|a/1", 2), plan, {"compile": True})
        with self.assertRaisesRegex(agpcs.PlanMismatch, "are teams; DistributedDataParallel trains replicas of one device each"):
            agpcs.torch.plan_hook(plan)
        with self.assertRaisesRegex(agpcs.PlanMismatch, "are teams, whose members have no shares of their own"):
            agpcs.torch.PlanSampler(range(100), plan, rank=0)

    def test_nodes_that_a_plan_divides_inside(self):
        self.refused("'group_norm' (group_norm.default) in blocks.0.1", begun, GroupNet, plan_of(GroupNet, EVEN, 2, cluster=NEAR), {})

    def test_random_numbers_that_members_would_draw_apart(self):
        self.refused("members of a team would draw unlike ones", begun, Dropping, plan_of(Dropping, UNEVEN, 2, cluster=NEAR), {})


def replanned(rank, plan, cluster):
    """Losses of a job that plans again as rank 1 takes three times as long, its plans before and after, and the final state."""
    training = Training(Gpt4, plan, adamw, replan=cluster)
    job = training.job
    training.train()
    before = job.plan.text
    if rank == 0:
        job._replanning.drifted([Change("", "compute", 1, 3.0, 1)])
        assert not job._replanning.has_plan()
        job._replanning._search.join()
        assert job._replanning._search.error is None, job._replanning._search.error
        job._replanning._ratio = 1e-3  # what steps take is this test's to say
        assert job._replanning.has_plan(), "no plan is better"
    dist.barrier()
    job._replanning.announce()
    training.train()
    return training.losses, before, job.plan.text, training.state()


def lbfgs(parameters):
    return torch.optim.LBFGS([parameter for _, parameter in parameters])


def begun(rank, kind, plan, options):
    job_of(kind, plan, **options).step(batches(kind, 1)[0])
    return None, None


def switched(rank, plan, other, options):
    job_of(Gpt4, plan, **options).switch(other)
    return None, None


if __name__ == "__main__":
    unittest.main()
