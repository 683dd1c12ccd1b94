#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks an all-reduce for MSCCL: check_msccl.py FILE.xml.

Knows the format from microsoft/msccl's parser and interpreter, and nothing of AGPCS:
  * grammar: every attribute, its type and range; peers that exist; as many sends as receives of each
    connection; a step that another waits for says so (hasdep);
  * order: thread blocks run their steps one after the other, a step waits for the one named by depid and
    deps, a receive for the send that it takes; no step waits for itself, and two steps of a GPU that touch
    a chunk, one of them writing, are ordered by that;
  * sums: run in such an order, every chunk of every GPU ends as the sum over all GPUs, each counted once.
Exit code 0 and one line, or 1 and what is wrong.
"""

import collections
import random
import sys
import xml.etree.ElementTree as ET

MOST_STEPS, MOST_BLOCKS, MOST_BLOCKS_A_CHANNEL, MOST_COUNT = 256, 216, 32, 72
ALGO = ["name", "nchunksperloop", "nchannels", "proto", "ngpus", "coll", "redop", "inplace", "outofplace", "minBytes",
        "maxBytes"]
STEP = ["s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"]
#        sends, receives, reads src, reads dst, writes dst
TYPES = {"s": (1, 0, 1, 0, 0), "r": (0, 1, 0, 0, 1), "rcs": (1, 1, 0, 0, 1), "rrs": (1, 1, 1, 0, 0),
         "rrc": (0, 1, 1, 0, 1), "rrcs": (1, 1, 1, 0, 1), "cpy": (0, 0, 1, 0, 1), "re": (0, 0, 1, 1, 1),
         "nop": (0, 0, 0, 0, 0)}


class Wrong(Exception):
    pass


def need(condition, message):
    if not condition:
        raise Wrong(message)


def number(node, key, least, most):
    value = node.attrib[key]
    need(value.lstrip("-").isdigit(), f"{node.tag}: {key}='{value}' is no integer")
    need(least <= int(value) <= most, f"{node.tag}: {key}={value} is not within {least} and {most}")
    return int(value)


def keys_of(node, keys):
    need(list(node.attrib) == keys, f"{node.tag} has {list(node.attrib)}, not {keys}")


class Step:
    def __init__(self, node, index, gpu, block):
        keys_of(node, STEP)
        self.name = f"gpu {gpu} tb {block.id} step {index}"
        need(number(node, "s", 0, MOST_STEPS - 1) == index, f"{self.name}: s={node.attrib['s']}")
        self.type = node.attrib["type"]
        need(self.type in TYPES, f"{self.name}: type '{self.type}'")
        self.sends, self.receives, self.reads_src, self.reads_dst, self.writes = TYPES[self.type]
        for key in ("srcbuf", "dstbuf"):
            need(node.attrib[key] in "ios", f"{self.name}: {key}='{node.attrib[key]}'")
        self.count = number(node, "cnt", 1, MOST_COUNT - 1)
        self.src = (node.attrib["srcbuf"], number(node, "srcoff", 0, 1 << 30))
        self.dst = (node.attrib["dstbuf"], number(node, "dstoff", 0, 1 << 30))
        self.waits = (number(node, "depid", -1, MOST_BLOCKS - 1), number(node, "deps", -1, MOST_STEPS - 1))
        need((self.waits[0] < 0) == (self.waits[1] < 0), f"{self.name}: depid and deps {self.waits}")
        self.awaited = number(node, "hasdep", 0, 1)
        need(not self.sends or block.send >= 0, f"{self.name}: sends to nobody")
        need(not self.receives or block.recv >= 0, f"{self.name}: receives from nobody")
        self.gpu, self.block, self.before, self.ancestors, self.value = gpu, block, [], 0, None

    def places(self, place):
        buffer, offset = place
        return [("i" if buffer == "o" else buffer, offset + i) for i in range(self.count)]  # in place: o is i

    def accesses(self):
        found = [(p, False) for p in self.places(self.src)] if self.reads_src else []
        return found + ([(p, True) for p in self.places(self.dst)] if self.writes else [])


class Block:
    def __init__(self, node, index, gpu, gpus, channels):
        keys_of(node, ["id", "send", "recv", "chan"])
        self.id = number(node, "id", 0, MOST_BLOCKS - 1)
        need(self.id == index, f"gpu {gpu}: tb {self.id} where {index} is expected")
        self.send, self.recv = number(node, "send", -1, gpus - 1), number(node, "recv", -1, gpus - 1)
        need(gpu not in (self.send, self.recv), f"gpu {gpu} tb {index}: its own peer")
        self.channel = number(node, "chan", 0, channels - 1)
        self.steps = []
        for child in node:
            need(child.tag == "step", f"<{child.tag}> in a tb")
            self.steps.append(Step(child, len(self.steps), gpu, self))


def parse(text):
    root = ET.fromstring(text)
    need(root.tag == "algo", f"<{root.tag}> is no algo")
    keys_of(root, ALGO)
    need(root.attrib["coll"] == "allreduce" and root.attrib["redop"] == "sum", "not a sum on all")
    need(root.attrib["inplace"] == "1" and root.attrib["outofplace"] == "0", "not in place")
    need(root.attrib["proto"] in ("Simple", "LL", "LL128"), f"proto {root.attrib['proto']}")
    number(root, "minBytes", 0, number(root, "maxBytes", 0, 1 << 62))
    gpus, channels = number(root, "ngpus", 2, 1 << 16), number(root, "nchannels", 1, 32)
    chunks = number(root, "nchunksperloop", 1, 1 << 20)
    need(len(root) == gpus, f"{len(root)} gpus of {gpus}")
    parsed = []
    for node in root:
        need(node.tag == "gpu", f"<{node.tag}> in an algo")
        keys_of(node, ["id", "i_chunks", "o_chunks", "s_chunks"])
        gpu = number(node, "id", len(parsed), len(parsed))
        limits = {"i": number(node, "i_chunks", chunks, chunks), "o": number(node, "o_chunks", chunks, chunks),
                  "s": number(node, "s_chunks", 0, 1 << 20)}
        blocks = []
        for child in node:
            need(child.tag == "tb", f"<{child.tag}> in a gpu")
            blocks.append(Block(child, len(blocks), gpu, gpus, channels))
        per_channel = collections.Counter(block.channel for block in blocks)
        need(not blocks or max(per_channel.values()) <= MOST_BLOCKS_A_CHANNEL, f"gpu {gpu}: a channel is full")
        for role in ("send", "recv"):
            used = [(getattr(b, role), b.channel) for b in blocks if getattr(b, role) >= 0]
            need(len(used) == len(set(used)), f"gpu {gpu}: two thread blocks {role} on one connection")
        for block in blocks:
            for step in block.steps:
                for buffer, offset in (step.src, step.dst):
                    need(offset + step.count <= limits[buffer], f"{step.name}: {buffer}[{offset}] of {limits[buffer]}")
        parsed.append(blocks)
    return parsed, chunks


def link(gpus):
    """Sets `before` of every step; returns all steps."""
    every, awaited = [], set()
    sent, received = collections.defaultdict(list), collections.defaultdict(list)
    for g, blocks in enumerate(gpus):
        for block in blocks:
            for i, step in enumerate(block.steps):
                every.append(step)
                if i > 0:
                    step.before.append(block.steps[i - 1])
                b, s = step.waits
                if b >= 0:
                    need(b < len(blocks) and s < len(blocks[b].steps), f"{step.name} waits for tb {b} step {s}, which is not")
                    step.before.append(blocks[b].steps[s])
                    awaited.add(blocks[b].steps[s])
                if step.sends:
                    sent[g, block.send, block.channel].append(step)
                if step.receives:
                    received[block.recv, g, block.channel].append(step)
    for step in every:
        need(step.awaited == (step in awaited), f"{step.name}: hasdep={step.awaited}")
    need(sent.keys() == received.keys(), f"ends that never meet: {sorted(sent.keys() ^ received.keys())}")
    for connection, steps in sent.items():
        ends = received[connection]
        need(len(steps) == len(ends), f"{connection}: {len(steps)} sends, {len(ends)} receives")
        for send, receive in zip(steps, ends):
            need(send.count == receive.count, f"{receive.name}: another count than {send.name}")
            receive.before.append(send)
            receive.sender = send
    return every


def in_order(every):
    """The steps, each after what it waits for; sets `ancestors`, a set of steps as bits."""
    number_of = {step: i for i, step in enumerate(every)}
    missing = {step: len(step.before) for step in every}
    after = collections.defaultdict(list)
    for step in every:
        for before in step.before:
            after[before].append(step)
    ready, order = [step for step in every if missing[step] == 0], []
    while ready:
        step = ready.pop()
        order.append(step)
        for before in step.before:
            step.ancestors |= before.ancestors | 1 << number_of[before]
        for later in after[step]:
            missing[later] -= 1
            if missing[later] == 0:
                ready.append(later)
    need(len(order) == len(every), f"{len(every) - len(order)} steps wait for each other for ever")
    touching = collections.defaultdict(list)
    for step in order:
        for place, writes in step.accesses():
            touching[step.gpu, place].append((step, writes))
    for (gpu, place), accesses in touching.items():
        for i, (later, later_writes) in enumerate(accesses):
            for earlier, earlier_writes in accesses[:i]:
                if earlier is later or not (later_writes or earlier_writes):
                    continue
                need(later.ancestors >> number_of[earlier] & 1, f"{earlier.name} and {later.name} both touch {place}, in no order")
    return order


def check_sums(order, gpus, chunks):
    rng = random.Random(5)
    memory = [collections.defaultdict(int) for _ in range(gpus)]
    for own in memory:
        for chunk in range(chunks):
            own["i", chunk] = rng.randrange(1 << 40)
    sums = [sum(own["i", chunk] for own in memory) for chunk in range(chunks)]
    for step in order:
        own = memory[step.gpu]
        source = [own[p] for p in step.places(step.src)]
        target = [own[p] for p in step.places(step.dst)]
        came = step.sender.value if step.receives else None
        if step.type in ("rrs", "rrc", "rrcs"):
            result = [a + b for a, b in zip(came, source)]
        elif step.type == "re":
            result = [a + b for a, b in zip(source, target)]
        else:
            result = came if step.receives else source
        if step.writes:
            own.update(zip(step.places(step.dst), result))
        step.value = result if step.sends else None
    for gpu, own in enumerate(memory):
        for chunk in range(chunks):
            need(own["i", chunk] == sums[chunk], f"gpu {gpu} chunk {chunk}: {own['i', chunk]}, the sum is {sums[chunk]}")


def main():
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            gpus, chunks = parse(file.read())
        order = in_order(link(gpus))
        check_sums(order, len(gpus), chunks)
    except (Wrong, ET.ParseError, KeyError) as error:
        print(f"{sys.argv[1]}: {error}")
        return 1
    print(f"ok: {len(gpus)} gpus, {chunks} chunks, {len(order)} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
