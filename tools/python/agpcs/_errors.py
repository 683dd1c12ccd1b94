# SPDX-License-Identifier: Apache-2.0
"""The exceptions of AGPCS. A message is the compiler's own, with file, line and hint if it has them."""


class Error(Exception):
    """The base class of all exceptions. By itself it means a bug of AGPCS, or something that is not available."""


class InvalidInput(Error, ValueError):
    """A model, a cluster file or a plan is wrong."""


class UsageError(Error, ValueError):
    """An option is wrong, or options do not go together."""


class Infeasible(Error):
    """No plan fits into the devices' memory; the message says what is missing."""


class PlanMismatch(Error, ValueError):
    """A plan does not fit the module, the ranks or the data that it is used with."""


class RankLost(Error, RuntimeError):
    """Another rank of the job is gone, or does not answer; the message names it. The job cannot go on without it."""
