# SPDX-License-Identifier: Apache-2.0
"""The files that autoplan keeps: found again by the same job, and by jobs on some of its devices.

A file's name is `autoplan-<model>-<ranks>`, with digests of all that a plan depends on. Which devices were measured is in
the cluster file that autoplan wrote.
"""

import glob
import hashlib
import json
import os
import re
import tempfile

from agpcs import _new_file
from agpcs._errors import InvalidInput, UsageError

SUFFIXES = (".plan", ".yaml", ".profile.yaml", ".onnxtxt", ".rehearsed.json")  #: the last: seconds of steps that were tried

HOST = re.compile(r"  - name: (\S+)\n    devices: \[(.*)\]\n(?:    .*\n)*")
KIND = re.compile(r"  (\S+): \{memory: \d+B\}  # (.*)\n")


def paths_of(folder, ranks, signature):
    """Returns the paths of a job's files. `ranks`: each rank's host and device; `signature`: what is planned, as a text."""
    said = json.dumps([(rank["host"], rank["device"]) for rank in ranks])
    stem = os.path.join(os.path.abspath(folder), f"autoplan-{_digest(signature)}-{_digest(said)}")
    return [stem + suffix for suffix in SUFFIXES]


def prepare(folder):
    """Makes the folder. Raises UsageError if files cannot be written there, before anything is measured for them."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"the cache cannot be written: {error}\n"
                         "  hint: autoplan(..., cache=FOLDER) with another folder; cache=None keeps nothing") from None


def find(paths, ranks):
    """Returns the cluster file of the measurements to plan by: the job's own, or else one of a job that had all of these
    ranks' devices, with the fewest others. None: there is none."""
    if os.path.exists(paths[1]):
        return paths[1]
    job = paths[1].rpartition("-")[0]
    found = []
    for path in glob.glob(glob.escape(job) + "-????????.yaml"):
        text = _read(path)
        if text is not None and _has(text, ranks):
            found.append((len(devices_in(text)), path))
    return min(found)[1] if found else None


def texts_for(cluster, paths, ranks):
    """Returns the texts of cluster file, profile, model and what was rehearsed that belong to the file `cluster`, as a job
    of `ranks` has them: its own hosts come first, in its order."""
    text, stem = _read(cluster), cluster[:-len(SUFFIXES[1])]
    found = list(HOST.finditer(text or ""))
    if not found:
        raise InvalidInput(f"{cluster}: error: it is no cluster file of autoplan\n  hint: {again(cluster)}")
    blocks = {match[1]: match[0] for match in found}
    order = dict.fromkeys([*(rank["host"] for rank in ranks), *blocks])
    text = text[:found[0].start()] + "".join(blocks[host] for host in order) + text[found[-1].end():]
    text = re.sub("^profile: .*$", lambda _: f"profile: {os.path.basename(paths[2])}", text, count=1, flags=re.MULTILINE)
    return [text, *(_read(stem + suffix) for suffix in SUFFIXES[2:])]


def again(cluster):
    """Returns the hint for files beside the cluster file `cluster` that cannot be used."""
    return f"delete {cluster[:-len(SUFFIXES[1])]}.*, and the ranks are measured again"


def keep(paths, texts):
    """Writes cluster file, profile, model and what was rehearsed, unless they are there."""
    if os.path.exists(paths[1]):
        return
    os.makedirs(os.path.dirname(paths[1]), exist_ok=True)
    # The cluster file is written last: a cache that has it is whole.
    for path, text in reversed(list(zip(paths[1:], texts))):
        _new_file.replace(path, text)


def devices_in(cluster_text):
    """Returns the devices of a cluster file, "host/index", in its order."""
    return [f"{match[1]}/{index}" for match in HOST.finditer(cluster_text) for index, _ in enumerate(match[2].split(","))]


def _has(cluster_text, ranks):
    """Whether a cluster file has the ranks' devices: on each host the ranks' hardware, as its first devices."""
    kinds = dict(KIND.findall(cluster_text))
    hosts = {match[1]: [kinds.get(kind) for kind in re.findall(r"\{kind: (\S+)\}", match[2])]
             for match in HOST.finditer(cluster_text)}
    wanted = {}
    for rank in ranks:
        wanted.setdefault(rank["host"], []).append(rank["device"])
    return all(hosts.get(host, [])[:len(devices)] == devices for host, devices in wanted.items())


def _read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):  # no file of ours
        return None


def _digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:8]
