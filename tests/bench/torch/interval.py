# SPDX-License-Identifier: Apache-2.0
"""Intervals of the benches' ratios."""

import random
import statistics


def interval(ratios):
    """The 95% interval of the median of ratios, by bootstrap."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]
