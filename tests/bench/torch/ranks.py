# SPDX-License-Identifier: Apache-2.0
"""PyTorch ranks on a test bed's machines, and the models that they train.

A bench starts its own file once a rank. Ranks and bench go on together: a rank calls `pause`, the bench waits for all of
them by `paused`, changes the machines, and calls `go`.
"""

import argparse
import contextlib
import ctypes
import fnmatch
import os
import signal
import subprocess
import sys

PORT = 29511


# --- a rank ----------------------------------------------------------------------------------------------------------


def pause():
    """Waits, as all ranks do, until the bench goes on."""
    import torch.distributed as dist
    dist.barrier()
    print("pause", flush=True)
    sys.stdin.readline()
    dist.barrier()


def keep_memory():
    """Lets this process keep the memory that it frees. What glibc gives back is chance, and its page faults are up to a tenth
    of a step of any way."""
    libc = ctypes.CDLL(None)
    for option, value in ((-1, 1 << 30), (-3, 1 << 25)):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, at its most
        if libc.mallopt(option, value) != 1:
            raise OSError(f"mallopt({option}, {value}) was refused")


def model_of(name):
    """(module, loss_fn, a batch of four samples)"""
    import torch
    from torch.nn.functional import cross_entropy

    torch.manual_seed(0)
    if name == "resnet18":
        import torchvision
        module = torchvision.models.resnet18(num_classes=10)
        return module, lambda m, b: cross_entropy(m(b[0]), b[1]), (torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,)))
    if name == "bert":
        from transformers import BertConfig, BertForSequenceClassification
        module = BertForSequenceClassification(BertConfig(
            vocab_size=2000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024))
        tokens = torch.randint(0, 2000, (4, 64))
        return module, lambda m, b: m(**b).loss, {"input_ids": tokens, "labels": torch.randint(0, 2, (4,))}
    from transformers import LlamaConfig, LlamaForCausalLM
    module = LlamaForCausalLM(LlamaConfig(
        vocab_size=2000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=688))
    tokens = torch.randint(0, 2000, (4, 64))
    return module, lambda m, b: m(**b).loss, {"input_ids": tokens, "labels": tokens}


def layers_of(module):
    """The parts of such a module that FSDP2 shards each by itself, as its manual has it."""
    if hasattr(module, "bert"):
        return list(module.bert.encoder.layer)
    if hasattr(module, "layer1"):
        return [module.layer1, module.layer2, module.layer3, module.layer4]
    return list(module.model.layers)


# --- the bench -------------------------------------------------------------------------------------------------------


def parser_of(text, example):
    """A parser of arguments that say which cases are measured."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=["*"], help=f"patterns, as '{example}'")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--rank", metavar="MODEL", help=argparse.SUPPRESS)
    return parser


def chosen(cases, options, head):
    """Prints `head`, and returns what `cases` has for the names that the patterns of `options` ask for. Ends the bench after
    `--list`, where no case is meant, and where there is no test bed."""
    import machines
    names = [name for name in cases if any(fnmatch.fnmatch(name, pattern) for pattern in options.cases)]
    if options.list:
        print("\n".join(names))
        sys.exit(0)
    if not names:
        sys.exit(f"error: no case is like {' or '.join(options.cases)}\n  hint: --list prints them")
    try:
        machines.check()
    except machines.Unavailable as error:
        print(f"skipped: {error}", file=sys.stderr)
        sys.exit(77)
    print(head, flush=True)
    return [cases[name] for name in names]


class Ranks:
    """Processes, one a rank. They start at full speed."""

    def __init__(self, bed, file, words):
        self._bed, self._processes = bed, []
        environment = {**os.environ, "MASTER_ADDR": bed.address(bed.ranks[0][0]), "MASTER_PORT": str(PORT),
                       "WORLD_SIZE": str(len(bed.ranks)), "OMP_NUM_THREADS": "1"}
        bed.lift_speeds()
        for rank, (machine, place) in enumerate(bed.ranks):
            # A host's name tells autoplan which ranks are neighbours.
            command = ["unshare", "--uts", "sh", "-c", f"hostname {machine.name} && exec \"$0\" \"$@\"", sys.executable,
                       file, *words]
            self._processes.append(bed.start(rank, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={
                **environment, "RANK": str(rank), "LOCAL_RANK": str(place),
                "GLOO_SOCKET_IFNAME": f"agpcs-tb-{machine.name}"}))

    def paused(self):
        """Waits until all ranks pause."""
        for rank, process in enumerate(self._processes):
            while (line := process.stdout.readline()) != "pause\n":
                if not line:
                    raise RuntimeError(f"rank {rank} ended")

    def go(self):
        for process in self._processes:
            process.stdin.write("go\n")
            process.stdin.flush()

    def last_line(self):
        """Returns the last line that rank 0 prints, when all ranks have ended."""
        said = [process.communicate(timeout=1800)[0] for process in self._processes]
        return said[0].splitlines()[-1]

    def end(self):
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def ranks_on(bed, file, *words):
    """Ranks that run `file` with `words` for arguments, at the machines' speeds from their first pause on."""
    ranks = Ranks(bed, file, words)
    try:
        ranks.paused()
        bed.set_speeds()
        ranks.go()
        yield ranks
    finally:
        ranks.end()
