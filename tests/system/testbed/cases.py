# SPDX-License-Identifier: Apache-2.0
"""What is predicted and measured: models, clusters and plans.

Cases on the clusters in TUNE are there to look at while the cost model is worked on; those on the clusters in JUDGE say
how good it is, and nothing is fitted to them.
"""

import dataclasses
import fnmatch
import pathlib
import re

import clusters

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MODELS = {
    "cnn": HERE / "models/cnn.onnxtxt",  # 6 convolutions on 32 x 32, 0.3 M parameters
    "bert_2": HERE / "models/bert_2.onnx",  # 2 layers, hidden 256, sequence 32, 2.2 M parameters
    "bert_4": HERE / "models/bert_4.onnx",  # 4 layers, hidden 384, sequence 64, 10.4 M parameters
    "squeezenet": ROOT.parent / "shared/models/light_squeezenet.onnx",  # 224 x 224, 1.2 M parameters
}
BATCH = {"cnn": 64, "bert_2": 16, "bert_4": 16, "squeezenet": 8}
PLANNED = ("cnn", "bert_2", "squeezenet")  # what plans are compared on where not said otherwise

TUNE = [
    clusters.uneven("tune-2", a=(80, 300), b=(30, 300)),
]
JUDGE = [
    clusters.Cluster("local-2", processes=2),
    clusters.uneven("thin-2", a=(80, 50), b=(40, 50)),
    clusters.uneven("slow-2", a=(60, 20), b=(60, 20)),
    clusters.uneven("uneven-3", a=(80, 1000), b=(50, 200), c=(20, 100)),
    clusters.uneven("even-4", a=(40, 200), b=(40, 200), c=(40, 200), d=(40, 200)),
    clusters.uneven("uneven-4", a=(70, 1000), b=(50, 1000), c=(30, 1000), d=(10, 1000)),
]
# What planning gains: slow ranks, thin links, and both.
GAINS = [
    clusters.uneven("slow-rank-3", a=(70, 500), b=(60, 500), c=(15, 500)),
    clusters.uneven("thin-link-3", a=(40, 500), b=(40, 500), c=(40, 25)),
    clusters.uneven("mixed-4", a=(70, 1000), b=(40, 200), c=(35, 200), d=(15, 50)),
]
# Links that differ: where a flow schedule should beat the ring.
FLOWS = [
    clusters.uneven("thin-link-4", a=(40, 400), b=(40, 400), c=(40, 400), d=(40, 100)),
    clusters.uneven("two-thin-4", a=(40, 400), b=(40, 100), c=(40, 400), d=(40, 100)),
]
# Links that are slow for what computes: where gradients in 16 bits should be faster than in 32.
WIRES = [
    clusters.uneven("slow-4", a=(40, 50), b=(40, 50), c=(40, 50), d=(40, 50)),
    clusters.uneven("thin-4", a=(40, 200), b=(40, 200), c=(40, 200), d=(40, 200)),
]
# Where members of teams compute, with links that carry what they exchange.
TEAMS = [
    clusters.uneven("team-2", a=(60, 1000), b=(60, 1000)),
    clusters.uneven("team-uneven-2", a=(80, 1000), b=(40, 1000)),
    clusters.uneven("team-3", a=(75, 1000), b=(50, 1000), c=(30, 1000)),
    clusters.uneven("team-4", a=(50, 1000), b=(50, 1000), c=(30, 1000), d=(30, 1000)),
]
# Where memory is short: of few devices, whose links carry what they divide, and of more.
MEMORY = [
    clusters.uneven("short-2", a=(70, 1000), b=(40, 1000)),
    clusters.uneven("short-3", a=(60, 1000), b=(40, 1000), c=(25, 500)),
    clusters.uneven("short-4", a=(45, 800), b=(45, 800), c=(25, 800), d=(25, 800)),
]
CLUSTERS = {cluster.name: cluster for cluster in TUNE + JUDGE + GAINS + FLOWS + WIRES + TEAMS + MEMORY}


@dataclasses.dataclass(frozen=True)
class Case:
    """`layout`: as agpcs-compile's --layout. What is None is left to the planner."""

    cluster: clusters.Cluster
    model: str
    plan: str
    layout: str | None
    micro_batches: int | None = None
    bucket_bytes: int | None = None
    all_reduce: str | None = None
    wire_type: str | None = None
    quick: bool = False  # by what `agpcs-cluster discover` and `agpcs-profile --quick` find
    of_peak: float | None = None  # memory of each device: so much of what the same layout takes that has enough
    optimizer: str = "sgd"

    @property
    def name(self):
        return f"{self.cluster.name}/{self.model}/{self.plan}"

    @property
    def judges(self):
        return self.cluster in JUDGE + TEAMS + MEMORY

    @property
    def batch(self):
        return BATCH[self.model]

    @property
    def members(self):
        """Of the layout's teams: how many a team may have."""
        replicas = re.split(r"[|,]", self.layout or "")
        return {replica.count("+") + 1 for replica in replicas if "+" in replica}

    def options(self):
        """Of agpcs-compile."""
        words = ["--batch", str(self.batch)]
        for flag, value in (("--layout", self.layout), ("--micro-batches", self.micro_batches),
                            ("--bucket-bytes", self.bucket_bytes), ("--all-reduce", self.all_reduce),
                            ("--wire-type", self.wire_type)):
            words += [] if value is None else [flag, str(value)]
        return words


def layout(cluster, groups, equal=False):
    """Stages by the letters of their ranks: "ad|bc" are ranks 0 and 3, then ranks 1 and 2, shares by speed or equal. "a+dc+b" is a
    stage of two teams, ranks 0 and 3 and ranks 2 and 1."""
    names = clusters.devices(cluster)
    weight = ":1" if equal else ""
    replicas = (re.findall(r"[a-z](?:\+[a-z])*", group) for group in groups.split("|"))
    return "|".join(",".join("+".join(names[ord(letter) - ord("a")] for letter in replica.split("+")) + weight for replica in stage)
                    for stage in replicas)


def _cases(cluster_name, *rows):
    """Rows: model, plan's name (`equal`: equal shares), letters of the stages, micro-batches, bucket bytes."""
    cluster = CLUSTERS[cluster_name]
    for model, plan, groups, *rest in rows:
        where = groups and layout(cluster, groups, plan == "equal")
        yield Case(cluster, model, plan, where, *rest)


CASES = [
    *_cases("tune-2",
            ("cnn", "equal", "ab", 1), ("cnn", "by speed", "ab", 1), ("cnn", "2 stages", "a|b", 8),
            ("bert_2", "by speed", "ab", 1), ("bert_2", "2 stages", "a|b", 4),
            ("squeezenet", "by speed", "ab", 1), ("squeezenet", "2 stages", "a|b", 4)),
    *_cases("local-2",
            ("cnn", "equal", "ab", 1), ("cnn", "2 stages", "a|b", 8),
            ("bert_2", "equal", "ab", 1), ("bert_2", "2 stages", "a|b", 4),
            ("squeezenet", "equal", "ab", 1), ("squeezenet", "1 MB buckets", "ab", 1, 1_000_000)),
    *_cases("thin-2",
            ("cnn", "equal", "ab", 1), ("cnn", "by speed", "ab", 1), ("cnn", "2 stages", "a|b", 8),
            ("squeezenet", "by speed", "ab", 1), ("bert_2", "2 stages", "a|b", 4)),
    *_cases("slow-2",
            ("cnn", "equal", "ab", 1), ("bert_2", "2 stages", "a|b", 2)),
    *_cases("uneven-3",
            ("cnn", "equal", "abc", 1), ("cnn", "by speed", "abc", 1), ("cnn", "3 stages", "a|b|c", 8),
            ("bert_2", "by speed", "abc", 1), ("squeezenet", "2 + 1", "ab|c", 2)),
    *_cases("even-4",
            ("cnn", "equal", "abcd", 1), ("cnn", "4 stages", "a|b|c|d", 8), ("cnn", "2 x 2", "ab|cd", 4),
            ("bert_2", "2 x 2", "ab|cd", 4), ("bert_2", "1 MB buckets", "abcd", 1, 1_000_000)),
    *_cases("uneven-4",
            ("cnn", "equal", "abcd", 1), ("cnn", "by speed", "abcd", 1), ("cnn", "planned", None),
            ("cnn", "2 x 2", "ad|bc", 2), ("cnn", "4 stages", "a|b|c|d", 8),
            ("bert_2", "without d", "abc", 1), ("bert_2", "2 + 1", "ab|c", 2), ("squeezenet", "2 stages", "a|b", 4)),
]
ADAM = "{kind: adam, learning_rate: 0.0001}"
ONE_BUCKET = 1_000_000_000  # bytes: more than any model here has
QUICK = ["tune-2/cnn/equal", "tune-2/cnn/by speed", "tune-2/cnn/2 stages"]


def gain_cases():
    """For each pair of cluster and model: what everybody runs (all devices, equal shares, one micro-batch), and what the
    planner makes of it with its defaults."""
    for cluster in GAINS:
        letters = "".join(chr(ord("a") + rank) for rank in range(len(clusters.devices(cluster))))
        for model in PLANNED:
            yield from _cases(cluster.name, (model, "equal", letters, 1), (model, "planned", None))


def flow_cases():
    """For each cluster and model: equal shares, gradients in one bucket, reduced by the ring and by a flow schedule."""
    for cluster in FLOWS:
        for model in ("squeezenet", "bert_2"):
            for name in ("ring", "flow"):
                yield Case(cluster, model, name, layout(cluster, "abcd", equal=True), 1, ONE_BUCKET, name)


def wire_cases():
    """For each cluster and model: equal shares, gradients that travel in fp32, in fp16 and in bf16."""
    for cluster in WIRES:
        for model in ("squeezenet", "bert_2"):
            for name in ("fp32", "fp16", "bf16"):
                yield Case(cluster, model, name, layout(cluster, "abcd", equal=True), 1,
                           wire_type=None if name == "fp32" else name)


def team_cases():
    """Plans with teams of two and three members, which divide operators by their speeds, alone, in pipelines, and with shares."""
    yield from _cases("team-2",
                      ("cnn", "team of 2", "a+b", 1), ("bert_2", "team of 2", "a+b", 1), ("squeezenet", "team of 2", "a+b", 1))
    yield from _cases("team-uneven-2",
                      ("cnn", "team of 2", "a+b", 1), ("bert_2", "team of 2", "a+b", 1), ("squeezenet", "team of 2", "a+b", 1))
    yield from _cases("team-3",
                      ("cnn", "team of 3", "a+b+c", 1), ("bert_2", "team of 3", "a+b+c", 1),
                      ("bert_2", "team, then c", "a+b|c", 2), ("cnn", "team, then c", "a+b|c", 4))
    yield from _cases("team-4",
                      ("cnn", "2 teams, shares", "a+bc+d", 1), ("bert_2", "2 teams, shares", "a+bc+d", 1),
                      ("cnn", "2 teams, stages", "a+b|c+d", 4), ("bert_2", "2 teams, stages", "a+b|c+d", 2))


def memory_cases():
    """Plans for devices that have less memory than the layout takes: they divide state, recompute, or both."""
    rows = {
        "short-2": (("bert_4", "shares, 0.8", "ab", 1, 0.8), ("bert_4", "shares, 0.7", "ab", 1, 0.7), ("bert_4", "shares, 0.6", "ab", 1, 0.6),
                    ("bert_4", "stages, 0.85", "a|b", 4, 0.85), ("cnn", "shares, 0.8", "ab", 1, 0.8), ("cnn", "stages, 0.8", "a|b", 8, 0.8),
                    ("bert_4", "planned, 0.7", None, None, 0.7)),
        "short-3": (("bert_4", "2 + 1, 0.8", "ab|c", 2, 0.8), ("bert_4", "2 + 1, 0.7", "ab|c", 2, 0.7),
                    ("bert_4", "shares, 0.6", "abc", 1, 0.6), ("bert_4", "shares, 0.5", "abc", 1, 0.5)),
        "short-4": (("bert_4", "shares, 0.6", "abcd", 1, 0.6), ("bert_4", "shares, 0.5", "abcd", 1, 0.5),
                    ("bert_4", "2 x 2, 0.8", "ab|cd", 4, 0.8), ("bert_4", "stages, 0.9", "a|b|c|d", 8, 0.9),
                    ("cnn", "2 x 2, 0.8", "ab|cd", 4, 0.8)),
    }
    for name, of_cluster in rows.items():
        for model, plan, groups, micro_batches, of_peak in of_cluster:
            where = groups and layout(CLUSTERS[name], groups)
            yield Case(CLUSTERS[name], model, plan, where, micro_batches, of_peak=of_peak, optimizer=ADAM)


def discover_cases():
    """For each cluster and model: the plan by a profile of the models, and the one by `discover` and a quick profile."""
    for cluster in (*TUNE, *GAINS):
        for model in PLANNED:
            yield Case(cluster, model, "planned", None)
            yield Case(cluster, model, "discovered", None, quick=True)


def chosen(patterns, among=CASES):
    """Cases whose name matches one of the patterns (as file names are matched); all without patterns."""
    return [case for case in among if not patterns or any(fnmatch.fnmatch(case.name, each) for each in patterns)]
