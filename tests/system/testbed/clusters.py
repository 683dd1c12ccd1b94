# SPDX-License-Identifier: Apache-2.0
"""What a test bed's machines are, and the cluster.yaml that says so.

A cluster is a list of machines, each with a share of a CPU core for each of its ranks and a network card of some rate; or
plain processes on this machine. Everything here is text in, text out: nothing is set up.
"""

import dataclasses

# Of one core, as a datasheet would say; a first plan needs only their proportions, and a profile replaces them.
CORE_GFLOPS, CORE_MEMORY_GB, LAUNCH_US, LATENCY_US = 90.0, 10.0, 20.0, 100.0
ROOM = 0.85  # of a core; the rest is for the kernel's network and for the pacemaker
PORT_GB, PORT_LATENCY_US = 1.5, 40.0  # between processes of one machine


@dataclasses.dataclass(frozen=True)
class Machine:
    """One host: `cpu` is the share of a core that each of its `ranks` has, `mbit` its card's rate in Mbit/s."""

    name: str
    cpu: float
    mbit: float
    ranks: int = 1


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Without machines: `processes` plain processes on this machine, nothing limits them."""

    name: str
    machines: tuple = ()
    processes: int = 0

    @property
    def local(self):
        return not self.machines


def uneven(name, **machines):
    """uneven("two", a=(80, 1000), b=(30, 100)): machines with percents of a core and Mbit/s."""
    return Cluster(name, tuple(Machine(key, percent / 100, mbit) for key, (percent, mbit) in machines.items()))


def ranks(cluster):
    """The ranks in order: their machine and their place on it."""
    return [(machine, place) for machine in cluster.machines for place in range(machine.ranks)]


def devices(cluster):
    """Names of the devices, in rank order, as cluster.yaml gives them."""
    if cluster.local:
        return [f"local/{place}" for place in range(cluster.processes)]
    return [f"{machine.name}/{place}" for machine, place in ranks(cluster)]


def kind(cpu):
    """The name of the device kind: cpu-60 is a device with 60% of a core."""
    return f"cpu-{100 * cpu:g}"


def problems(cluster, cores):
    """Why this machine cannot play that cluster; empty when it can."""
    if cluster.local:
        return [] if cluster.processes <= cores else [f"{cluster.processes} processes need as many cores, not {cores}"]
    found = []
    for machine in cluster.machines:
        if not 0 < machine.cpu <= 1:
            found.append(f"machine {machine.name}: {machine.cpu} of a core is not a share of one")
        if machine.mbit <= 0 or machine.ranks < 1:
            found.append(f"machine {machine.name}: {machine.mbit} Mbit/s, {machine.ranks} ranks")
    for core in range(cores):
        taken = sum(machine.cpu for (machine, _), home in zip(ranks(cluster), homes(cluster, cores)) if home == core)
        if taken > ROOM + 1e-9:
            found.append(f"the ranks need {taken:g} of core {core}, which has room for {ROOM:g}")
    return found


def homes(cluster, cores):
    """The core, from 0, that each rank stays on: the fastest ranks first, each where most is left."""
    taken, found = [0.0] * cores, {}
    shares = [machine.cpu for machine, _ in ranks(cluster)]
    for rank in sorted(range(len(shares)), key=lambda rank: -shares[rank]):
        found[rank] = taken.index(min(taken))
        taken[found[rank]] += shares[rank]
    return [found[rank] for rank in range(len(shares))]


def training_yaml(optimizer="sgd"):
    """How the models of cases are trained, as cluster.yaml says it."""
    return f"training: {{precision: fp32, loss: softmax_cross_entropy, optimizer: {optimizer}}}\n"


def _kind_line(cpu, memory_bytes):
    return (f"  {kind(cpu)}: {{memory: {memory_bytes}B, memory_bandwidth: {CORE_MEMORY_GB * cpu:g}GB/s, "
            f"peak: {{fp32: {CORE_GFLOPS * cpu:g}GFLOPS}}, launch_overhead: {LAUNCH_US / cpu:g}us}}\n")


def _host_lines(name, cpu, count, mbit):
    port = f"    interconnect: {{kind: tcp, bandwidth: {PORT_GB:g}GB/s, latency: {PORT_LATENCY_US:g}us}}\n"
    nic = f"    nic: {{bandwidth: {mbit:g}Mbit/s, latency: {LATENCY_US:g}us}}\n" if mbit else ""
    return f"  - name: {name}\n    devices: {{kind: {kind(cpu)}, count: {count}}}\n{port}{nic}"


def cluster_yaml(cluster, memory_bytes, profile=None, optimizer="sgd"):
    """The cluster file; its ranks share `memory_bytes`, its figures come from `profile` where there is one."""
    count = len(devices(cluster))
    speeds = sorted({machine.cpu for machine in cluster.machines} or {1.0}, reverse=True)
    text = f"name: {cluster.name}\n"
    if profile:
        text += f"profile: {profile}\n"
    text += "device_kinds:\n" + "".join(_kind_line(cpu, memory_bytes // count) for cpu in speeds) + "hosts:\n"
    if cluster.local:
        text += _host_lines("local", 1.0, count, None)
    for machine in cluster.machines:
        text += _host_lines(machine.name, machine.cpu, machine.ranks, machine.mbit)
    text += "network: {topology: switch}\n"
    return text + training_yaml(optimizer)
