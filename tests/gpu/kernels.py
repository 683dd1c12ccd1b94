# SPDX-License-Identifier: Apache-2.0
"""Measures kernels, forward and backward, in tf32, fp16 and bf16: data that judges the kernel model.

    kernels.py FILE.csv cuda|cpu       cpu: a few shapes in fp32, to test this file

Adds rows to the file, and leaves out those that it has. Milliseconds are the median of single runs, each between two events
on the device, with the cache flushed before; shapes follow as in NeuSight's lists: linear b,t,m,k,n as b,m,n,k; bmm b,m,n,k;
conv images,channels_in,channels_out,kernel,size,stride,padding, channels last in fp16 and bf16; all others rows,columns.
"""

import csv
import pathlib
import statistics
import sys
import time

import torch
from torch.nn import functional

COLUMNS = ["device", "precision", "class", "pass", "ms", *(f"s{i}" for i in range(7))]
PRECISIONS = {"tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
RUNS, WARM = 15, 3
FLUSHED = 256 << 20  # bytes, more than any cache of a device
AHEAD = 1_000_000  # cycles for which the device waits, so that the host has put all of a run in its queue when it begins

LINEAR = [(b, t, n, k) for b, t in ((1, 128), (8, 128), (32, 128), (8, 512)) for n, k in (
    (768, 768), (3072, 768), (768, 3072), (1024, 4096), (4096, 1024), (4096, 4096), (2304, 768))]
BMM = [(b, m, n, k) for b in (12, 96, 384) for m, n, k in ((128, 128, 64), (128, 64, 128), (512, 512, 64), (512, 64, 512))]
CONV = [(images, *shape) for images in (8, 32, 128) for shape in (
    (3, 64, 7, 224, 2, 3), (64, 64, 1, 56, 1, 0), (64, 64, 3, 56, 1, 1), (64, 256, 1, 56, 1, 0), (128, 128, 3, 28, 1, 1),
    (256, 128, 1, 56, 1, 0), (128, 128, 3, 56, 2, 1), (256, 256, 3, 14, 1, 1), (1024, 256, 1, 14, 1, 0),
    (512, 512, 3, 7, 1, 1), (2048, 512, 1, 7, 1, 0))]
ROWS = [(rows, columns) for rows in (1024, 4096, 16384, 65536) for columns in (512, 768, 1024, 3072, 4096)]
CLASSES = {"linear": LINEAR, "bmm": BMM, "conv": CONV, "add": ROWS, "relu": ROWS, "gelu": ROWS, "softmax": ROWS, "ln": ROWS}


def case(name, shape, device, dtype):
    """(tensors that get gradients, the function of them)"""
    def made(*dims):
        return torch.randn(*dims, device=device, dtype=dtype, requires_grad=True)
    if name == "linear":
        b, t, n, k = shape
        return (made(b, t, k), made(n, k)), functional.linear
    if name == "bmm":
        b, m, n, k = shape
        return (made(b, m, k), made(b, k, n)), torch.bmm
    if name == "conv":
        images, inputs, outputs, kernel, size, stride, padding = shape
        x, w = made(images, inputs, size, size), made(outputs, inputs, kernel, kernel)
        if dtype in (torch.float16, torch.bfloat16):  # as frameworks have them
            x, w = (t.detach().to(memory_format=torch.channels_last).requires_grad_() for t in (x, w))
        return (x, w), \
            lambda x, w: functional.conv2d(x, w, None, stride, padding)
    x = made(*shape)
    if name == "add":
        return (x, made(*shape)), torch.add
    if name == "ln":
        return (x, made(shape[1]), made(shape[1])), lambda x, w, b: functional.layer_norm(x, shape[1:], w, b)
    return (x,), {"relu": torch.relu, "gelu": functional.gelu, "softmax": lambda x: torch.softmax(x, -1)}[name]


def timed(run, device, flush):
    """Milliseconds of one run."""
    flush.zero_()
    if device == "cpu":
        begin = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - begin)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(AHEAD)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def measure(name, shape, device, dtype, flush):
    """Milliseconds by pass."""
    tensors, function = case(name, shape, device, dtype)
    out = function(*tensors)
    gradient = torch.randn_like(out)  # ones would draw less power than a training's

    def forward():
        with torch.no_grad():
            function(*tensors)

    def backward():
        torch.autograd.grad(out, tensors, gradient, retain_graph=True)

    for which, run in (("forward", forward), ("backward", backward)):
        for _ in range(WARM):
            run()
        yield which, statistics.median(timed(run, device, flush) for _ in range(RUNS))


def main():
    path, device = pathlib.Path(sys.argv[1]), sys.argv[2]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(0)
    name_of_device = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    precisions = PRECISIONS if device == "cuda" else {"fp32": torch.float32}
    flush = torch.empty(FLUSHED if device == "cuda" else 1 << 20, dtype=torch.int8, device=device)
    known = {tuple(row[c] for c in COLUMNS if c != "ms") for row in csv.DictReader(path.open())} if path.exists() else set()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        if not known:
            writer.writeheader()
        for precision, dtype in precisions.items():
            for name, shapes in CLASSES.items():
                for shape in shapes if device == "cuda" else [min(shapes, key=lambda s: s[0] * s[1])]:
                    row = {"device": name_of_device, "precision": precision, "class": name,
                           **{f"s{i}": str(extent) for i, extent in enumerate(shape)}}
                    if all(tuple({**row, "pass": which}.get(c, "") for c in COLUMNS if c != "ms") in known
                           for which in ("forward", "backward")):
                        continue
                    for which, ms in measure(name, shape, device, dtype, flush):
                        writer.writerow({**row, "pass": which, "ms": f"{ms:.6f}"})
                    file.flush()


if __name__ == "__main__":
    main()
