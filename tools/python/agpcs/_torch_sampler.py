# SPDX-License-Identifier: Apache-2.0
"""PlanSampler: gives each rank its planned share of every batch."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Iterator, Mapping, Sequence, Sized

import torch

from agpcs._errors import PlanMismatch, UsageError
from agpcs._plan import Path, Plan, load, refuse_idle

Count = typing.Union[int, torch.Tensor]


class PlanSampler(torch.utils.data.Sampler[list[int]]):
    """A batch_sampler for DataLoader: its batch i is this rank's share of the job's i-th batch.

    All ranks draw the same order of samples from `seed` and the epoch. A batch of the job is the next `plan.batch`
    samples; rank 0 takes the first `plan.shares[0]` of them, rank 1 the next `plan.shares[1]`, and so on.

    The samples left at an epoch's end are divided in proportion to the shares, and each rank gets at least
    `micro_batches` of them (`weigh` corrects for the rounding). They are left out with `drop_last`, and if they are too
    few for that.

    With `micro_batches` n, each step's share comes as n batches, as equal as possible, whose gradients are accumulated
    (`weigh`, `sync`). By default a step is one batch, for any number of micro-batches of the plan. With `divided`, the
    loop divides each loss by n, and `weigh` compensates for that. With `averaged`, gradients are averaged over ranks, by
    plain DDP, FSDP2 or `plan_hook(plan, sampler=sampler)`, and `weigh` compensates for the shares. It is not for
    `plan_hook(plan)` without the sampler, which weights gradients by the shares itself.
    """

    def __init__(self, dataset: Sized | torch.utils.data.Dataset[typing.Any] | int, plan: Plan | Path,
                 rank: int | None = None, *, seed: int = 0, shuffle: bool = True, drop_last: bool = False,
                 micro_batches: int = 1, divided: bool = False, averaged: bool = False,
                 process_group: torch.distributed.ProcessGroup | None = None) -> None:
        plan = plan if isinstance(plan, Plan) else load(plan)
        rank = torch.distributed.get_rank(process_group) if rank is None else rank
        samples = dataset if isinstance(dataset, int) else len(dataset)
        _check(plan, rank, samples, micro_batches, drop_last)
        self.plan, self.rank, self.seed, self.shuffle = plan, rank, seed, shuffle
        self.epoch = 0
        self.micro_batches, self.divided, self.averaged = micro_batches, divided, averaged
        self._samples = samples
        self._process_group, self._total = process_group, None
        self._epochs, self._drawn = 0, 0  # epochs begun; steps of all epochs whose batches were drawn
        self._begin, self._resumed = 0, False  # the step with which an epoch begins; whether it is yet to begin so
        self._skipped = 0  # batches with which the next epoch begins that are not drawn, and keep their numbers
        self._trained = 0  # steps of this epoch whose losses were weighed
        self._shares_from = [(0, plan.shares)]  # the first step, of all epochs, that has these shares
        self.weighed = -1  #: the step, counted over all epochs, whose loss was weighed last
        self.summed = False  #: plan_hook(sampler=...) leaves the whole weight to `weigh`, and sums gradients as they are
        self._steps = [plan.batch] * (samples // plan.batch)  # sizes of the job's batches
        rest = samples % plan.batch
        if rest >= plan.ranks * micro_batches and not drop_last:
            self._steps.append(rest)

    def set_epoch(self, epoch: int, first: int = 0) -> None:
        """Sets the epoch, which changes the order. Call it before each epoch, as with torch's DistributedSampler.

        `first`: the number of the epoch's first batch that is drawn, for loops that note how far they were. Batches keep
        their numbers: `enumerate(loader, first)`. It holds for one epoch.
        """
        if epoch != self.epoch:
            self.epoch, self._begin, self._resumed, self._trained = epoch, 0, False, 0
        if not 0 <= first <= len(self):
            raise IndexError(f"batch {first} of {len(self)}")
        self._skipped = first

    def __len__(self) -> int:
        """The batches of the epoch; of one that `load_state_dict` resumes, those that are left."""
        return (len(self._steps) - self._begin) * self.micro_batches

    @property
    def batch_size(self) -> typing.NoReturn:
        """Libraries ask for this before they deal out batches to ranks, which would skip samples without a word."""
        raise PlanMismatch("PlanSampler yields the batches of one rank, and something asks for their size, as libraries "
                           "do that divide batches among ranks\n"
                           "  hint: accelerate: agpcs.torch.planned_loader; "
                           "Lightning: Trainer(use_distributed_sampler=False)")

    def state_dict(self) -> dict[str, typing.Any]:
        """Returns where the job is: the epoch, and how many of its steps are trained, which are those whose losses were
        weighed. Keep it in the checkpoint, after the optimizer's step. It is the same on all ranks."""
        if self.weighed < 0 and self._drawn > 0 and not self._begin:
            raise UsageError("batches were drawn, and no loss was weighed: which of them are trained is not known\n"
                             "  hint: sampler.weigh(loss, i).backward() in each step, and state_dict() after a step")
        done, epoch = self._trained, self.epoch
        if done == len(self._steps):
            done, epoch = 0, epoch + 1
        return {"epoch": epoch, "steps": done, **self._of_batches()}

    def load_state_dict(self, state: Mapping[str, typing.Any]) -> None:
        """Goes on where a job was, with the same batches, for any number of ranks and shares. The next epoch begins with
        the first step that is not trained; `weigh` and `sync` count from that one."""
        ours = self._of_batches()
        for key, value in ours.items():
            if state[key] != value:
                raise PlanMismatch(f"the state is of a sampler with {key} {state[key]}, this one has {value}\n"
                                   "  hint: the batches are the same with the same dataset, batch, seed and shuffle only")
        self.set_epoch(state["epoch"])
        self._begin = self._trained = min(state["steps"], len(self._steps))
        self._resumed = True

    def _of_batches(self):
        """Returns what the batches depend on."""
        return {"samples": self._samples, "batch": self.plan.batch, "seed": self.seed, "shuffle": self.shuffle}

    @property
    def shares(self) -> tuple[int, ...]:
        """The samples of each rank in the next full batch that is drawn."""
        return self._shares_of(self._drawn)

    def take(self, plan: Plan) -> int:
        """Takes over the shares of another plan for the same ranks and batch, from the first step on of which no rank
        has drawn a batch. Returns that step, counted over all epochs. All ranks call it between the same two steps.

        The job's batches stay the same. The hook goes on with the first plan, so every loss has to be weighed.
        """
        _check(plan, self.rank, self._samples, self.micro_batches, drop_last=True)
        if (plan.ranks, plan.batch) != (self.plan.ranks, self.plan.batch):
            raise PlanMismatch(f"the plan is for {plan.ranks} ranks and a batch of {plan.batch}, the job has "
                               f"{self.plan.ranks} and {self.plan.batch}\n  hint: plan for the same ranks and batch")
        drawn = [None] * self.plan.ranks
        torch.distributed.all_gather_object(drawn, self._drawn, group=self._process_group)
        self._shares_from.append((max(drawn), plan.shares))
        return max(drawn)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        before = self._epochs * len(self._steps)
        self._epochs += 1
        if not self._resumed:
            self._begin = 0
        self._resumed = False
        first, self._skipped = self._begin * self.micro_batches + self._skipped, 0
        self._trained = first // self.micro_batches
        for step, size in list(enumerate(self._steps))[self._begin:]:
            shares = self._shares(size, self._shares_of(before + step))
            self._drawn = before + step + 1
            begin = step * self.plan.batch + sum(shares[:self.rank])
            for part, count in enumerate(_parts(shares[self.rank], self.micro_batches)):
                if step * self.micro_batches + part >= first:
                    yield order[begin:begin + count]
                begin += count

    def weigh(self, loss: torch.Tensor, batch: int, counted: Count | Sequence[Count] | None = None) -> torch.Tensor:
        """Returns `loss`, the mean over the samples of the epoch's batch number `batch`, times its `loss_weight`.
        Batches are numbered as the epoch yields them, from 0, also when it was resumed."""
        return loss * self.loss_weight(batch, counted)

    def loss_weight(self, batch: int, counted: Count | Sequence[Count] | None = None) -> float | torch.Tensor:
        """Returns the factor for the mean loss of a batch that makes ranks and micro-batches add up to the mean over
        the job's batch. With `plan_hook`, one micro-batch, and enough samples for the plan's batch it is 1, or
        share / batch if the hook knows this sampler.

        `counted`: how many tokens count in the batch, if the loss is the mean over those (with micro-batches: a list of
        the numbers of all micro-batches of the step). They are tensors on the job's device; over Gloo also numbers.
        Then all ranks of `process_group` add up their numbers, once a step, and the factor is a tensor. It is 0 where
        nothing counts; the loss must be finite there.
        """
        if not 0 <= batch < len(self):
            raise IndexError(f"batch {batch} of {len(self)}")
        step, part = divmod(batch, self.micro_batches)
        step += self._begin
        if part == self.micro_batches - 1:
            self._trained = step + 1
        size = self._steps[step]
        self.weighed = max(self._epochs - 1, 0) * len(self._steps) + step
        shares = self._shares(size, self._shares_of(self.weighed))
        if counted is None:
            return _parts(shares[self.rank], self.micro_batches)[part] / size / self.part_of_gradient
        counts = torch.stack([torch.as_tensor(n) for n in (counted if self.micro_batches > 1 else [counted])])
        if len(counts) != self.micro_batches:
            raise ValueError(f"counted has {len(counts)} numbers; a step has {self.micro_batches} micro-batches")
        if part == 0 or self._total is None:
            self._total = counts.sum().double()
            torch.distributed.all_reduce(self._total, group=self._process_group)
        return counts[part] / self._total.clamp(min=1) / self.part_of_gradient

    @property
    def part_of_gradient(self) -> float:
        """What an unweighed gradient of this rank is multiplied by, before it is added to the job's."""
        if self.averaged:
            reduced = 1 / self.plan.ranks
        else:
            reduced = 1.0 if self.summed else self.plan.shares[self.rank] / self.plan.batch
        return reduced / self.micro_batches if self.divided else reduced

    def sync(self, module: torch.nn.Module, batch: int) -> contextlib.AbstractContextManager[None]:
        """Returns a context for the forward and backward pass of a batch: the gradients are reduced with the step's
        last batch. `module`: of DistributedDataParallel, or of FSDP2's `fully_shard`."""
        last = batch % self.micro_batches == self.micro_batches - 1
        if hasattr(module, "set_requires_gradient_sync"):  # FSDP2
            module.set_requires_gradient_sync(last)
            return contextlib.nullcontext()
        return contextlib.nullcontext() if last else module.no_sync()

    def _order(self):
        if not self.shuffle:
            return list(range(self._samples))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(self._samples, generator=generator).tolist()

    def _shares_of(self, step):
        """Returns the shares of a full batch in a step, counted over all epochs."""
        return next(shares for first, shares in reversed(self._shares_from) if first <= step)

    def _shares(self, size, planned):
        """Returns the shares of a batch of `size`, by rank: proportional to those planned, but at least
        `micro_batches`."""
        if size == self.plan.batch:
            return planned
        free = size - self.plan.ranks * self.micro_batches
        exact = [free * share / self.plan.batch for share in planned]
        shares = [int(count) for count in exact]
        by_rest = sorted(range(len(exact)), key=lambda rank: (shares[rank] - exact[rank], rank))
        for rank in by_rest[:free - sum(shares)]:
            shares[rank] += 1
        return tuple(count + self.micro_batches for count in shares)


def _check(plan, rank, samples, micro_batches, drop_last):
    refuse_idle(plan)
    if len(plan.stages) != 1:
        raise PlanMismatch(f"the plan of {plan.model} has {len(plan.stages)} pipeline stages: its ranks have no shares "
                           "of their own\n  hint: agpcs.plan(..., data_parallel=True)")
    if plan.stages[0].further:
        raise PlanMismatch(f"the replicas of the plan of {plan.model} are teams, whose members have no shares of their own\n"
                           "  hint: agpcs.plan(..., data_parallel=True)")
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
