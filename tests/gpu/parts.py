# SPDX-License-Identifier: Apache-2.0
"""The parts of the proof, in the order of their worth."""

import json

import jobs
import predictions
import programs
from runner import Part

TOLERANCE = 1e-4


def machine(work):
    for index, gpu in enumerate(work.machine.gpus):
        work.row("GPUs", number=index, **gpu)
    if work.machine.gpus:
        (work.folder / "nvidia-smi.txt").write_text(work.need(["nvidia-smi", "-q"]))
        work.note("what nvidia-smi says of them is in parts/machine/nvidia-smi.txt")
    else:
        work.note(work.machine.obstacle("gpu") or "a rehearsal looks for none")


def torch_ranks(work):
    """The script prints a line of JSON for each case."""
    script = work.machine.root / "tests/gpu/torch_ranks.py"
    done = work.call([work.machine.torch["python"], script, "cpu" if work.machine.rehearsal else "cuda"],
                     {**jobs.EXACT, **jobs.LOADED})
    rows = [json.loads(line) for line in done.output.splitlines() if line.startswith('{"case"')]
    for row in rows:
        work.row("Cases", **row)
        if row["off"] is None or row["off"] > TOLERANCE or row["first_loss"] == row["last_loss"]:
            work.fault(f"{row['case']}: {row['wrong'] or 'off by ' + format(row['off'], '.2g')}")
    if done.code != 0:
        work.fault(f"{script.name} ended with {done.code}:\n{done.last_lines()}")
    off = [row["off"] for row in rows if row["off"] is not None]
    if off:
        work.figure("largest relative difference of losses", max(off), target=f"<= {TOLERANCE}")


ONE = ("gpu", "programs")
RANKS = (*ONE, "ranks")

PARTS = (
    Part("machine", "What the machine has", machine, limit=60),
    Part("torch", "A PyTorch of a CUDA build", programs.torch, ("gpu",)),
    Part("build", "CUDA's and NCCL's code compiles against this machine's toolkit and PyTorch", programs.build, ("gpu",),
         limit=590, least=60),
    Part("conformance", "The transports' conformance suite over NCCL", programs.conformance, RANKS, least=30,
         beside=True),
    Part("equality", "Training by the plans of the CPU tests equals training alone on the GPU", jobs.equality, RANKS,
         least=30, beside=True),
    Part("predictions", "Predicted steps and peak memory beside measured ones, on one rank and on parts of the device",
         predictions.predictions, ONE, limit=590, least=60),
    Part("replay", "What replaying adds to NCCL's own calls, and to a CUDA graph of them", predictions.replay, RANKS,
         beside=True),
    Part("executor", "The executor beside PyTorch, eager and compiled", predictions.executor, (*ONE, "torch"), least=60),
    Part("faults", "A rank that is killed or stopped ends the job within the limits", jobs.lost_rank, RANKS, limit=240,
         least=30),
    Part("aborted", "An aborted communicator, a peer that leaves, a time that is over", programs.aborted, RANKS, limit=300),
    Part("hook", "agpcs.torch's hook and pipeline jobs over NCCL equal one process", torch_ranks, (*RANKS, "torch"),
         least=30, beside=True),
    Part("switch", "Drift is noticed, and a job moves to a better plan", jobs.switch, RANKS, limit=400, least=30,
         beside=True),
    Part("profile", "agpcs-profile of the device: three models, and a quick profile", predictions.profile, ONE, least=60),
    Part("kernels", "Measured kernels, forward and backward, in tf32, fp16 and bf16", predictions.kernels,
         ("gpu", "torch"), least=30),
    Part("sanitizer", "compute-sanitizer's memcheck and racecheck on small cases", programs.sanitizer,
         (*RANKS, "sanitizer")),
)
