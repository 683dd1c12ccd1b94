# SPDX-License-Identifier: Apache-2.0
"""Generated max-load instances of the family of msr-fiddle/dnn-partitioning, in its format.

Layer graphs (BERT, GNMT, ResNet, Inception) have a node a layer and cheap outputs; operator graphs (BERT, ResNet,
Inception) have a node an operator and a node a weight, and outputs that cost as much as the work. Training graphs have
a backward node a forward node, of the same colour. The same seed and number give the same instance everywhere: only
random.Random(seed).random() draws, and no logarithm decides.
"""
import random

MIB = 1024.0 * 1024.0


class Graph:
    """Forward nodes in topological order; `finish` adds the backward ones."""

    def __init__(self, rng, bandwidth, cpu_factor):
        self.rng, self.bandwidth, self.cpu_factor = rng, bandwidth, cpu_factor  # bytes per ms
        self.nodes, self.edges, self.out_bytes = [], [], {}
        self.free_weights = rng.random()  # part of the weights that may be elsewhere than their operator
        self.kept = 1.0 if rng.random() < 0.5 else 0.1  # of an output, in memory

    def add(self, name, time, out_bytes, size, inputs, backward=False, colour=None, cpu=None):
        node = len(self.nodes)
        self.nodes.append({"id": node, "name": name, "fpgaLatency": time, "size": float(int(size)),
                           "cpuLatency": time * self.cpu_factor if cpu is None else cpu, "supportedOnFpga": True,
                           "isBackwardNode": backward, "colorClass": colour})
        self.out_bytes[node] = float(int(out_bytes))
        self.edges += [(source, node) for source in sorted(set(inputs))]
        return node

    def jitter(self, spread=0.3):
        return 1 + spread * (self.rng.random() - 0.5)

    def operator(self, name, time, out_bytes, inputs, weight=0.0):
        """With a node for its weight, if any, which takes no time."""
        colour = None
        if weight > 0:
            inputs = [*inputs, self.add(name + ".weight", 0.0, weight, weight, [])]
            if self.rng.random() >= self.free_weights:
                colour = self.nodes[-1]["colorClass"] = 10000 + len(self.nodes)
        return self.add(name, time * self.jitter(), out_bytes, self.kept * out_bytes, inputs, colour=colour)

    def train(self):
        """A backward node a forward one: its work twice, its input the gradients of what reads it, and its output."""
        forward, readers, gradient_of = len(self.nodes), {}, {}
        for source, sink in self.edges:
            readers.setdefault(source, []).append(sink)
        for node in reversed(range(forward)):
            entry = self.nodes[node]
            if entry["colorClass"] is None:
                entry["colorClass"] = node
            inputs = [gradient_of[reader] for reader in readers.get(node, [])] + [node]
            gradient_of[node] = self.add(entry["name"] + ".grad", entry["fpgaLatency"] * 2 * self.jitter(0.2),
                                         self.out_bytes[node], entry["size"], inputs, True, entry["colorClass"])

    def instance(self, devices, slack):
        """`slack`: memory of all accelerators over what is needed; the largest colour fits in any case."""
        sizes = {}
        for node in self.nodes:
            key = node["id"] if node["colorClass"] is None else ("colour", node["colorClass"])
            sizes[key] = sizes.get(key, 0.0) + node["size"]
        capacity = max(slack * sum(sizes.values()) / devices, 1.05 * max(sizes.values()))
        edges = [{"sourceId": source, "destId": sink, "cost": self.out_bytes[source] / self.bandwidth,
                  "size": self.out_bytes[source]} for source, sink in self.edges]
        return {"maxSizePerFPGA": float(int(capacity)), "maxFPGAs": devices, "maxCPUs": 1, "nodes": self.nodes,
                "edges": edges}


def bert_operators(graph, layers):
    hidden, wide, scores = 1.5 * MIB, 6 * MIB, 4.5 * MIB
    mask = graph.operator("mask", 0.01, 0.1 * MIB, [])
    x = graph.operator("embedding", 0.3, hidden, [graph.add("tokens", 0.0, 4096, 0, [])], 89 * MIB)
    for layer in range(layers):
        heads = []
        for part in ("query", "key", "value"):
            y = graph.operator(f"{part}{layer}", 0.35, hidden, [x], 2.3 * MIB)
            y = graph.operator(f"{part}_bias{layer}", 0.05, hidden, [y], 3072.0)
            y = graph.operator(f"{part}_shape{layer}", 0.0, hidden, [y])
            heads.append(graph.operator(f"{part}_turn{layer}", 0.04, hidden, [y]))
        y = graph.operator(f"scores{layer}", 0.4, scores, heads[:2])
        y = graph.operator(f"masked{layer}", 0.15, scores, [y, mask])
        y = graph.operator(f"softmax{layer}", 0.3, scores, [y])
        y = graph.operator(f"context{layer}", 0.4, hidden, [y, heads[2]])
        y = graph.operator(f"output{layer}", 0.35, hidden, [y], 2.3 * MIB)
        y = graph.operator(f"add{layer}", 0.05, hidden, [x, y])
        x = graph.operator(f"norm{layer}", 0.2, hidden, [y], 6144.0)
        y = graph.operator(f"wide{layer}", 1.1, wide, [x], 9.4 * MIB)
        y = graph.operator(f"gelu{layer}", 0.6, wide, [y])
        y = graph.operator(f"narrow{layer}", 1.1, hidden, [y], 9.4 * MIB)
        y = graph.operator(f"add_{layer}", 0.05, hidden, [x, y])
        x = graph.operator(f"norm_{layer}", 0.2, hidden, [y], 6144.0)
    graph.operator("predictions", 5.0, 60 * MIB, [x], 89 * MIB)
    graph.operator("relationship", 0.01, 1024, [graph.operator("pool", 0.05, 0.01 * MIB, [x], 2.3 * MIB)], 1024.0)


def convolution(graph, name, x, time, out_bytes, weight):
    y = graph.operator(name, time, out_bytes, [x], weight)
    y = graph.operator(name + ".norm", 0.1 * time, out_bytes, [y], 4096.0)
    return graph.operator(name + ".relu", 0.03 * time, out_bytes, [y])


def resnet_operators(graph, blocks):
    x = convolution(graph, "stem", graph.add("image", 0.0, 4.6 * MIB, 0, []), 1.2, 12 * MIB, 0.04 * MIB)
    x = graph.operator("pool", 0.1, 6 * MIB, [x])
    for block in range(blocks):
        stage = 4 * block // blocks
        wide, weight = 12 * MIB / 2**stage, 0.06 * MIB * 4**stage
        fresh = block == 0 or 4 * (block - 1) // blocks != stage
        y = convolution(graph, f"reduce{block}", x, 0.4, wide / 4, weight)
        y = convolution(graph, f"middle{block}", y, 0.8, wide / 4, 2.3 * weight)
        y = graph.operator(f"expand{block}", 0.4, wide, [y], weight)
        y = graph.operator(f"expand_norm{block}", 0.08, wide, [y], 4096.0)
        side = graph.operator(f"side{block}", 0.4, wide, [x], 2 * weight) if fresh else x
        x = graph.operator(f"add{block}", 0.05, wide, [side, y])
        x = graph.operator(f"relu{block}", 0.03, wide, [x])
    graph.operator("classes", 0.1, 0.01 * MIB, [graph.operator("mean", 0.03, 0.2 * MIB, [x])], 7.8 * MIB)


def inception_operators(graph, blocks):
    x = convolution(graph, "stem", graph.add("image", 0.0, 8 * MIB, 0, []), 1.5, 20 * MIB, 0.1 * MIB)
    for block in range(blocks):
        wide, weight, ends = 8 * MIB / (1 + 2 * block // blocks), (0.3 + 1.5 * block / blocks) * MIB, []
        for branch in range(3 + int(2 * graph.rng.random())):
            y = x if branch > 0 else graph.operator(f"pool{block}", 0.1, wide, [x])
            for step in range(1 + int(4 * graph.rng.random())):
                y = convolution(graph, f"conv{block}_{branch}_{step}", y, 0.2 + 0.6 * graph.rng.random(), wide / 4,
                                weight * graph.jitter(1))
            ends.append(y)
        x = graph.operator(f"concat{block}", 0.05, wide, ends)
    graph.operator("classes", 0.1, 0.01 * MIB, [graph.operator("mean", 0.03, 0.2 * MIB, [x])], 7.8 * MIB)


def layers_of(shape):
    """A graph of layers: cheap outputs; `shape` gives how layers hang together."""

    def make(graph, count):
        def layer(name, time, inputs):
            size = (10 + 60 * graph.rng.random()) * MIB
            return graph.add(name, time * graph.jitter(0.8), (0.1 + 6 * graph.rng.random()) * 1e5, size, inputs)

        source = graph.add("input", 0.0, 1e4, 0, [])
        mask = graph.add("mask", 0.0, 1e4, 0, [source])
        x = side = layer("embedding", 4.0, [source])
        for i in range(count):
            if shape == "bert":
                x = layer(f"layer{i}", 3.8, [x, mask])
            elif shape == "gnmt":
                cell = layer(f"lstm{i}", 8.0, [x])
                state = graph.add(f"state{i}", 0.0, 1e4, 0, [cell])
                x = graph.add(f"drop{i}", 0.0, 3e5, 0, [cell] if i < 2 else [cell, x])
                if i == count // 2:
                    side = x
                elif i > count // 2:
                    x = layer(f"attend{i}", 1.5, [x, side, state])
            else:
                ends = [layer(f"layer{i}_{branch}", 1.2, [x]) for branch in range(2 + int(3 * graph.rng.random()))]
                x = graph.add(f"join{i}", 0.05, 4e5, 0, ends + [x])
        layer("head", 9.0, [x])

    return make


# name: how to make it, whether it is of operators, fewest and most of its repeated parts
FAMILIES = {
    "resnet_operators": (resnet_operators, True, 8, 60),
    "bert_operators": (bert_operators, True, 3, 48),
    "inception_operators": (inception_operators, True, 5, 50),
    "gnmt_layers": (layers_of("gnmt"), False, 24, 120),
    "bert_layers": (layers_of("bert"), False, 100, 200),
    "branch_layers": (layers_of("branch"), False, 20, 150),
}


def generate(seed, number):
    """(name, instance): families, training and tight memory take turns; the rest is drawn."""
    rng = random.Random(seed * 1000003 + number)
    family = list(FAMILIES)[number % len(FAMILIES)]
    make, operators, least, most = FAMILIES[family]
    train = (number // len(FAMILIES) + number) % 2 == 1
    parts = least + int((most - least) * rng.random() ** 2)
    devices = 3 + int(6 * rng.random())
    bandwidth = (2 + 10 * rng.random()) * 1024 * 1024 if operators else 1e7
    graph = Graph(rng, bandwidth, 23 if operators else 10)
    make(graph, parts)
    if train:
        graph.train()
    tight = rng.random() < 0.6
    slack = 1.05 + 0.3 * rng.random() if tight else devices + 1.0
    name = f"{family}_{parts}_{'training' if train else 'inference'}_k{devices}{'_tight' if tight else ''}"
    return name, graph.instance(devices, slack)
