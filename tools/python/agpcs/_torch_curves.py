# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on what autoplan measured: times by samples, shares that take as long, devices that are alike."""

import statistics

# Ranks whose times differ by no more than this part, or than their spread up to the second, are one kind of device.
EQUAL_KINDS, MOST_SPREAD = 0.03, 0.1


def seconds_at(points, samples):
    """Returns the seconds of a step of `samples` samples, by straight lines between points."""
    return _line_at([(p.samples, p.forward + p.backward) for p in points], samples)


def memory_at(points, samples):
    return int(_line_at([(p.samples, p.memory) for p in points], samples))


def _line_at(line, x):
    if len(line) == 1:
        return line[0][1] * x / line[0][0]
    for (x0, y0), (x1, y1) in zip(line, line[1:]):
        if x <= x1:
            break
    return max(y0 + (y1 - y0) * (x - x0) / (x1 - x0), 1e-9)


def memory_line(points):
    """Returns the bytes that a sample keeps, and those in use without any."""
    first, last = points[0], points[-1]
    if last.samples == first.samples:
        return 0.0, last.memory
    slope = max((last.memory - first.memory) / (last.samples - first.samples), 0.0)
    return slope, int(last.memory - slope * last.samples)


def rising(points):
    """Returns the points, with those lifted that take less time than fewer samples do."""
    risen = []
    for point in points:
        if risen and point.forward + point.backward < risen[-1].forward + risen[-1].backward:
            point = point._replace(forward=risen[-1].forward, backward=risen[-1].backward)
        risen.append(point)
    return risen


def balanced_shares(points_of_ranks, batch):
    """Returns about the shares with which all ranks take as long, by rank."""
    low, high = 0.0, max(seconds_at(points, batch) for points in points_of_ranks)
    for _ in range(60):
        middle = (low + high) / 2
        done = sum(_samples_in(points, middle, batch) for points in points_of_ranks)
        low, high = (low, middle) if done >= batch else (middle, high)
    return [max(_samples_in(points, high, batch), 1) for points in points_of_ranks]


def _samples_in(points, seconds, most):
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if seconds_at(points, middle) <= seconds else (low, middle - 1)
    return low


def kinds_of(ranks):
    """Returns the kinds of devices by name, and the name of each rank's. Ranks of one hardware that take as long are
    one kind, with the means of their times, so that noise does not make equal devices unequal."""
    groups = []
    for measured in ranks:
        for group in groups:
            first = group[0]
            if first.device == measured.device and all(
                    abs(seconds_at(first.points, p.samples) / (p.forward + p.backward) - 1)
                    <= max(EQUAL_KINDS, min(p.spread, MOST_SPREAD)) for p in measured.points):
                group.append(measured)
                break
        else:
            groups.append([measured])
    kinds, kind_of = {}, [None] * len(ranks)
    for number, group in enumerate(groups):
        name = f"kind-{number}"
        kinds[name] = group[0]._replace(points=tuple(_mean_point(group, p) for p in group[0].points))
        for measured in group:
            kind_of[measured.rank] = name
    return kinds, kind_of


def _mean_point(group, point):
    factor = statistics.fmean(seconds_at(m.points, point.samples) for m in group) / (point.forward + point.backward)
    return point._replace(forward=point.forward * factor, backward=point.backward * factor)
