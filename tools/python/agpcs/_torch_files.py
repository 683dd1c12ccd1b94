# SPDX-License-Identifier: Apache-2.0
"""Writes what autoplan measured as files that the compiler reads: a model, a cluster and a profile."""

import re
import typing

import torch

from agpcs import _agpcs
from agpcs._errors import InvalidInput

TYPES = {torch.float32: ("float", "fp32", 4), torch.float16: ("float16", "fp16", 2),
         torch.bfloat16: ("bfloat16", "bf16", 2)}  #: by torch's: ONNX's name, a plan's name, bytes


class Parameter(typing.NamedTuple):
    name: str
    shape: tuple
    dtype: torch.dtype


class Part(typing.NamedTuple):
    """Parameters whose gradients come one after another, so that one operator of the model file stands for them."""

    parameters: tuple
    begin: float  #: when the backward pass of this part begins, as a fraction of the whole backward pass
    end: float


class Measurements(typing.NamedTuple):
    """What one rank measured."""

    rank: int
    host: str
    device: str  #: the name of the hardware
    points: tuple  #: Point, ascending by samples
    update: object  #: Update
    memory: int  #: bytes that a plan may use
    overlap: object  #: Overlap


def host_of(place):
    """Returns the host of a device, "a" of "a/0"."""
    return place.rsplit("/", 1)[0]


def parts_of(parameters, ready, most=32):
    """Groups parameters into at most 2 x `most` parts, in the order in which their gradients come. `ready` has their
    times as fractions of the backward pass; None: the sample gave this parameter no gradient."""
    order = sorted(range(len(parameters)), key=lambda i: (1.0 if ready[i] is None else ready[i], -i))
    total = sum(_elements(p) for p in parameters)
    parts, members, begin = [], [], 0.0
    for i in order:
        members.append(parameters[i])
        end = min(max(ready[i] if ready[i] is not None else 1.0, begin), 1.0)
        last = i == order[-1]
        if last or end - begin >= 1 / most or sum(map(_elements, members)) >= total / most:
            parts.append(Part(tuple(members), begin, 1.0 if last else end))
            members, begin = [], end
    return parts


def model_text(name, parts, bytes_per_sample):
    """Returns a model in ONNX's text form: a chain of `agpcs.Measured`, the last part of the backward pass first.

    Its parameters are the module's, with their names and shapes. Its activations are as large as what the module keeps
    of a sample for the backward pass, `bytes_per_sample`.
    """
    chain = list(reversed(parts))
    widths = _widths(chain, bytes_per_sample)
    names = [p.name for part in chain for p in part.parameters]
    for parameter in names:
        if re.search(r'["\\\n]', parameter):
            raise InvalidInput(f"a parameter has the name {parameter!r}, which a model file cannot hold\n"
                               "  hint: rename the module")
    listed = "\n".join(names)
    lines = ['<ir_version: 10, opset_import: ["": 20, "agpcs": 1], producer_name: "agpcs.torch.autoplan",',
             f' metadata_props: ["agpcs.parameters": "{listed}"]>',
             f"{_word(name)} (float[n, {widths[0]}] part_0) => (float loss)"]
    inner = [f"float[n, {width}] part_{i}" for i, width in enumerate(widths) if i > 0]
    lines += [f"<{', '.join(inner)}>"] if inner else []
    lines.append("{")
    for number, part in enumerate(chain):
        for p in part.parameters:
            kind = TYPES[p.dtype][0]
            shape = ", ".join(map(str, p.shape))
            lines += [f'  "{p.name}.shape" = Constant <value = int64[{len(p.shape)}] {{{shape}}}> ()',
                      f'  "{p.name}" = ConstantOfShape <value = {kind}[1] {{0}}> ("{p.name}.shape")']
        inputs = ", ".join([f"part_{number}", *(f'"{p.name}"' for p in part.parameters)])
        output = f"part_{number + 1}" if number + 1 < len(chain) else "loss"
        lines.append(f"  {output} = agpcs.Measured <part: int = {number}> ({inputs})")
    return "\n".join(lines) + "\n}\n"


def profile_text(parts, bytes_per_sample, kinds, paths, all_reduces, devices, begin):
    """Returns the text of a profile. `kinds` maps names of device kinds to Measurements; `paths` maps (from, to, links)
    to Messages, and `all_reduces` are those over all `devices`. `begin` is what a step takes beside all that."""
    chain = list(reversed(parts))
    widths = _widths(chain, bytes_per_sample)
    elements = sum(_elements(p) for part in parts for p in part.parameters)
    tensors = sum(len(part.parameters) for part in parts)
    lines = []
    for kind, measured in kinds.items():
        update = measured.update
        lines += [*kind_lines(kind, measured.device, precision_of(parts), "autoplan", measured.overlap),
                  update_line(update.name, elements, tensors, update.seconds, begin), "    operators:"]
        for number, part in enumerate(chain):
            share = part.end - part.begin
            lines += [f'      - operator: "{_signature(chain, widths, number)}"', "        class: elementwise",
                      "        points:"]
            for point in measured.points:
                moved = 4 * point.samples * widths[number] + sum(map(_bytes, part.parameters))
                lines.append(
                    f"          - {{samples: {point.samples}, forward: {time(point.forward * share)}, "
                    f"forward_spread: {point.spread:.3g}, backward: {time(point.backward * share)}, "
                    f"backward_spread: {point.spread:.3g}, flops: [0, 0], bytes: [{moved}, {2 * moved}]}}")
    return sealed(lines, [(*path, points) for path, points in paths.items()], [(devices, all_reduces)] if all_reduces else [],
                  "autoplan")


def kind_lines(kind, device, precision, model, overlap, message_compute=0.0):
    """The first lines of a device kind in a profile; its updates and operators follow."""
    return [f"  {kind}:",
            f"    hardware: {{processor: {_quoted(device)}}}",
            f"    software: {{torch: {_quoted(torch.__version__)}}}",
            f"    precision: {precision}",
            f"    models: [{model}]",
            *([f"    message_compute: {time(message_compute)}"] if message_compute else []),
            f"    overlap: {{compute_seconds_per_byte: {time(overlap.compute_seconds_per_byte)}, "
            f"communication_factor: {overlap.communication_factor:.4g}}}",
            "    updates:"]


def update_line(optimizer, elements, tensors, seconds, begin):
    return (f"      - {{optimizer: {optimizer}, elements: {elements}, tensors: {tensors}, update: {time(seconds)}, "
            f"update_spread: 0, begin: {time(begin)}, begin_spread: 0}}")


def sealed(kinds, paths, rings, what):
    """The text of a profile that `what` has measured: the lines of its device kinds, Messages of paths as (from, to, links,
    Messages), and of all-reduces by rings as (devices, Messages)."""
    lines = ["profile: 1", "devices:", *kinds]
    if paths:
        lines.append("paths:")
    for sender, receiver, links, points in paths:
        lines += [f"  - from: {sender}", f"    to: {receiver}", f"    links: [{', '.join(links)}]", "    points:",
                  *map(_message, points)]
    if rings:
        lines.append("collectives:")
    for devices, points in rings:
        lines += ["  - algorithm: ring", f"    devices: [{', '.join(devices)}]", "    points:", *map(_message, points)]
    return _agpcs.sealed_profile("\n".join(lines) + "\n", f"the measurements of {what}")


def cluster_text(profile_name, hosts, kinds, memory_of, links, batch, optimizer, precision,
                 statistics_every):
    """Returns the text of a cluster file. `hosts` maps names to the device kinds of their ranks, `links` are the
    bandwidth (B/s) and latency (s) inside hosts and between them."""
    lines = ["# Written by agpcs.torch.autoplan. `memory` is what a plan may use on this kind: 80% of what was free,",
             "# less what the process uses beside parameters, gradients and activations.",
             "name: autoplan", f"profile: {profile_name}", "device_kinds:"]
    lines += [f"  {kind}: {{memory: {memory_of[kind]}B}}  # {measured.device}" for kind, measured in kinds.items()]
    lines.append("hosts:")
    inside, between = ("bandwidth: {:.6g}B/s, latency: {}".format(bandwidth, time(latency))
                       for bandwidth, latency in links)
    for host, kinds_here in hosts.items():
        devices = ", ".join(f"{{kind: {kind}}}" for kind in kinds_here)
        lines += [f"  - name: {host}", f"    devices: [{devices}]", f"    interconnect: {{kind: tcp, {inside}}}"]
        lines += [f"    nic: {{kind: tcp, {between}}}"] if len(hosts) > 1 else []
    lines.append(f"training: {{batch: {batch}, precision: {precision}, loss: model, optimizer: {optimizer}, "
                 f"statistics_every: {statistics_every}}}")
    return "\n".join(lines) + "\n"


def precision_of(parts):
    """Returns the type of most parameters, as a plan names it."""
    elements = {}
    for part in parts:
        for p in part.parameters:
            kind = TYPES[p.dtype][1]
            elements[kind] = elements.get(kind, 0) + _elements(p)
    return max(elements, key=elements.get)


def _widths(chain, bytes_per_sample):
    """Returns the elements of each part's input: together as many bytes as a sample keeps, in proportion to time."""
    held = 4 if precision_of(chain) == "fp32" else 2
    return [max(round(bytes_per_sample / held * (part.end - part.begin)), 1) for part in chain]


def _signature(chain, widths, number):
    """Returns the operator as a profile names it (docs/reference/profile_yaml.md)."""
    gradient = "'" if number > 0 else ""
    inputs = [f"fp32[n,{widths[number]}]{gradient}"]
    for p in chain[number].parameters:
        inputs.append(f"{TYPES[p.dtype][1]}[{','.join(map(str, p.shape))}]*'")
    output = f"fp32[n,{widths[number + 1]}]" if number + 1 < len(chain) else "fp32[]"
    return f"agpcs.Measured({', '.join(inputs)}) -> {output} {{part={number}}}"


def _message(point):
    return f"      - {{bytes: {point.bytes}, time: {time(point.seconds)}, spread: {point.spread:.3g}}}"


def _elements(parameter):
    product = 1
    for extent in parameter.shape:
        product *= extent
    return product


def _bytes(parameter):
    return _elements(parameter) * TYPES[parameter.dtype][2]


def time(seconds):
    return f"{seconds * 1e6:.9g}us"


def _quoted(text):
    return '"' + re.sub(r'["\\\n]', "'", text) + '"'


def _word(text):
    return re.sub(r"\W", "_", text, flags=re.ASCII) or "model"
