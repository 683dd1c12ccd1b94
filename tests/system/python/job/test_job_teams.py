#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job by plans whose replicas are teams: it trains as one process does, and a member holds its part."""

import itertools
import unittest

from cases import on_ranks
from job_cases import CLUSTER, NEWER, Compares, plan_of
from team_cases import Gpt4, Llama

import torch
import torch.distributed as dist

from agpcs._job.exchange import COPY, SUM, Lying, TeamLink, exchange_between, part_of

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
class Trains(Compares):
    """Losses of 20 steps and final parameters equal those of one process."""

    def compare_teams(self, kind):
        for layout, cluster in itertools.product((EVEN, UNEVEN), (NEAR, CLUSTER)):
            with self.subTest(layout=layout, near=cluster is NEAR):
                plan = plan_of(kind, layout, 2, cluster=cluster)
                self.assertTrue("part:" in plan.text or cluster is CLUSTER, "nothing is divided")
                self.compare(kind, plan)

    def test_a_gpt_of_four_layers(self):
        self.compare_teams(Gpt4)

    def test_a_llama_with_grouped_queries(self):
        self.compare_teams(Llama)


if __name__ == "__main__":
    unittest.main()
