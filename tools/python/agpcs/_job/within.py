# SPDX-License-Identifier: Apache-2.0
"""What begins within the passes of agpcs.torch.Job: sums of gradients, when a backward pass has made them, and gathers of parameters
that ranks divide, each when the pass comes to the bucket before it.

They begin in the plan's order. Where autograd comes to buckets in another order than the plan's operators do, a gather that a
pass waits for begins at once: the ranks of a stage compute the same graph, so they do that alike.
"""

from __future__ import annotations

import torch

from agpcs._errors import Error
from agpcs._job.buckets import ShardedBucket
from agpcs._job.gathered import GatheredBucket

_SUMS = ("all_reduce", "reduce_scatter")
_GATHERS = {"gather_forward": "forward", "gather_backward": "backward"}  # the passes for which they are
_EVENTS = {"in_forward": "forward", "in_backward": "backward"}


class Within:
    """Of a rank's `program`, lines of (word, what it waits for). `watch` and `trace` are those of the Player. `ends_later`: gradients
    are whole only behind the last backward pass."""

    def __init__(self, program, buckets, watch, trace, ends_later=False):
        self._buckets = {bucket.name: bucket for bucket in buckets}
        self.gathered = [bucket for bucket in buckets if isinstance(bucket, GatheredBucket)]
        self._watch, self._trace = watch, trace
        passes = [word for word, _ in program if word.startswith(("backward:", "backward_weight:"))]
        latest = -1  # of `passes`: within which a sum of the step begins, no earlier than those before it
        self._orders = {word: [] for word, _ in program if word.startswith(("forward:", "backward:", "backward_weight:"))}
        self._needs = {}  # by gather: the bucket to which the pass comes before it begins
        self._gathers = {}  # by pass: those for it, by bucket, in the order in which it needs them
        for word, after in program:
            what, name, k = (*word.split(":"), None, None)[:3]
            if what in _GATHERS:
                self._gathers.setdefault(f"{_GATHERS[what]}:{k}", {})[name] = word
                for event, needed, of in (one.split(":") for one in after if one.partition(":")[0] in _EVENTS):
                    self._needs[word] = needed
                    self._orders[f"{_EVENTS[event]}:{of}"].append(word)
            elif what in _SUMS and passes:
                if k is None:
                    latest = max(latest, *(i for i, one in enumerate(passes) if _is_of(one, self._buckets[name])))
                within = passes[latest] if k is None else next(one for one in passes if one.endswith(f":{k}"))
                self._orders[within].append(word)
        #: gathers of parameters that are there still
        self.idle = {word for word, needed in self._needs.items() if word.split(":")[1] == needed}
        self._uses = None
        self.since = None  #: when what the watch counts as computing began
        hooked = buckets if not ends_later and any(word.startswith(_SUMS) for word, _ in program) else ()
        self._hooks = [parameter.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self._made(bucket))
                       for bucket in hooked for parameter in bucket.parameters]

    def tell_of(self, uses):
        """Takes what knows where passes use gathered parameters."""
        self._uses = uses

    def close(self):
        """Leaves the parameters as they were before."""
        for hook in self._hooks:
            hook.remove()

    def begin_step(self):
        self.reductions = []  #: works for the watch
        self._begun = {}  # by line: what waits for it
        self._scattering = None  # the reduce-scatter of a micro-batch that began last
        self._pass, self._order, self._next = None, (), 0
        for bucket in self._buckets.values():
            if isinstance(bucket, ShardedBucket):
                bucket.clear()
        for bucket in self.gathered:
            bucket.enter()

    def end_step(self):
        for bucket in self.gathered:
            bucket.leave()

    def taken(self, word):
        """What a line that begins within a pass waits for."""
        return self._begun.get(word, self._buckets[word.split(":")[1]])

    def around(self, word, run, made=None):
        """What runs a pass and begins what begins within. It makes the gradients of the parameters `made()`, or of all; a forward
        pass makes none."""
        order, gathers = self._orders[word], self._gathers.get(word, {})
        if not order and not gathers:
            return run
        back = not word.startswith("forward:")
        of_stage = [bucket for bucket in self._buckets.values() if back and _is_of(word, bucket)]

        def running():
            own = None if made is None else made()
            for bucket in of_stage:
                bucket.missing = sum(own is None or parameter in own for parameter in bucket.parameters)
            self._pass, self._order, self._next = word, order, 0
            self._needed, self._over = set(), set()
            self._advance()
            run()
            self._end_pass(gathers)

        return running

    def need(self, name):
        """Waits until the parameters of a bucket are there for the pass."""
        if name in self._needed:
            if name in self._over:
                raise Error(f"{self._pass} uses parameters of bucket {name}, whose gradients it has made already\n"
                            "  hint: agpcs.plan(..., without=['parameters']), and a report of this module")
            return
        self._needed.add(name)
        self._advance()
        word = self._gathers[self._pass][name]
        for other in self._order if word not in self._begun else ():
            if other in self._needs and other not in self._begun:
                self._begin(other)
            if other == word:
                break
        self._wait(self._begun[word])

    def release(self, name):
        """Says that the pass has used a bucket for the last time."""
        if self._pass.startswith("forward:"):
            self._release(name)

    def await_back(self, tensor, names):
        """Lets the backward pass need buckets when it comes to a tensor's gradient."""
        def needed(_):
            for name in names:
                self.need(name)

        if self._pass.startswith("forward:"):  # otherwise it is computed again, and no gradient comes there
            tensor.register_hook(needed)

    def again(self, part):
        """Prepares the backward pass for computing `part` of the stage again: it needs all that this reads."""
        if self._uses is None:
            return
        reads = set(self._uses.of(part))
        for name in self._gathers[self._pass]:
            if name in reads:
                self.need(name)

    def kept(self, tensors):
        """The tensors, which leave the pass, with copies of those that lie where parameters come and go."""
        return [tensor.clone() if isinstance(tensor, torch.Tensor) and any(bucket.holds(tensor) for bucket in self.gathered)
                else tensor for tensor in tensors]

    def _release(self, name):
        if name not in self._over:
            self._over.add(name)
            self._buckets[name].release()

    def _made(self, bucket):
        """Notes that a gradient of a bucket is there."""
        if self._pass is None:
            return
        bucket.missing -= 1
        if bucket.missing == 0 and bucket.name in self._gathers.get(self._pass, ()) and bucket.name not in self._uses.late:
            self.need(bucket.name)  # where nobody has used it
            self._release(bucket.name)
        self._advance()

    def _advance(self):
        """Begins what may begin, in the plan's order."""
        while self._next < len(self._order):
            word = self._order[self._next]
            if word not in self._begun:
                needed = self._needs.get(word)
                if needed not in self._needed if needed is not None else self._buckets[word.split(":")[1]].missing != 0:
                    break
                self._begin(word)
            self._next += 1

    def _end_pass(self, gathers):
        """Ends a pass, in which everything has begun then."""
        for name in gathers:
            if name not in self._over:
                self.need(name)
                self._release(name)
        for bucket in self._buckets.values():
            bucket.missing = 0
        self._advance()
        self._pass, self._order = None, ()

    def follows(self, word):
        """Whether a gather begins within a pass."""
        return word in self._needs

    def begin(self, word):
        """Begins a gather that comes before the first pass."""
        self._begin(word)
        return self.taken(word)

    def _begin(self, word):
        what, name, *of = word.split(":")
        bucket = self._buckets[name]
        if what in _SUMS and self._scattering is not None:
            self._wait(self._scattering)  # so that no more than one is whole beside the one that fills
            self._scattering = None
        mark = None if self._trace is None else self._trace.mark()
        if what in _SUMS:
            works = bucket.begin()
            waits = bucket
        else:
            works = bucket.gather()
            waits = _All(works)
        if self._trace is not None:
            waits = self._trace.begun(word, waits, mark)
        if of:
            waits = _Once(waits)
            if what in _SUMS:
                self._scattering = waits
        self._begun[word] = waits
        self.note(bucket, works)

    def note(self, bucket, works):
        """Lets the watch know of works of a bucket that have just begun."""
        if self._watch is not None and self._watch.notes_reductions and not bucket.shared:
            self.reductions += map(self._watch.begun, works)

    def _wait(self, waits):
        """Waits within a pass, which does not compute meanwhile."""
        if self._watch is None or self.since is None:
            waits.wait()
            return
        self._watch.computed(self.since)
        waits.wait()
        self.since = self._watch.mark()


def _is_of(word, bucket):
    """Whether a pass makes gradients of a bucket: passes of a rank with several stages name theirs."""
    _, *stage, _ = word.split(":")
    return not stage or stage[0] in bucket.stages


class _All:
    """Waits for works."""

    def __init__(self, works):
        self._works = works

    def wait(self):
        for work in self._works:
            work.wait()


class _Once:
    """Waits for something when it is first asked to."""

    def __init__(self, works):
        self._works = works

    def wait(self):
        works, self._works = self._works, None
        if works is not None:
            works.wait()
