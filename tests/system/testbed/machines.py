# SPDX-License-Identifier: Apache-2.0
"""Machines of unequal speed on this one: network namespaces for their networks, cgroups for their speed.

Each machine is a network namespace. A veth pair joins it to a bridge in a namespace of its own, and a token bucket filter
(tbf) at either end of the pair gives the rate in either direction. Each rank stays on one core, of which a cgroup gives
it a share. Everything that is made here has a name that starts with PREFIX, and nothing is made in this machine's own
network.
"""

import contextlib
import fcntl
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys

import clusters

PREFIX = "agpcs-tb"
SWITCH, BRIDGE = f"{PREFIX}-switch", f"{PREFIX}-br"
SUBNET = "10.213.77"  # of the namespaces, which nothing joins to another network
PACEMAKER, FILLER = (str(pathlib.Path(__file__).resolve().parent / name) for name in ("pacemaker.py", "filler.py"))
LOCK = pathlib.Path("/run") / f"{PREFIX}.lock"
PRIORITY = {1: ("cpu.shares", "262144"), 2: ("cpu.weight", "10000")}  # the most: quotas decide, no other work
QUOTA_US = 1000  # of CPU time in each period, the least that Linux takes: the shorter, the more like a slow processor
QUEUE_BYTES = 4_000_000  # more than TCP keeps on its way over such links: nothing is ever dropped
FRAME_BYTES = 1514
BURST_US = 500  # what a link may catch up: with less, a timer that is late costs rate
# Of each machine's TCP. Nothing is lost here, so the plainest does; BBR, a usual default, slows down for 200 ms every 10 s.
# Windows of 1 MB keep links full and queues short.
TCP = {"tcp_congestion_control": "reno", "tcp_rmem": "4096 131072 2000000", "tcp_wmem": "4096 16384 1000000"}


class Unavailable(Exception):
    """This machine lacks what a test bed needs; the text says what."""


class Failed(Exception):
    """A command of the test bed failed; the text says which and why."""


def _run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip() or done.returncode}")
    return done.stdout


# --- cgroups ---------------------------------------------------------------------------------------------------------


def cgroup_folder(mounts, controller="cpu"):
    """(folder of the cgroups with a controller, 1 or 2: its version) by the text of /proc/mounts; None without."""
    fallback = None
    for line in mounts.splitlines():
        _, folder, kind, options = line.split()[:4]
        if kind == "cgroup" and controller in options.split(","):
            return pathlib.Path(folder), 1
        if kind == "cgroup2":
            fallback = pathlib.Path(folder), 2
    return fallback


def period_us(cpu):
    """Microseconds in which a rank with that share of a core may compute for QUOTA_US."""
    return round(QUOTA_US / cpu)


class Cgroup:
    """One rank's share of the CPU."""

    def __init__(self, folder, version):
        self.folder, self.version = folder, version
        folder.mkdir(parents=True)

    def limit(self, cpu):
        """From now on this share of a core; None: all of it."""
        period = period_us(cpu or 1)
        if self.version == 2:
            (self.folder / "cpu.max").write_text(f"{'max' if cpu is None else QUOTA_US} {period}")
            return
        quota, period_file = self.folder / "cpu.cfs_quota_us", self.folder / "cpu.cfs_period_us"
        quota.write_text("-1")
        period_file.write_text(str(period))
        if cpu is not None:
            quota.write_text(str(QUOTA_US))

    def enter(self):
        """Moves the calling process in."""
        (self.folder / "cgroup.procs").write_text("0")


def cgroup_root(controller="cpu"):
    """(the folder for our cgroups, version). Raises Unavailable without the controller."""
    found = cgroup_folder(pathlib.Path("/proc/mounts").read_text(), controller)
    if found is None:
        raise Unavailable(f"no cgroup file system with the {controller} controller is mounted")
    folder, version = found
    if version == 2 and controller not in (folder / "cgroup.subtree_control").read_text().split():
        raise Unavailable(f"the {controller} controller is not enabled in {folder}/cgroup.subtree_control")
    return folder / PREFIX, version


def check_memory():
    """Raises Unavailable unless ranks may have a memory cgroup beside the one that has their share of the CPU."""
    _, version = cgroup_root("memory")
    if version == 2:
        raise Unavailable("memory limits of ranks need version 1 of cgroups, in which a process has one for each controller")


def remove(folder):
    """Removes a cgroup, if it is there, and ends what is in it."""
    if folder.is_dir():
        _end_processes(folder)
        folder.rmdir()


class MemoryCgroup:
    """A memory cgroup of one rank, from entry to exit."""

    def __init__(self, rank, count=None):
        """`count`: bytes that the rank may have; None: no limit."""
        root, version = cgroup_root("memory")
        self._folder, self._count = root.with_name(f"{root.name}-memory-{rank}"), count
        self._limit, self._peak = (("memory.max", "memory.peak") if version == 2 else
                                   ("memory.limit_in_bytes", "memory.max_usage_in_bytes"))

    def __enter__(self):
        remove(self._folder)  # of a run that was killed
        self._folder.mkdir()
        if self._count is not None:
            (self._folder / self._limit).write_text(str(self._count))
        return self

    def __exit__(self, *_):
        remove(self._folder)

    def enter(self):
        """Moves the calling process in."""
        (self._folder / "cgroup.procs").write_text("0")

    def peak(self):
        """The most bytes that it has had."""
        return int((self._folder / self._peak).read_text())


def _end_processes(folder):
    """Kills what is in a cgroup, and waits until it has ended."""
    for word in (folder / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(int(word))
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], 30)
            os.close(descriptor)


# --- all of it -------------------------------------------------------------------------------------------------------


def check():
    """Raises Unavailable unless this machine has what a test bed needs."""
    if os.geteuid() != 0:
        raise Unavailable("network namespaces and CPU quotas need root")
    missing = [tool for tool in ("ip", "tc", "nsenter") if not shutil.which(tool)]
    if missing:
        raise Unavailable(f"not installed: {', '.join(missing)} (Debian: iproute2, util-linux)")
    cgroup_root()
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except OSError as error:
        raise Unavailable(f"this kernel or container refuses real-time priority: {error}") from error
    try:
        _probe_network()
    except Failed as error:
        raise Unavailable(f"this kernel or container refuses: {error}") from error


def _probe_network():
    name = f"{PREFIX}-probe"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "add", f"{PREFIX}-p0", "type", "veth", "peer", "name", f"{PREFIX}-p1")
        _run("ip", "-n", name, "link", "add", BRIDGE, "type", "bridge")
        _run("tc", "-n", name, "qdisc", "add", "dev", f"{PREFIX}-p0", *tbf(100))
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def tbf(mbit, burst=None):
    """Arguments of tc for a link of that rate."""
    return ["root", "tbf", "rate", f"{round(mbit * 1e6)}bit", "burst", f"{burst or burst_bytes(mbit)}b", "limit",
            f"{QUEUE_BYTES}b"]


def burst_bytes(mbit):
    """What may pass at once: that of BURST_US, or two frames where that is more."""
    return max(2 * FRAME_BYTES, round(mbit / 8 * BURST_US))


def tear_down():
    """Ends and removes whatever a test bed has made, of this run or of an earlier one. Says what it removed."""
    removed = []
    found = cgroup_folder(pathlib.Path("/proc/mounts").read_text())
    root = found[0] / PREFIX if found else None
    if root is not None and root.is_dir():
        for folder in [*sorted(path for path in root.iterdir() if path.is_dir()), root]:
            _end_processes(folder)
            folder.rmdir()
            removed.append(f"cgroup {folder}")
    memory = cgroup_folder(pathlib.Path("/proc/mounts").read_text(), "memory")
    for folder in sorted(memory[0].glob(f"{PREFIX}-memory-*")) if memory else ():
        remove(folder)
        removed.append(f"cgroup {folder}")
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.startswith(f"{PREFIX}-")):
        _run("ip", "netns", "delete", name)  # takes its interfaces along
        removed.append(f"network namespace {name}")
    return removed


@contextlib.contextmanager
def sole_user():
    """One test bed at a time: two would remove each other's machines. (Without root there are none.)"""
    if os.geteuid() != 0:
        yield
        return
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"another test bed is running ({LOCK} is locked)") from None
        yield


class Bed:
    """The machines of a cluster, up from entry to exit, whatever happens in between."""

    def __init__(self, cluster):
        self.cluster = self.first_cluster = cluster
        self.ranks = clusters.ranks(cluster)
        self.cores = sorted(os.sched_getaffinity(0))
        self.homes = [self.cores[home] for home in clusters.homes(cluster, len(self.cores))]
        self.cgroups, self.pacemakers, self.fillers = [], [], []
        self.memory = None  # a MemoryCgroup of each rank, where their memory is limited

    def __enter__(self):
        tear_down()  # what an earlier run left when it was killed
        try:
            self.pacemakers = [self._start_pacemaker(core) for core in self.cores]
            self._make_network()
            self.cgroups = self._make_cgroups()
            self.fillers = [self._start_filler(rank) for rank in range(len(self.ranks))]
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_):
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
        try:
            self._leave()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _leave(self):
        for process in (*self.pacemakers, *self.fillers):
            process.kill()
            process.wait()
        tear_down()

    @staticmethod
    def _start_pacemaker(core):
        return subprocess.Popen([sys.executable, PACEMAKER, str(core), str(os.getpid())], start_new_session=True)

    def _start_filler(self, rank):
        """Returns it stopped, once it has its priority."""
        filler = self.start(rank, [sys.executable, FILLER, os.getpid()], stdout=subprocess.PIPE, text=True)
        if filler.stdout.readline() != "filling\n":
            raise Failed(f"the filler of rank {rank} has ended")
        filler.send_signal(signal.SIGSTOP)
        return filler

    def _make_cgroups(self):
        folder, version = cgroup_root()
        folder.mkdir()
        name, value = PRIORITY[version]
        (folder / name).write_text(value)
        if version == 2:
            (folder / "cgroup.subtree_control").write_text("+cpu")
        return [Cgroup(folder / f"rank{rank}", version) for rank in range(len(self.ranks))]

    def _make_network(self):
        _run("ip", "netns", "add", SWITCH)
        _run("ip", "-n", SWITCH, "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "-n", SWITCH, "link", "set", BRIDGE, "up")
        for machine in self.cluster.machines:
            self._make_machine(machine)

    def _make_machine(self, machine):
        space, card, port = self.space(machine), f"{PREFIX}-{machine.name}", f"{PREFIX}-p{machine.name}"
        _run("ip", "netns", "add", space)
        _run("ip", "-n", SWITCH, "link", "add", port, "type", "veth", "peer", "name", card, "netns", space)
        _run("ip", "-n", SWITCH, "link", "set", port, "master", BRIDGE, "up")
        _run("ip", "-n", space, "address", "add", f"{self.address(machine)}/24", "dev", card)
        _run("ip", "-n", space, "link", "set", "lo", "up")
        # Segments travel through the kernel in bunches of half a burst: one by one they would cost a core's fifth.
        _run("ip", "-n", space, "link", "set", card, "gso_max_size", str(burst_bytes(machine.mbit) // 2), "up")
        _run("tc", "-n", space, "qdisc", "add", "dev", card, *tbf(machine.mbit))
        _run("tc", "-n", SWITCH, "qdisc", "add", "dev", port, *tbf(machine.mbit))
        for name, value in TCP.items():
            _run("nsenter", f"--net=/run/netns/{space}", "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/{name}")

    def space(self, machine):
        return f"{PREFIX}-{machine.name}"

    def address(self, machine):
        return f"{SUBNET}.{self.cluster.machines.index(machine) + 1}"

    def set_speeds(self):
        """From now on every rank has its share of the CPU."""
        if any(process.poll() is not None for process in (*self.pacemakers, *self.fillers)):
            raise Failed("a pacemaker or filler has ended: the ranks would not have the speeds that they should")
        for cgroup, (machine, _) in zip(self.cgroups, self.ranks):
            cgroup.limit(machine.cpu)
        self._fill(signal.SIGCONT)

    def set_rates(self):
        """From now on every machine's card has its rate, in either direction. What passes at once stays what it was at
        first, for connections go on sending in bunches of that."""
        for machine, first in zip(self.cluster.machines, self.first_cluster.machines):
            card, port = f"{PREFIX}-{machine.name}", f"{PREFIX}-p{machine.name}"
            words = tbf(machine.mbit, max(burst_bytes(machine.mbit), burst_bytes(first.mbit)))
            _run("tc", "-n", self.space(machine), "qdisc", "change", "dev", card, *words)
            _run("tc", "-n", SWITCH, "qdisc", "change", "dev", port, *words)

    def become(self, cluster):
        """From now on the machines, which are the same ones, have that cluster's speeds and rates."""
        self.cluster = cluster
        self.ranks = clusters.ranks(cluster)
        self.set_speeds()
        self.set_rates()

    def lift_speeds(self):
        """From now on ranks run as fast as they can, and nothing fills what they leave: for starting up, and other work."""
        self._fill(signal.SIGSTOP)
        for cgroup in self.cgroups:
            cgroup.limit(None)

    def _fill(self, number):
        for filler in self.fillers:
            filler.send_signal(number)

    def start(self, rank, command, **options):
        """Starts a command as that rank: in its machine's network, on its core, with its share of it."""
        words = ["nsenter", f"--net=/run/netns/{self.space(self.ranks[rank][0])}", *map(str, command)]

        def enter():
            self.cgroups[rank].enter()
            if self.memory:
                self.memory[rank].enter()
            os.sched_setaffinity(0, {self.homes[rank]})

        return subprocess.Popen(words, preexec_fn=enter, start_new_session=True, **options)
