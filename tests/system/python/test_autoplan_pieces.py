#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What agpcs.torch.autoplan is made of, without ranks: places of ranks, batches, parts of backward passes, shares, kinds of devices."""

import random
import unittest

import cases  # noqa: F401: it skips without PyTorch

import torch

import agpcs
from agpcs import _torch_autoplan, _torch_curves, _torch_files, _torch_steps
from agpcs._torch_steps import Point


class Pieces(unittest.TestCase):
    def test_ranks_of_a_host_follow_one_another(self):
        hosts = [{"host": "a"}, {"host": "a"}, {"host": "b"}]
        self.assertEqual(_torch_autoplan._places(hosts), ["a/0", "a/1", "b/0"])
        with self.assertRaises(agpcs.InvalidInput) as caught:
            _torch_autoplan._places([{"host": "a"}, {"host": "b"}, {"host": "a"}])
        self.assertEqual(str(caught.exception), "the ranks of host 'a' do not follow one another\n"
                         "  hint: number ranks host by host (srun --distribution=block, mpirun --map-by slot)")

    def test_batches_grow_and_shrink(self):
        batch = {"x": torch.arange(6).reshape(3, 2), "pair": (torch.ones(3), torch.ones(5)), "text": "kept"}
        self.assertEqual(_torch_steps.batch_size(batch), 3)
        made = _torch_steps.resized(batch, 3, 4)
        self.assertEqual(made["x"].tolist(), [[0, 1], [2, 3], [4, 5], [0, 1]])
        self.assertEqual([len(tensor) for tensor in made["pair"]], [4, 5])
        self.assertEqual(made["text"], "kept")
        self.assertEqual(_torch_steps.resized([torch.ones(3)], 3, 1)[0].shape, (1,))

    def test_parts_cover_the_backward_pass(self):
        generator = random.Random(1)
        for count in (1, 2, 7, 200):
            parameters = [_torch_files.Parameter(f"p{i}", (generator.randrange(1, 1000),), torch.float32)
                          for i in range(count)]
            ready = [generator.choice([None, generator.random()]) for _ in parameters]
            parts = _torch_files.parts_of(parameters, ready)
            self.assertEqual(sorted(p.name for part in parts for p in part.parameters),
                             sorted(p.name for p in parameters))
            self.assertEqual((parts[0].begin, parts[-1].end), (0.0, 1.0))
            self.assertTrue(all(a.end == b.begin for a, b in zip(parts, parts[1:])))
            self.assertTrue(all(part.begin <= part.end for part in parts))
            self.assertLessEqual(len(parts), 65)

    def test_shares_take_equally_long(self):
        def line(fixed, per_sample):
            return [Point(n, 0.0, fixed + per_sample * n, 0.0, 0) for n in (1, 8, 64)]
        self.assertEqual(_torch_curves.balanced_shares([line(0, 1), line(0, 3)], 40), [30, 10])
        self.assertEqual(_torch_curves.balanced_shares([line(2, 1), line(0, 1)], 40), [19, 21])

    def test_devices_that_take_as_long_are_one_kind(self):
        def rank(number, device, per_sample):
            points = tuple(Point(n, 0.0, per_sample * n, 0.01, 0) for n in (1, 8, 64))
            return _torch_files.Measurements(number, "a", device, points, None, 0, None)
        kinds, kind_of = _torch_curves.kinds_of([rank(0, "x", 1.0), rank(1, "x", 1.02), rank(2, "x", 2.0), rank(3, "y", 1.0)])
        self.assertEqual(kind_of, ["kind-0", "kind-0", "kind-1", "kind-2"])
        self.assertAlmostEqual(kinds["kind-0"].points[1].backward, 8 * 1.01)


if __name__ == "__main__":
    unittest.main()
