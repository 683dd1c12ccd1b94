#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.export and agpcs.torch.Job: no plan cuts inside a node of torch.export's graph."""

import unittest
import warnings

from cases import build
from job_cases import FOUR, Compares, batches, exported, operators_of, plan_of

import torch
from torch import nn

import agpcs
from agpcs._job.graph import Graph

CLUSTER = """\
device_kinds:
  cpu: {peak: {fp32: 40 GFLOPS}, memory: 4 GiB, memory_bandwidth: 10 GB/s, launch_overhead: 5 us}
hosts:
  - {name: a, devices: {kind: cpu, count: 8}}
training: {batch: 10}
"""
LAYOUTS = {count: "|".join(f"a/{i}" for i in range(count)) for count in (2, 4, 8)}


class Layers(nn.Module):
    """ONNX computes most of its nodes in several operators: a recurrent network of two layers in 50."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)
        self.layers, self.groups = nn.RNN(16, 16, 2, batch_first=True), nn.GroupNorm(4, 16)
        self.next, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = self.layers(self.norm(self.first(x)))[0]
        heads = x.unflatten(-1, (2, 8)).transpose(1, 2)
        x = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).flatten(2)
        return self.head(torch.tanh(self.next(self.groups(x.transpose(1, 2)).transpose(1, 2))).mean(1))

    @staticmethod
    def samples(count, generator):
        return torch.randn(count, 4, 16, generator=generator), torch.randint(0, 4, (count,), generator=generator)


class Regions(nn.Module):
    """Rotary tables without gradients, as Llama has; a mask that is trained, as T5's is, with which attention has other strides
    than without."""

    def __init__(self):
        super().__init__()
        self.first, self.head, self.mask = nn.Linear(16, 16), nn.Linear(16, 4), nn.Parameter(torch.randn(1, 2, 4, 4))
        self.register_buffer("rates", torch.linspace(0.1, 1, 8), persistent=False)

    def forward(self, x):
        x = self.first(x)
        with torch.no_grad():
            angles = torch.arange(x.shape[1])[:, None] * self.rates
            cosine, sine = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
            scale = x.abs().mean((1, 2), keepdim=True)
        heads = ((x * cosine + x.roll(8, 2) * sine) / scale).unflatten(-1, (2, 8)).transpose(1, 2)
        x = nn.functional.scaled_dot_product_attention(heads, heads, heads, self.mask).transpose(1, 2)
        return self.head(x.reshape(x.shape[0], 4, 16).contiguous()).mean(1)

    samples = Layers.samples


class Changing(Layers):
    def forward(self, x):
        with torch.no_grad():
            x = (x * 2).mul_(3)
        return self.head(x).mean(1)


def read(model):
    """(an ONNX model, the node that it notes for each value)."""
    import onnx
    proto = onnx.load_model_from_string(model)
    return proto, {value: note.value for node in proto.graph.node for note in node.metadata_props
                   if note.key == "agpcs.node" for value in node.output}


def divided(plan, model, noted):
    """The nodes whose operators are in several stages."""
    stages = {}
    for operator in operators_of(plan, model):
        for node in {noted[value] for value in operator["outputs"] if value in noted}:
            stages.setdefault(node, set()).add(operator["stage"])
    return {node for node, of_node in stages.items() if len(of_node) > 1}


class Nodes(Compares):
    def test_the_file_notes_the_nodes_of_the_graph(self):
        names = {node.name for node in torch.export.export(build(Layers), batches(Layers, 1)[0][:-1]).graph.nodes}
        _, noted = read(exported(Layers))
        self.assertGreater(list(noted.values()).count("rnn_tanh"), 50)
        found = set(noted.values())
        self.assertLessEqual({"linear", "layer_norm", "rnn_tanh", "scaled_dot_product_attention", "group_norm"}, found)
        self.assertLessEqual(found, names)

    def test_no_cut_divides_a_node(self):
        proto, noted = read(exported(Layers))
        for node in proto.graph.node:
            del node.metadata_props[:]
        without_notes, cut = proto.SerializeToString(), set()
        for count, layout in LAYOUTS.items():
            with self.subTest(stages=count):
                plan = plan_of(Layers, layout, cluster=CLUSTER)
                self.assertEqual(len(plan.stages), count)
                self.assertEqual(divided(plan, exported(Layers), noted), set())
                cut |= divided(plan_of(Layers, layout, cluster=CLUSTER, model=without_notes), without_notes, noted)
        self.assertIn("rnn_tanh", cut, "the notes changed nothing")

    def test_only_dropout_makes_a_recurrent_network_random(self):
        for dropout in (0.0, 0.5):
            module = build(Layers)
            module.layers.dropout = dropout
            program = torch.export.export(module, batches(Layers, 1)[0][:-1])
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                Graph(module, program)
            said = [str(warning.message).partition(" (")[0] for warning in caught if "random numbers" in str(warning.message)]
            self.assertEqual(said, ["'rnn_tanh'"] if dropout else [])

    def test_a_job_trains_by_such_a_plan(self):
        self.compare(Layers, plan_of(Layers, FOUR))

    def test_a_region_without_gradients_is_one_node(self):
        _, noted = read(exported(Regions))
        self.assertGreater(list(noted.values()).count("wrap_with_set_grad_enabled"), 1)
        self.compare(Regions, plan_of(Regions, FOUR, recompute="s0 s1"))

    def test_a_change_in_place_in_a_region_without_gradients_is_refused(self):
        module = build(Changing)
        program = torch.export.export(module, batches(Changing, 1)[0][:-1])
        with self.assertRaises(agpcs.UsageError) as raised:
            Graph(module, program)
        self.assertRegex(str(raised.exception), "^'mul_' \\(mul_.Tensor\\) .*changes a tensor in place in a region without gradients, "
                                                "which agpcs.torch.Job does not follow\n  hint: write it without the change in place$")


if __name__ == "__main__":
    unittest.main()
