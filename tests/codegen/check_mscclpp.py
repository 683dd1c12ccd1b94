#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs an all-reduce for MSCCL++ on integers: check_mscclpp.py FILE.json.

Knows the format from microsoft/mscclpp's executor, and nothing of AGPCS:
  * grammar: the keys of every part, the operations put, signal, wait, flush, re and nop, limits of a thread block, indices
    within buffers and channels; the k-th channel from a to b is the other end of the k-th channel from b to a;
  * threads of a block: they go on together (nop) after a wait or a sum before others use its result, and after a put
    before its signal;
  * sums: all thread blocks of all GPUs run in random orders, twice in a row without a pause between the GPUs. A put
    reads and writes at any moment between its operation and its signal (through a port: until the signal arrives).
    Every chunk of every GPU ends as the sum over all GPUs, each time.
Exit code 0 and one line, or 1 and what is wrong.
"""

import collections
import json
import random
import sys

MOST_OPERATIONS, MOST_CHANNELS, MOST_CHANNELS_AN_OPERATION, MOST_OFFSET = 64, 16, 8, 2**32
PLAN = {"name", "collective", "protocol", "inplace", "reuse_resources", "gpus", "num_threads_per_block",
        "use_double_scratch_buffer", "buffer_alignment", "min_message_size", "max_message_size"}
GPU = {"id", "input_chunks", "output_chunks", "scratch_chunks", "threadblocks", "channels", "remote_buffers", "semaphores"}
BLOCK = {"id", "ops", "channels", "remote_buffer_refs"}
OPERATIONS = {"nop": set(), "put": {"src_buff", "dst_buff", "channel_ids", "channel_type"},
              "signal": {"channel_ids", "channel_type"}, "wait": {"channel_ids", "channel_type"},
              "flush": {"channel_ids", "channel_type"}, "re": {"src_buff", "dst_buff", "reduce_op"}}


class Wrong(Exception):
    pass


def need(condition, message):
    if not condition:
        raise Wrong(message)


def keys(node, expected, where):
    need(set(node) == set(expected), f"{where} has {sorted(node)}, not {sorted(expected)}")


class Channel:
    """One end of a channel; `arrived` counts signals that came, `pending` holds puts that may still move."""

    def __init__(self, kind, peer):
        self.kind, self.peer, self.other, self.arrived, self.pending = kind, peer, None, 0, []


class Gpu:
    def __init__(self, node, index, gpus):
        keys(node, GPU, f"gpu {index}")
        need(node["id"] == index, f"gpu {node['id']} where {index} is expected")
        self.id, self.chunks, self.scratch = index, node["input_chunks"], node["scratch_chunks"]
        need(self.chunks == node["output_chunks"] > 0, f"gpu {index}: input and output chunks differ")
        need(node["semaphores"] == [], f"gpu {index}: semaphores")
        self.channels = {"memory": [], "port": []}
        for channel in node["channels"]:
            keys(channel, ["channel_type", "connected_to"], f"gpu {index}: channel")
            need(not self.channels[channel["channel_type"]], f"gpu {index}: {channel['channel_type']} twice")
            for peer in channel["connected_to"]:
                need(0 <= peer < gpus and peer != index, f"gpu {index}: connected to {peer}")
                self.channels[channel["channel_type"]].append(Channel(channel["channel_type"], peer))
        self.buffers = node["remote_buffers"]
        for buffer in self.buffers:
            keys(buffer, ["rank", "type", "access_channel_types"], f"gpu {index}: remote buffer")
            need(0 <= buffer["rank"] < gpus and buffer["rank"] != index, f"gpu {index}: buffer of {buffer['rank']}")
        self.blocks = [Block(b, i, self) for i, b in enumerate(node["threadblocks"])]
        used = [id(c) for b in self.blocks for cs in b.channels.values() for c in cs]
        need(len(used) == len(set(used)), f"gpu {index}: two thread blocks use one channel")


class Block:
    def __init__(self, node, index, gpu):
        self.name, self.gpu, self.at, self.round = f"gpu {gpu.id} block {index}", gpu, 0, 0
        keys(node, BLOCK, self.name)
        need(node["id"] == index, f"{self.name}: id {node['id']}")
        self.channels, self.buffers = {"memory": [], "port": []}, {"memory": [], "port": []}
        for channel in node["channels"]:
            for number in channel["channel_ids"]:
                ends = gpu.channels[channel["channel_type"]]
                need(0 <= number < len(ends), f"{self.name}: channel {number} of {len(ends)}")
                self.channels[channel["channel_type"]].append(ends[number])
        for ref in node["remote_buffer_refs"]:
            kind = ref["access_channel_type"]
            for number in ref["remote_buffer_ids"]:
                need(0 <= number < len(gpu.buffers), f"{self.name}: buffer {number} of {len(gpu.buffers)}")
                need(kind in gpu.buffers[number]["access_channel_types"], f"{self.name}: buffer {number} not by {kind}")
                self.buffers[kind].append(gpu.buffers[number])
        for kind in ("memory", "port"):
            need(len(self.channels[kind]) <= MOST_CHANNELS, f"{self.name}: {len(self.channels[kind])} channels")
            need(len(self.buffers[kind]) <= MOST_CHANNELS, f"{self.name}: {len(self.buffers[kind])} buffers")
        self.ops = node["ops"]
        need(len(self.ops) <= MOST_OPERATIONS, f"{self.name}: {len(self.ops)} operations")
        self.check_operations()

    def check_operations(self):
        waited, summed, put, unflushed = False, set(), False, set()
        for i, op in enumerate(self.ops):
            name, where = op["name"], f"{self.name} operation {i}"
            need(name in OPERATIONS, f"{where}: {name}")
            keys(op, OPERATIONS[name] | {"name"}, where)
            ids, kind = op.get("channel_ids", []), op.get("channel_type")
            need(len(ids) == len(set(ids)) <= MOST_CHANNELS_AN_OPERATION, f"{where}: channels {ids}")
            need(all(0 <= c < len(self.channels[kind]) for c in ids), f"{where}: channels {ids}")
            if name == "nop":
                waited, summed, put = False, set(), False
            elif name == "put":
                need(not waited, f"{where}: some threads have not waited")
                source, target = self.local(op["src_buff"], where, "is"), op["dst_buff"]
                need(len(source) == len(target) == len(ids) == 1, f"{where}: one source, target and channel")
                need(source[0] not in summed, f"{where}: other threads may not have summed {source[0]}")
                need(0 <= target[0]["buffer_id"] < len(self.buffers[kind]), f"{where}: {target}")
                buffer = self.buffers[kind][target[0]["buffer_id"]]
                need(buffer["rank"] == self.channels[kind][ids[0]].peer, f"{where}: a buffer of {buffer['rank']}")
                need(target[0]["size"] == 1, f"{where}: size {target[0]['size']}")
                put = True
                if kind == "port":
                    unflushed.add(ids[0])
            elif name == "signal":
                need(not put, f"{where}: other threads may not have put")
            elif name == "wait":
                waited = True
            elif name == "flush":
                need(kind == "port", f"{where}: {kind}")
                unflushed -= set(ids)
            else:
                need(not waited, f"{where}: some threads have not waited")
                need(op["reduce_op"] == "sum", f"{where}: {op['reduce_op']}")
                self.local(op["src_buff"], where, "is")
                summed.update(self.local(op["dst_buff"], where, "i"))
        need(not unflushed, f"{self.name}: ports {sorted(unflushed)} are not flushed")

    def local(self, buffers, where, types):
        places = []
        for buffer in buffers:
            keys(buffer, ["type", "index", "size"], where)
            need(buffer["type"] in types and buffer["size"] == 1, f"{where}: {buffer}")
            limit = self.gpu.chunks if buffer["type"] == "i" else self.gpu.scratch
            need(0 <= buffer["index"] < limit, f"{where}: {buffer['type']}[{buffer['index']}] of {limit}")
            places.append((buffer["type"], buffer["index"]))
        return places


def parse(plan):
    keys(plan, PLAN, "the plan")
    need(plan["collective"] == "allreduce" and plan["inplace"] is True, "not an all-reduce in place")
    need(plan["protocol"] == "Simple" and not plan["reuse_resources"], "another protocol")
    gpus = [Gpu(node, i, len(plan["gpus"])) for i, node in enumerate(plan["gpus"])]
    need(len({g.chunks for g in gpus}) == 1, "different chunks")
    unit = gpus[0].chunks * plan["buffer_alignment"]
    need(unit <= plan["min_message_size"] <= plan["max_message_size"], "no message size")
    most = max(gpus[0].chunks, *(g.scratch for g in gpus))
    need(plan["max_message_size"] // gpus[0].chunks * most < MOST_OFFSET, "offsets of more than 32 bits")
    for kind in ("memory", "port"):
        ends = collections.defaultdict(list)
        for gpu in gpus:
            for channel in gpu.channels[kind]:
                ends[gpu.id, channel.peer].append(channel)
        for (a, b), mine in ends.items():
            need(len(mine) == len(ends.get((b, a), [])), f"{kind} channels from {a} to {b}: {len(mine)}, back: "
                 f"{len(ends.get((b, a), []))}")
            for one, other in zip(mine, ends[b, a]):
                one.other = other
    for gpu in gpus:
        for block in gpu.blocks:
            for op in block.ops:
                if op["name"] == "put":
                    target = op["dst_buff"][0]
                    buffer = block.buffers[op["channel_type"]][target["buffer_id"]]
                    peer = gpus[buffer["rank"]]
                    limit = peer.chunks if buffer["type"] == "i" else peer.scratch
                    need(0 <= target["index"] < limit, f"{block.name}: puts to {buffer['type']}[{target['index']}] of {limit}")
    return gpus


class Machine:
    """All GPUs, which run the plan `ROUNDS` times."""

    ROUNDS = 2

    def __init__(self, gpus, rng):
        self.gpus, self.rng = gpus, rng
        chunks = gpus[0].chunks
        self.inputs = [[[rng.randrange(1 << 40) for _ in range(chunks)] for _ in gpus] for _ in range(self.ROUNDS)]
        self.rounds = [0] * len(gpus)
        self.memory = [{("s", i): rng.randrange(1 << 40) for i in range(g.scratch)} for g in gpus]
        for gpu in gpus:
            self.load(gpu)
            for block in gpu.blocks:
                block.at = 0
            for channel in gpu.channels["memory"] + gpu.channels["port"]:
                channel.arrived, channel.pending = 0, []

    def load(self, gpu):
        for chunk, value in enumerate(self.inputs[self.rounds[gpu.id]][gpu.id]):
            self.memory[gpu.id]["i", chunk] = value

    def finish(self, gpu):
        inputs = self.inputs[self.rounds[gpu.id]]
        for chunk in range(gpu.chunks):
            total = sum(of_gpu[chunk] for of_gpu in inputs)
            found = self.memory[gpu.id]["i", chunk]
            need(found == total, f"gpu {gpu.id} chunk {chunk}: {found}, the sum is {total}")
        self.rounds[gpu.id] += 1
        if self.rounds[gpu.id] < self.ROUNDS:
            self.load(gpu)
            for block in gpu.blocks:
                block.at = 0

    def move(self, channel):
        """The oldest put or signal of a channel takes place."""
        what, own, source, peer, target = channel.pending.pop(0)
        if what == "put":
            self.memory[peer][target] = self.memory[own][source]
        else:
            channel.other.arrived += 1

    def step(self, block):
        """Runs an operation, unless it must wait."""
        op, gpu = block.ops[block.at], block.gpu
        ends = [block.channels[op["channel_type"]][c] for c in op.get("channel_ids", [])]
        if op["name"] == "wait":
            if any(end.arrived == 0 for end in ends):
                return False
            for end in ends:
                end.arrived -= 1
        elif op["name"] == "put":
            target = op["dst_buff"][0]
            buffer = block.buffers[op["channel_type"]][target["buffer_id"]]
            source = op["src_buff"][0]
            ends[0].pending.append(("put", gpu.id, (source["type"], source["index"]), buffer["rank"],
                                    (buffer["type"], target["index"])))
        elif op["name"] == "signal":
            for end in ends:
                end.pending.append(("signal", gpu.id, None, end.peer, None))
                while end.kind == "memory" and end.pending:
                    self.move(end)
        elif op["name"] == "flush":
            for end in ends:
                while end.pending:
                    self.move(end)
        elif op["name"] == "re":
            own = self.memory[gpu.id]
            target = op["dst_buff"][0]
            own[target["type"], target["index"]] = sum(own[s["type"], s["index"]] for s in op["src_buff"])
        block.at += 1
        return True

    def run(self):
        blocks = [block for gpu in self.gpus for block in gpu.blocks]
        channels = [c for gpu in self.gpus for kind in gpu.channels.values() for c in kind]
        lazy = self.rng.random()
        while any(r < self.ROUNDS for r in self.rounds):
            moved = False
            for channel in channels:
                while channel.pending and self.rng.random() > lazy:
                    self.move(channel)
                    moved = True
            self.rng.shuffle(blocks)
            for block in blocks:
                steps = self.rng.randrange(6)
                while steps and block.at < len(block.ops) and self.step(block):
                    steps, moved = steps - 1, True
            for gpu in self.gpus:
                if self.rounds[gpu.id] < self.ROUNDS and all(b.at == len(b.ops) for b in gpu.blocks):
                    self.finish(gpu)
                    moved = True
            if not moved:
                for channel in channels:
                    while channel.pending:
                        self.move(channel)
                        moved = True
            stuck = [b for b in blocks if b.at < len(b.ops)]
            waits = all(b.ops[b.at]["name"] == "wait" and
                        any(b.channels[b.ops[b.at]["channel_type"]][c].arrived == 0
                            for c in b.ops[b.at]["channel_ids"]) for b in stuck)
            need(moved or not stuck or not waits, f"{stuck[0].name if stuck else ''} waits for ever")
        need(all(c.arrived == 0 for c in channels), "a signal that nobody waits for")


def main():
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            plan = json.load(file)
        gpus = parse(plan)
        for seed in range(6):
            Machine(gpus, random.Random(seed)).run()
    except (Wrong, ValueError, KeyError, TypeError) as error:
        print(f"{sys.argv[1]}: {error}")
        return 1
    operations = sum(len(b.ops) for g in gpus for b in g.blocks)
    print(f"ok: {len(gpus)} gpus, {gpus[0].chunks} chunks, {operations} operations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
