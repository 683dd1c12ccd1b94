# SPDX-License-Identifier: Apache-2.0
"""What AGPCS raises. The message is the compiler's own: file, line and a hint where it has them."""


class Error(Exception):
    """The base of all; by itself a bug of AGPCS or something that was not there."""


class InvalidInput(Error, ValueError):
    """A model, a cluster file or a plan is wrong."""


class UsageError(Error, ValueError):
    """An option is wrong, or options do not go together."""


class Infeasible(Error):
    """No plan fits into the devices' memory; the message says what lacks."""


class PlanMismatch(Error, ValueError):
    """A plan does not go with the module, the ranks or the data that it is used with."""
