# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch over NCCL: the hook of DistributedDataParallel and pipeline jobs, beside one process on the same device.

    torch_ranks.py cuda|cpu        cpu: over Gloo, to test this file

Prints a line of JSON for each case: the largest relative difference of the losses of its steps. Models and plans are those
of tests/system/python.
"""

import json
import multiprocessing
import pathlib
import sys
import tempfile
import traceback

TESTS = pathlib.Path(__file__).resolve().parents[1] / "system/python"
sys.path[:0] = [str(TESTS / "job"), str(TESTS)]
import cases  # noqa: E402
import test_job  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import agpcs  # noqa: E402
import agpcs.torch  # noqa: E402
from agpcs.torch import PlanSampler  # noqa: E402

STEPS, LIMIT = 5, 240
HOOKED = {"hook, ResNet-18": cases.GroupResNet18, "hook, BERT": cases.Bert}
JOBS = {"job, MLP in two stages": (test_job.Mlp, test_job.TWO),
        "job, MLP in four stages": (test_job.Mlp, test_job.FOUR),
        "job, transformer in two stages of two": (test_job.Transformer, test_job.TWO_BY_TWO)}


def exactly():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(False)


def batches_on(device, loader):
    return [tuple(part.to(device) for part in batch) for batch in loader]


def hooked(device, rank, name, plan):
    """Losses of steps of DDP by the plan, with shares of 3 to 1."""
    kind = HOOKED[name]
    data = cases.Data(kind, cases.BATCH * STEPS)
    sampler = PlanSampler(data, plan, rank, shuffle=False)
    ddp, _ = cases.wrapped(cases.build(kind).to(device), plan)
    weight = plan.shares[rank] / plan.batch

    def step(number, batch):
        with sampler.sync(ddp, number):
            loss = sampler.weigh(cases.loss_of(ddp, batch), number)
            loss.backward()
        total = loss.detach()
        dist.all_reduce(total.mul_(weight))
        return total
    return cases.train(ddp, batches_on(device, DataLoader(data, batch_sampler=sampler)), step)


def alone(device, name):
    kind = HOOKED[name]
    loader = DataLoader(cases.Data(kind, cases.BATCH * STEPS), batch_size=cases.BATCH)
    return cases.train(cases.build(kind).to(device), batches_on(device, loader))


def of_job(device, rank, name, plan):
    kind, _ = JOBS[name]
    job = agpcs.torch.Job(cases.build(kind).to(device), plan, nn.functional.cross_entropy, test_job.optimizer_of,
                          batches_on(device, test_job.batches(kind, 1))[0])
    return [job.step(batch).item() for batch in batches_on(device, test_job.batches(kind, STEPS))]


def job_alone(device, name):
    kind, _ = JOBS[name]
    model = cases.build(kind).to(device)
    optimizer, losses = test_job.optimizer_of(model.parameters()), []
    for *inputs, labels in batches_on(device, test_job.batches(kind, STEPS)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(*inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def enter(work, device, rank, ranks, folder, queue, name, text):
    """A rank's process."""
    try:
        exactly()
        torch.set_num_threads(1)
        if device == "cuda":
            torch.cuda.set_device(rank % torch.cuda.device_count())
        dist.init_process_group("nccl" if device == "cuda" else "gloo", store=dist.FileStore(f"{folder}/store", ranks),
                                rank=rank, world_size=ranks)
        queue.put((rank, work(device, rank, name, agpcs.Plan(text))))
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:  # the starter says it
        traceback.print_exc(limit=-3)
        queue.put((rank, f"{type(error).__name__}: {error}"))


def on_ranks(work, device, ranks, name, plan):
    """What each rank's `work` returns."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        queue = context.Queue()
        processes = [context.Process(target=enter, args=(work, device, rank, ranks, folder, queue, name, plan.text))
                     for rank in range(ranks)]
        for process in processes:
            process.start()
        try:
            results = dict(queue.get(timeout=LIMIT) for _ in range(ranks))
        finally:
            for process in processes:
                process.join(10)
                if process.is_alive():
                    process.kill()
    return [results[rank] for rank in range(ranks)]


def say(name, expected, by_rank):
    wrong = [f"rank {rank}: {result}" for rank, result in enumerate(by_rank) if isinstance(result, str)]
    off = None if wrong else max(abs(a - b) / abs(a) for losses in by_rank for a, b in zip(expected, losses))
    print(json.dumps({"case": name, "ranks": len(by_rank), "first_loss": expected[0], "last_loss": expected[-1], "off": off,
                      "wrong": "; ".join(wrong)}), flush=True)


def main():
    device = sys.argv[1]
    exactly()
    plans = {name: cases.plan_of(kind, shares="3:1") for name, kind in HOOKED.items()}
    for name, plan in plans.items():
        say(name, alone(device, name), on_ranks(hooked, device, 2, name, plan))
    for name, (kind, layout) in JOBS.items():
        plan = test_job.plan_of(kind, layout)
        say(name, job_alone(device, name), on_ranks(of_job, device, plan.ranks, name, plan))


if __name__ == "__main__":
    main()
