#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job with dropout="by-sample": any plan drops what one process does, whose masks are computed here anew."""

import contextlib
import functools
import hashlib
import math
import os
import tempfile
import unittest
import warnings
from unittest import mock

import numpy

from cases import CLUSTER, build, on_ranks
from job_cases import (BATCH, FOUR, NEWER, STEPS, TOLERANCE, TWO, TWO_BY_TWO, Mlp, Transformer, batches, job_of,
                      optimizer_fn_of, plan_of)
from test_job_training import rows_of

import torch
from torch import nn

import agpcs
import agpcs.torch
from agpcs._job.graph import Graph

SEED, RATE = 7, 0.1
ALIKE = "a/0:3,a/1:1|b/0:3,b/1:1"  # so that the replicas of both stages compute the same rows
WORD = numpy.uint32


class Drops(Transformer):
    """Dropout of words, in layers and of attention, and one of a parameter, which has no samples."""

    DROPS = True

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, RATE, "gelu", batch_first=True) for _ in range(2))
        self.words, self.places = nn.Dropout(RATE), nn.Dropout(RATE)

    def forward(self, tokens):
        x = self.words(self.table(tokens)) + self.places(self.position)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


class Heads(Drops):
    """Attention that returns its weights: heads and samples are one axis of them. Words come first, and samples second."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, RATE)

    def forward(self, tokens):
        x = (self.table(tokens) + self.position).transpose(0, 1)
        return self.head(self.norm(nn.functional.dropout(x + self.attention(x, x, x)[0], RATE)).mean(0))


class Channels(Mlp):
    """Whole channels, what keeps a SELU's statistics, and a change in place."""

    DROPS = True

    def forward(self, x):
        x = nn.functional.alpha_dropout(nn.functional.selu(self.layers[0](x)), 0.2, training=True)
        x = nn.functional.dropout1d(self.layers[2](x).view(-1, 4, 4), 0.3).flatten(1)
        return self.layers[3:](nn.functional.dropout(x * 2, 0.1, inplace=True))


class Noise(Mlp):
    def forward(self, x):
        return self.layers(x + torch.rand_like(x))


class Recurrent(Mlp):
    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(4, 4, 2, batch_first=True, dropout=0.5)

    def forward(self, x):
        return self.layers(self.inner(x.view(-1, 4, 4))[0].flatten(1))


class Folded(Mlp):
    """Its rows are not the samples, one after the other."""

    def forward(self, x):
        x = nn.functional.dropout(x.view(-1, 4, 4).transpose(0, 1).reshape(-1, 4), 0.5)
        return self.layers(x.view(4, -1, 4).transpose(0, 1).flatten(1))


class Silent(Mlp):
    def forward(self, x):
        with torch.no_grad():
            scale = nn.functional.dropout(x, 0.5)
        return self.layers(x * scale)


def mixed(x):
    x = (x ^ x >> WORD(16)) * WORD(0x7FEB352D)
    x = (x ^ x >> WORD(15)) * WORD(0x846CA68B)
    return x ^ x >> WORD(16)


def kept(seed, step, node, samples, positions, p):
    """Which elements are kept, as the reference says it, in numpy's whole numbers: (samples, positions)."""
    digest = hashlib.sha256(f"{seed}:{step}:{node}".encode()).digest()
    first, second = (mixed(numpy.asarray(samples, WORD) ^ WORD(int.from_bytes(digest[i:i + 4], "big")))[:, None] for i in (0, 4))
    x = numpy.arange(positions, dtype=WORD) ^ first
    x = (x ^ x >> WORD(16)) * WORD(0x7FEB352D) ^ second
    x = (x ^ x >> WORD(15)) * WORD(0x846CA68B)
    return x.astype(numpy.uint64) >= round(p * 2 ** 32)


class Masks:
    """Masks of one process: of calls of dropout and attention by their numbers, as torch.export names nodes. `axes` has the
    axis of the samples by the shapes in which it is not 0; None: there is none."""

    def __init__(self, kind, step, samples, seed=SEED):
        self.step, self.seed, self.samples, self.axes, self.calls = step, seed, samples, getattr(kind, "AXES", {}), {}

    def of(self, name, shape, p):
        number = self.calls[name] = self.calls.get(name, -1) + 1
        node = f"{name}_{number}" if number else name
        axis = self.axes.get(node, 0)
        if axis is None:
            return torch.from_numpy(kept(self.seed, self.step, node, [2 ** 32 - 1], math.prod(shape), p)).view(shape)
        rest = [size for i, size in enumerate(shape) if i != axis]
        found = kept(self.seed, self.step, node, self.samples, math.prod(shape) // len(self.samples), p)
        return torch.from_numpy(found).view(shape[axis], *rest).movedim(0, axis)

    def dropout(self, x, p=0.5, training=True, inplace=False):
        return x * self.of("dropout", x.shape, p) / (1 - p) if training and p > 0 else x

    def attention(self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
        if torch.is_autocast_enabled("cpu"):
            query, key, value = (x.to(torch.get_autocast_dtype("cpu")) for x in (query, key, value))
        with torch.autocast("cpu", enabled=False):
            scores = (query @ key.transpose(-2, -1)).float() * (scale or query.shape[-1] ** -0.5)
            if is_causal:
                attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            if attn_mask is not None:
                scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
            weights = torch.softmax(scores, -1)
            if dropout_p == 0:
                return (weights @ value.float()).to(query.dtype)
            mask = self.of("scaled_dot_product_attention", weights.shape, dropout_p)
            return ((weights * mask / (1 - dropout_p)) @ value.float()).to(query.dtype)

    @contextlib.contextmanager
    def replacing(self):
        with mock.patch.object(nn.functional, "dropout", self.dropout), \
                mock.patch.object(nn.functional, "scaled_dot_product_attention", self.attention):
            yield


Drops.AXES = {"dropout_1": None}
Heads.AXES = {"dropout_1": 1}


def by_one_process(rank, kind, steps=STEPS, rows=((0, BATCH),), autocast=None):
    """(losses, final state) of the user's module, with masks that are computed here."""
    model = build(kind)
    optimizer, losses = optimizer_fn_of(kind)(model.parameters()), []
    for step, (*inputs, labels) in enumerate(batches(kind, steps)):
        optimizer.zero_grad()
        losses.append(0)
        for begin, end in rows:
            with Masks(kind, step, range(begin, end)).replacing(), torch.autocast("cpu", autocast, enabled=autocast is not None):
                loss = nn.functional.cross_entropy(model(*(x[begin:end] for x in inputs)), labels[begin:end])
            (loss.float() * ((end - begin) / BATCH)).backward()
            losses[-1] += loss.item() * (end - begin) / BATCH
        optimizer.step()
    return losses, {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def by_job(rank, kind, plan, steps=STEPS, **options):
    job = job_of(kind, plan, optimizer_fn=optimizer_fn_of(kind), dropout="by-sample", seed=SEED, **options)
    losses = [job.step(batch).item() for batch in batches(kind, steps)]
    return losses, {name: tensor.numpy() for name, tensor in job.state_dict().items()}


def going_on(rank, plans, path):
    """Losses of nine steps: a job saves after three and switches to another plan for three more, and a new job goes on from
    the checkpoint by that plan, and switches after three steps back. What jobs say of checkpoints that are not theirs."""
    batch, said = batches(Drops, 9), []
    job = job_of(Drops, plans[0], dropout="by-sample", seed=SEED)
    losses = [job.step(one).item() for one in batch[:3]]
    job.save(path)
    job.switch(plans[1])
    first = losses + [job.step(one).item() for one in batch[3:6]]
    other = job_of(Drops, plans[1], dropout="by-sample", seed=SEED)
    other.step(batch[8])
    other.load(path)
    second = losses + [other.step(one).item() for one in batch[3:6]]
    other.switch(plans[0])
    second += [other.step(one).item() for one in batch[6:]]
    try:
        job_of(Drops, plans[0], dropout="by-sample", seed=SEED + 1).load(path)
    except agpcs.PlanMismatch as error:
        said.append(str(error))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plain = job_of(Drops, plans[0])
        plain.load(path)  # it takes the rest
        plain.save(path)
        other.load(path)
    return first, second, said + [str(warning.message) for warning in caught if "by-sample\" and" in str(warning.message)]


def leaving_out(rank, plan):
    """Losses of three steps, the second with the parameters of the first: a gradient was infinite."""
    job = job_of(Drops, plan, dropout="by-sample", seed=SEED, scaler=torch.amp.GradScaler("cpu", init_scale=2.0))
    if rank == 0:
        handle = job.optimizer.param_groups[0]["params"][0].register_hook(lambda gradient: gradient * math.inf)
    batch = batches(Drops, 1)[0]
    losses = [job.step(batch).item()]
    if rank == 0:
        handle.remove()
    return losses + [job.step(batch).item()]


def loss_of_untrained(rank, step):
    model, (*inputs, labels) = build(Drops), batches(Drops, 1)[0]
    with Masks(Drops, step, range(BATCH)).replacing():
        return nn.functional.cross_entropy(model(*inputs), labels).item()


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class BySample(unittest.TestCase):
    def assert_same(self, found, wanted, tolerance=TOLERANCE):
        self.assertNotIsInstance(found, str)
        self.assertEqual(len(found), len(wanted))
        for a, b in zip(found, wanted):
            self.assertLess(abs(a - b), tolerance * abs(b), f"{found}\n{wanted}")

    def compare(self, kind, plan, losses=None, state=None, tolerance=TOLERANCE, steps=STEPS, **options):
        if losses is None:
            (losses, state), = on_ranks(functools.partial(by_one_process, steps=steps), kind, ranks=1)
        self.assertGreater(max(losses) - min(losses), 0.05, "nothing was trained")
        for found, tensors in on_ranks(functools.partial(by_job, steps=steps, **options), kind, plan, ranks=plan.ranks):
            self.assertNotIsInstance(found, str, (found, tensors))
            self.assert_same(found, losses, tolerance)
            for name, tensor in state.items():
                self.assertLess(abs(tensor - tensors[name]).max() / max(abs(tensor).max(), 1e-3), tolerance, name)

    def test_a_transformer_trains_as_in_one_process(self):
        for layout, recompute in ((TWO, "s0 s1"), (TWO, "s0=9x2 s1=6"), (FOUR, ""), (TWO_BY_TWO, "s1")):
            with self.subTest(layout=layout, recompute=recompute):
                self.compare(Drops, plan_of(Drops, layout, recompute=recompute))
        self.compare(Drops, plan_of(Drops, "a/0", 1))

    def test_attention_whose_samples_and_heads_are_one_axis(self):
        self.compare(Heads, plan_of(Heads, TWO_BY_TWO))

    def test_in_bf16(self):
        plan = plan_of(Drops, ALIKE)
        (losses, state), = on_ranks(functools.partial(by_one_process, steps=3, rows=rows_of(plan), autocast=torch.bfloat16), Drops,
                                    ranks=1)
        self.compare(Drops, plan, losses, state, 2e-2, 3, autocast="bf16")

    def test_compiled_and_computed_again(self):
        for recompute in ("s0", "s0=9"):
            with self.subTest(recompute=recompute):
                self.compare(Drops, plan_of(Drops, TWO, recompute=recompute), steps=4, compile={"backend": "aot_eager"})

    def test_goes_on_from_a_checkpoint_and_by_another_plan(self):
        plans = [plan_of(Drops, TWO), plan_of(Drops, "a/0:3,b/0:1")]
        (losses, _), = on_ranks(functools.partial(by_one_process, steps=9), Drops, ranks=1)
        with tempfile.TemporaryDirectory() as folder:
            results = on_ranks(going_on, plans, os.path.join(folder, "checkpoint"))
        for first, second, said in results:
            self.assert_same(first, losses[:6])
            self.assertEqual(said, [
                f"the checkpoint's dropout has the seed {SEED}, and the job's is {SEED + 1}\n"
                f"  hint: Job(..., seed={SEED}) goes on with the masks of the checkpoint",
                "the checkpoint is of a job without dropout=\"by-sample\" and does not say how many steps it made: masks go on with "
                "those of step 9"])

    def test_a_step_that_is_left_out_counts(self):
        plan = plan_of(Drops, TWO)
        wanted = [on_ranks(loss_of_untrained, step, ranks=1)[0] for step in range(2)]
        self.assertGreater(abs(wanted[0] - wanted[1]), 1e-3)
        for found in on_ranks(leaving_out, plan):
            self.assert_same(found, wanted)

    def test_each_form_of_dropout_is_that_of_torch(self):
        for result in on_ranks(forms, plan_of(Channels, TWO)):
            self.assertNotIsInstance(result[0], str, result)
            for of_job, of_one in result:
                self.assert_same([of_job], [of_one])

    def refused(self, kind):
        from agpcs._job.dropout import drawing_of
        module = build(kind)
        program = torch.export.export(module, batches(kind, 1)[0][:-1], dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        with self.assertRaises(agpcs.UsageError) as raised:
            Graph(module, program, drawing_of)
        return str(raised.exception)

    def test_refuses_what_it_does_not_know_by_name(self):
        hint = ("draws random numbers, and is no dropout: dropout=\"by-sample\" does not know it\n"
                "  hint: a dropout of 0 in it, or a Job without dropout=\"by-sample\", whose ranks draw numbers of their own")
        file = r"\(test_job_dropout.py:\d+\)"
        self.assertRegex(self.refused(Noise), rf"^'rand_like' \(rand_like.default\) {file} {hint}$")
        self.assertRegex(self.refused(Recurrent), rf"^'lstm' \(lstm.input\) in inner \([a-z_]+.py:\d+\) {hint}$")
        self.assertRegex(self.refused(Folded), rf"^'dropout' \(dropout.default\) {file} of shape 4\*s\d+x4 has no axis of samples that "
                         "dropout=\"by-sample\" can follow\n  hint: dropout where an axis is the samples, as in batch x words x width$")
        self.assertRegex(self.refused(Silent), rf"^'dropout' \(dropout.default\) {file} draws random numbers in a region without "
                         "gradients, where dropout=\"by-sample\" replaces nothing\n  hint: draw them outside of torch.no_grad$")

    def test_a_plan_for_it_warns_of_no_dropout_and_refuses_what_it_does_not_know(self):
        def planned(kind, **options):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                agpcs.torch.plan(build(kind), batches(kind, 1)[0], cluster=CLUSTER, batch=BATCH, layout="local/0|local/1",
                                 bound=False, **options)
            return [str(warning.message) for warning in caught if "draws random numbers" in str(warning.message)]

        self.assertNotEqual(planned(Drops), [])
        self.assertEqual(planned(Drops, dropout="by-sample"), [])
        with self.assertRaisesRegex(agpcs.UsageError, "is no dropout: dropout=\"by-sample\" does not know it"):
            planned(Noise, dropout="by-sample")
        with self.assertRaisesRegex(agpcs.UsageError, "dropout is 'by-rank'"):
            planned(Drops, dropout="by-rank")

    def test_refuses_another_word(self):
        for result in on_ranks(functools.partial(refusing, dropout="by-rank"), plan_of(Drops, TWO)):
            self.assertEqual(result, ("UsageError", "dropout is 'by-rank'; it is 'by-sample' or None"))


def refusing(rank, plan, **options):
    job_of(Drops, plan, **options)


def forms(rank, plan):
    """(what a job's first loss is, what it is with torch's own formulas and the masks of the job)"""
    job = job_of(Channels, plan, dropout="by-sample", seed=SEED)
    batch = batches(Channels, 1)[0]
    found, model = job.step(batch).item(), build(Channels)
    masks = Masks(Channels, 0, range(BATCH))
    drawn = iter([("alpha_dropout", (BATCH, 16), 0.2), ("feature_dropout", (BATCH, 4, 1), 0.3), ("dropout_", (BATCH, 16), 0.1)])

    def bernoulli(x, p):
        name, shape, rate = next(drawn)
        assert tuple(x.shape) == shape and math.isclose(p, 1 - rate), (name, x.shape, p)
        return masks.of(name, shape, rate).to(x.dtype)

    # torch's own decompositions, whose random numbers are those of `bernoulli`.
    class Drawing(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            if function is torch.ops.aten.bernoulli_.float:
                return arguments[0].copy_(bernoulli(arguments[0], arguments[1]))
            if function is torch.ops.aten.native_dropout.default:
                mask = bernoulli(arguments[0], 1 - arguments[1]).bool()
                return arguments[0] * mask / (1 - arguments[1]), mask
            return function(*arguments, **(options or {}))

    with torch.no_grad(), Drawing():
        wanted = nn.functional.cross_entropy(model(*batch[:-1]), batch[-1]).item()
    assert next(drawn, None) is None, "torch drew less"
    return [(found, wanted)]


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Statistics(unittest.TestCase):
    """Of the masks themselves, by torch's operations, as they are drawn on every device."""

    SAMPLES, POSITIONS = 64, 40_000

    def drawn(self, p=0.5, seed=SEED, steps=0, node="dropout", begin=0):
        from agpcs._job import dropout
        masks = dropout.Masks(seed, torch.device("cpu"))
        for _ in range(steps):
            masks.step_ended()
        rows = masks.rows((node,), begin, begin + self.SAMPLES)[:, 0]
        return dropout._mask(rows, 0, (self.SAMPLES, self.POSITIONS), p)

    def test_are_as_the_reference_says(self):
        for p, begin, node in ((0.1, 0, "dropout"), (0.7, 2 ** 31, "dropout_3")):
            found = self.drawn(p, steps=2, node=node, begin=begin).numpy()
            wanted = kept(SEED, 2, node, numpy.arange(begin, begin + self.SAMPLES), self.POSITIONS, p)
            self.assertTrue((found == wanted).all())

    def test_keep_as_many_as_they_should_of_all_of_each_sample_and_at_each_position(self):
        for p in (0.001, 0.1, 0.5, 0.9):
            found = self.drawn(p).double()
            for part, count, sigmas in ((found.mean(), found.numel(), 4), (found.mean(1), self.POSITIONS, 5),
                                        (found.mean(0), self.SAMPLES, 7 if p in (0.1, 0.5, 0.9) else 40)):
                apart = (part - (1 - p)).abs().max() / (p * (1 - p) / count) ** 0.5
                self.assertLess(apart, sigmas, f"p {p}, means of {count}")
            # As many samples have as many kept elements as independent draws give: chi-squared over samples, 64 of freedom.
            chi = (((found.mean(1) - (1 - p)) ** 2) / (p * (1 - p) / self.POSITIONS)).sum()
            self.assertTrue(64 - 5 * 128 ** 0.5 < chi < 64 + 5 * 128 ** 0.5, f"p {p}: {chi}")

    def test_of_samples_steps_nodes_and_seeds_and_of_positions_near_each_other_are_independent(self):
        first = self.drawn()
        others = {"sample": first.roll(1, 0), "step": self.drawn(steps=1), "node": self.drawn(node="dropout_1"),
                  "seed": self.drawn(seed=SEED + 1), "batch": self.drawn(begin=self.SAMPLES)}
        others.update((f"position {by}", first.roll(by, 1)) for by in (1, 2, 3, 4, 16, 64, 256, 1024, 16384))
        others.update((f"sample {by}", first.roll(by, 0)) for by in (2, 4, 8, 32))
        for name, other in others.items():
            equal = (first == other).double().mean()
            self.assertLess(abs(equal - 0.5) * 2 * first.numel() ** 0.5, 5, name)
        rows = first.double() * 2 - 1
        between = (rows @ rows.T / self.POSITIONS ** 0.5).fill_diagonal_(0).abs().max()
        self.assertLess(between, 5, "two samples are alike")

    def test_attention_that_keeps_everything_is_torchs(self):
        from agpcs._job import dropout
        rows = dropout.Masks(SEED, torch.device("cpu")).rows(("attention",), 0, 2)[:, 0]
        query, key, value = torch.randn(3, 2, 4, 5, 8).unbind(0)
        visible = torch.ones(5, 5, dtype=torch.bool).tril()
        cases = [{}, {"attn_mask": visible}, {"attn_mask": torch.randn(2, 1, 5, 5)}, {"is_causal": True}, {"scale": 0.7},
                 {"attn_mask": torch.zeros(5, 5, dtype=torch.bool)}]
        for case in cases:
            wanted = nn.functional.scaled_dot_product_attention(query, key, value, **case)
            found = dropout.attention(rows, 0, query, key, value, dropout_p=1e-12, **case)
            self.assertLess((found - wanted).abs().max(), 1e-6, case)
        wanted = nn.functional.scaled_dot_product_attention(query, key[:, :2], value[:, :2], enable_gqa=True)
        found = dropout.attention(rows, 0, query, key[:, :2], value[:, :2], dropout_p=1e-12, enable_gqa=True)
        self.assertLess((found - wanted).abs().max(), 1e-6)

    def test_of_a_dropout_of_everything_keep_nothing_and_of_no_sample_are_one(self):
        self.assertFalse(self.drawn(1.0).any())
        from agpcs._job import dropout
        masks = dropout.Masks(SEED, torch.device("cpu"))
        first, second = (dropout._mask(masks.rows(("dropout",), *of)[:, 0], None, (3, 50), 0.5) for of in ((0, 2), (5, 9)))
        self.assertTrue(torch.equal(first, second))
        x = torch.full((2, 4), 3.0)
        self.assertTrue(torch.equal(dropout.dropout(masks.rows(("dropout",), 0, 2)[:, 0], 0, x, 1.0, True), x * 0))


if __name__ == "__main__":
    unittest.main()
