# SPDX-License-Identifier: Apache-2.0
"""AGPCS: plans the training of a model on a cluster. `agpcs.torch` trains by such a plan in PyTorch."""

from agpcs._agpcs import version as __version__
from agpcs._errors import Error, Infeasible, InvalidInput, PlanMismatch, RankLost, UsageError
from agpcs._plan import Bound, Estimates, Group, Plan, Stage, load, plan

__all__ = [
    "Bound", "Error", "Estimates", "Group", "Infeasible", "InvalidInput", "Plan", "PlanMismatch", "RankLost", "Stage",
    "UsageError", "__version__", "load", "plan",
]
