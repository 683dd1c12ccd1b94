# SPDX-License-Identifier: Apache-2.0
"""What all ranks of agpcs.torch.Job do, or none."""

from __future__ import annotations

import torch.distributed as dist

from agpcs._errors import Error


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
    if error is not None:
        raise error
    for rank, message in enumerate(every):
        if message is not None:
            raise Error(f"rank {rank} cannot {what}: {message}")
    return result
