#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job: stages that compute their forward passes again in segments, of which some may be kept."""

import collections
import unittest

from cases import build, divided, on_ranks
from job_cases import (NEWER, TWO, TWO_BY_TWO, FOUR, Compares, Mlp, OneResNet, Rows, TiedHead, Transformer, UNet, batches, captured,
                      plan_of)

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from agpcs._job.segments import Segmented, Segments
from agpcs._torch_placing import parted, placing


class Counts(TorchDispatchMode):
    """Counts calls of operators."""

    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.calls[function.overloadpacket.__name__] += 1
        return function(*arguments, **(options or {}))


def passes(rank, kind, plan, recomputed):
    """Calls of tanh in a forward pass, and in the backward pass after it, of a plan's only stage; and the nodes that compute, by
    part."""
    known = placing(build(kind), *captured(kind))
    stage, parts = parted(known.place(plan), known.graph.module, known.graph, (0,))[0][0], []

    def prepared(part):
        parts.append([node.name for node in part.graph.nodes if node.op == "call_function"])
        return part

    run = Segments(stage.module, Segmented(recomputed, True), stage.changed, prepared)
    inputs = batches(kind, 1)[0][:-1]
    with Counts() as forward:
        _, (output,) = run(len(inputs[0]), *inputs)
    with Counts() as backward:
        output.sum().backward()
    return forward.calls["tanh"], backward.calls["tanh"], parts


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Parts(unittest.TestCase):
    """What is computed again."""

    def passes(self, kind, recompute, recomputed):
        found, = on_ranks(passes, kind, plan_of(kind, "a/0", 1, recompute=recompute), recomputed, ranks=1)
        self.assertEqual(len(found), 3, found)
        return found

    def test_segments_are_computed_again_and_what_follows_is_not(self):
        for recompute, recomputed, again in (("s0", 1, 5), ("s0=2x2", 2, 2), ("s0=4,2x2", 3, 4), ("s0=6", 1, 3)):
            with self.subTest(recompute=recompute):
                forward, backward, parts = self.passes(Mlp, recompute, recomputed)
                self.assertEqual((forward, backward), (5, again))
                self.assertEqual(len(parts), recomputed + (recompute != "s0"))

    def test_a_segment_ends_behind_a_node_whose_operators_it_would_part(self):
        _, _, (whole,) = self.passes(Rows, "s0", 1)
        for first, again in ((1, 0), (2, 0), (4, 0), (5, 1), (6, 1), (9, 2)):
            with self.subTest(first=first):
                forward, backward, parts = self.passes(Rows, f"s0={first}", 1)
                self.assertEqual((forward, backward), (5, again))
                self.assertEqual([name for part in parts for name in part], whole)


class Trains(Compares):
    """Losses of all steps and final parameters equal those of one process."""

    def test_stages_of_several_segments(self):
        for kind, layout, recompute in ((Mlp, TWO, "s0=1,2 s1=2"), (Transformer, TWO, "s0=9x2,4 s1=5x2"),
                                        (Transformer, TWO_BY_TWO, "s0=11 s1=3,8"), (TiedHead, TWO_BY_TWO, "s0=2 s1=1,2")):
            with self.subTest(kind=kind.__name__, layout=layout):
                self.compare(kind, plan_of(kind, layout, recompute=recompute))

    def test_stages_of_several_segments_whose_ranks_divide_gradients(self):
        for kind, recompute, weights in ((Mlp, "s0=1,2 s1=2", (3, 1, 0, 1)), (Transformer, "s0=11 s1=3,8", (1, 2, 2, 1)),
                                         (TiedHead, "s0=2 s1=1,2", (5, 3, 1, 4))):
            with self.subTest(kind=kind.__name__):
                plan = plan_of(kind, TWO_BY_TWO, all_reduce="ring", recompute=recompute)
                self.compare(kind, divided(plan, *weights, level="gradients"))

    def test_a_unet_whose_skips_pass_segments_by(self):
        self.compare(UNet, plan_of(UNet, FOUR, recompute="s0=1,2 s2 s3=2"))
        self.compare(UNet, plan_of(UNet, TWO, recompute="s0=3x2 s1=2x3"))

    def test_batch_norm_counts_once(self):
        self.compare(OneResNet, plan_of(OneResNet, TWO, recompute="s0=7,6,5 s1=4"), ((0, 3), (3, 6), (6, 8), (8, 10)))


if __name__ == "__main__":
    unittest.main()
