# SPDX-License-Identifier: Apache-2.0
"""PlanSampler: gives each rank its planned share of every batch."""

import contextlib

import torch

from agpcs._errors import PlanMismatch
from agpcs._plan import Plan, load


class PlanSampler(torch.utils.data.Sampler):
    """A batch_sampler for DataLoader: its batch i is this rank's share of the job's i-th batch.

    All ranks draw the same order of samples from `seed` and the epoch. A batch of the job is the next `plan.batch`
    samples; rank 0 takes the first `plan.shares[0]` of them, rank 1 the next `plan.shares[1]`, and so on.

    The samples left at an epoch's end are divided in proportion to the shares, and each rank gets at least
    `micro_batches` of them (`weigh` corrects for the rounding). They are left out with `drop_last`, and if they are too
    few for that.

    With `micro_batches` n, each step's share comes as n batches, as equal as possible, whose gradients are accumulated
    (`weigh`, `sync`). By default a step is one batch, for any number of micro-batches of the plan. With `averaged`,
    plain DDP averages the gradients without `plan_hook`, and `weigh` compensates for the shares.
    """

    def __init__(self, dataset, plan, rank=None, *, seed=0, shuffle=True, drop_last=False, micro_batches=1,
                 averaged=False, process_group=None):
        plan = plan if isinstance(plan, Plan) else load(plan)
        rank = torch.distributed.get_rank(process_group) if rank is None else rank
        samples = dataset if isinstance(dataset, int) else len(dataset)
        _check(plan, rank, samples, micro_batches, drop_last)
        self.plan, self.rank, self.seed, self.shuffle = plan, rank, seed, shuffle
        self.epoch = 0
        self._samples, self._micro_batches, self._averaged = samples, micro_batches, averaged
        self._process_group, self._total = process_group, None
        self._steps = [plan.batch] * (samples // plan.batch)  # sizes of the job's batches
        rest = samples % plan.batch
        if rest >= plan.ranks * micro_batches and not drop_last:
            self._steps.append(rest)

    def set_epoch(self, epoch):
        """Sets the epoch, which changes the order. Call it before each epoch, as with torch's DistributedSampler."""
        self.epoch = epoch

    def __len__(self):
        return len(self._steps) * self._micro_batches

    def __iter__(self):
        order = self._order()
        for step, size in enumerate(self._steps):
            shares = self._shares(size)
            begin = step * self.plan.batch + sum(shares[:self.rank])
            for count in _parts(shares[self.rank], self._micro_batches):
                yield order[begin:begin + count]
                begin += count

    def weigh(self, loss, batch, counted=None):
        """Returns `loss`, the mean over the samples of the epoch's batch number `batch`, times its `loss_weight`."""
        return loss * self.loss_weight(batch, counted)

    def loss_weight(self, batch, counted=None):
        """Returns the factor for the mean loss of a batch that makes ranks and micro-batches add up to the mean over
        the job's batch. It is 1 with `plan_hook`, one micro-batch, and enough samples for the plan's batch.

        `counted`: how many tokens count in the batch, if the loss is the mean over those (with micro-batches: a list of
        the numbers of all micro-batches of the step). They are tensors on the job's device; over Gloo also numbers.
        Then all ranks of `process_group` add up their numbers, once a step, and the factor is a tensor. It is 0 where
        nothing counts; the loss must be finite there.
        """
        if not 0 <= batch < len(self):
            raise IndexError(f"batch {batch} of {len(self)}")
        step, part = divmod(batch, self._micro_batches)
        size = self._steps[step]
        reduced_as = 1 / self.plan.ranks if self._averaged else self.plan.shares[self.rank] / self.plan.batch
        if counted is None:
            return _parts(self._shares(size)[self.rank], self._micro_batches)[part] / size / reduced_as
        counts = torch.stack([torch.as_tensor(n) for n in (counted if self._micro_batches > 1 else [counted])])
        if len(counts) != self._micro_batches:
            raise ValueError(f"counted has {len(counts)} numbers; a step has {self._micro_batches} micro-batches")
        if part == 0 or self._total is None:
            self._total = counts.sum().double()
            torch.distributed.all_reduce(self._total, group=self._process_group)
        return counts[part] / self._total.clamp(min=1) / reduced_as

    def sync(self, ddp, batch):
        """Returns a context for the forward and backward pass of a batch. A step's last batch reduces the gradients."""
        last = batch % self._micro_batches == self._micro_batches - 1
        return contextlib.nullcontext() if last else ddp.no_sync()

    def _order(self):
        if not self.shuffle:
            return list(range(self._samples))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(self._samples, generator=generator).tolist()

    def _shares(self, size):
        """Returns the shares of a batch of `size`, by rank: proportional to the plan's, but at least
        `micro_batches`."""
        if size == self.plan.batch:
            return self.plan.shares
        free = size - self.plan.ranks * self._micro_batches
        exact = [free * share / self.plan.batch for share in self.plan.shares]
        shares = [int(count) for count in exact]
        by_rest = sorted(range(len(exact)), key=lambda rank: (shares[rank] - exact[rank], rank))
        for rank in by_rest[:free - sum(shares)]:
            shares[rank] += 1
        return tuple(count + self._micro_batches for count in shares)


def _check(plan, rank, samples, micro_batches, drop_last):
    if len(plan.stages) != 1:
        raise PlanMismatch(f"the plan of {plan.model} has {len(plan.stages)} pipeline stages: its ranks have no shares "
                           "of their own\n  hint: agpcs.plan(..., data_parallel=True)")
    if not 0 <= rank < plan.ranks:
        raise PlanMismatch(f"there is no rank {rank} in the plan, which is for {plan.ranks} ranks\n"
                           "  hint: agpcs.plan(..., layout='host/0,host/1') names the devices to plan for")
    if not 1 <= micro_batches <= min(plan.shares):
        raise PlanMismatch(f"a share of {min(plan.shares)} samples does not make {micro_batches} micro-batches")
    least = plan.batch if drop_last else plan.ranks * micro_batches
    if samples < least:
        raise PlanMismatch(f"{samples} samples do not make a batch of {least}")


def _parts(count, parts):
    """Divides `count` into `parts` parts, as equal as possible."""
    return [(i + 1) * count // parts - i * count // parts for i in range(parts)]
