# SPDX-License-Identifier: Apache-2.0
"""What all ranks of agpcs.torch.Job do, or none."""

from __future__ import annotations

import contextlib
import itertools

import torch.distributed as dist

from agpcs._errors import Error, RankLost
from agpcs._torch_keeper import keeper_of
from agpcs._torch_links import Links

_jobs = itertools.count()  # of this process


def keeper_of_all(device):
    """The Keeper of all ranks. A rank that ends before it comes here is named, too."""
    store, job = dist.distributed_c10d._get_default_store(), next(_jobs)
    store.set(f"agpcs-job-{job}-{dist.get_rank()}", "here")
    try:
        return keeper_of(Links(None, device))
    except RuntimeError as error:
        absent = []
        with contextlib.suppress(RuntimeError):  # the store may be gone with its rank
            absent = [str(rank) for rank in range(dist.get_world_size()) if not store.check([f"agpcs-job-{job}-{rank}"])]
        if not absent:
            raise
        raise RankLost(f"rank {', '.join(absent)} did not come to its Job, and a connection is closed\n"
                       "  hint: what it printed last says why") from error


def gathered(value):
    """Every rank's `value`, by rank."""
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, value)
    return every


def together(what, work):
    """Returns what `work()` returns, if no rank's raises. A rank whose work raises has its own error; the others name it,
    as one that cannot `what`."""
    result = error = None
    try:
        result = work()
    except Exception as raised:  # every rank has to hear of it
        error = raised
    every = gathered(None if error is None else f"{type(error).__name__}: {error}")
    failed = next((rank for rank, message in enumerate(every) if message is not None), None)
    if failed is None:
        return result
    error = error or Error(f"rank {failed} cannot {what}: {every[failed]}")
    error.on_all = True
    raise error


def raised_on_all(error):
    """Whether all ranks have raised an error, so that they may go on alike."""
    return getattr(error, "on_all", False)
