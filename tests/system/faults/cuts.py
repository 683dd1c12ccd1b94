#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cuts machines off in mid-training and checks that jobs end, or go on, as docs/design/reliability.md says.

    tests/system/faults/cuts.py BIN_DIR [--rounds 1]

Three ranks, each in a network namespace of its own; their veth pairs meet at a bridge. A cut takes one port out of the bridge:
links stay up, packets vanish, and no connection is told. Then it must hold that
  - each process ends within LIMIT seconds after the stall limit, the cut-off one too, and names whom it heard no more;
  - a cut that is shorter (by more than the time between two words, a quarter of the limit) ends nothing: all steps are
    trained, with the losses of an undisturbed job;
  - with --elastic the others train on, and the one that was cut off ends; without rank 0's machine all end;
  - no process is left.
Needs root and iproute2. Exit: 0 all was as promised, 1 something was not, 77 this machine lacks what it takes."""
import argparse
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from chaos import (MODEL, Failure, check, check_nothing_is_left, compile_plan, environment, keeps, kill_all, losses_of,
                   token_of, wait_until)



def waits_can_be_bounded():
    """Whether this kernel lets a process bound how long TCP waits before it sends again (TCP_RTO_MAX_MS, from Linux 6.15)."""
    try:
        with socket.socket() as probe:
            probe.getsockopt(socket.IPPROTO_TCP, 44)
        return True
    except OSError:
        return False


SIZE = 3
PREFIX = "agpcs-cut"
SUBNET = "10.213.78"  # of the namespaces, which nothing joins to another network
SWITCH, BRIDGE = f"{PREFIX}-switch", f"{PREFIX}-br"
CLUSTER = """name: three
device_kinds:
  core: {memory: 2GiB, memory_bandwidth: 10GB/s, peak: {fp32: 50GFLOPS}}
hosts:
  - {name: a, devices: {kind: core}, nic: {bandwidth: 1Gbit/s, latency: 50us}}
  - {name: b, devices: {kind: core}, nic: {bandwidth: 1Gbit/s, latency: 50us}}
  - {name: c, devices: {kind: core}, nic: {bandwidth: 1Gbit/s, latency: 50us}}
network: {topology: switch}
training: {batch: 48, loss: softmax_cross_entropy, optimizer: {kind: sgd, momentum: 0.9}}
"""
STALL_LIMIT = 4   # seconds, given to the jobs
LIMIT = 10        # seconds that processes take to end after that
# A cut that a job stands, and its stall limit. TCP left to itself sends again what is lost after 0.2, 0.6, 1.4, 3.0, 6.2 and
# 12.6 s, and a rank says a word after a quarter of the limit: after 10.2 s it would be heard too late.
SHORT, LONG_LIMIT = (10.2, 15.5) if waits_can_be_bounded() else (6.3, 11)
STEPS = 400       # of a job that trains to its end
PATIENCE = 120    # seconds for anything else


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    check(done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}")


class Network:
    """The machines' networks, from entry to exit."""

    def __enter__(self):
        self.remove()
        run("ip", "netns", "add", SWITCH)
        run("ip", "-n", SWITCH, "link", "add", BRIDGE, "type", "bridge")
        run("ip", "-n", SWITCH, "link", "set", BRIDGE, "up")
        for machine in range(SIZE):
            space, card = self.space(machine), f"{PREFIX}{machine}"
            run("ip", "netns", "add", space)
            run("ip", "-n", SWITCH, "link", "add", self.port(machine), "type", "veth", "peer", "name", card, "netns", space)
            run("ip", "-n", space, "address", "add", f"{SUBNET}.{machine + 1}/24", "dev", card)
            run("ip", "-n", space, "link", "set", "lo", "up")
            run("ip", "-n", space, "link", "set", card, "up")
            run("ip", "-n", SWITCH, "link", "set", self.port(machine), "up")
            self.join(machine)
        return self

    def __exit__(self, *error):
        self.remove()

    @staticmethod
    def remove():
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        for name in (line.split()[0] for line in listed.splitlines() if line.startswith(f"{PREFIX}-")):
            run("ip", "netns", "delete", name)  # takes its interfaces along

    @staticmethod
    def space(machine):
        return f"{PREFIX}-{machine}"

    @staticmethod
    def port(machine):
        return f"{PREFIX}p{machine}"

    def cut(self, machine):
        run("ip", "-n", SWITCH, "link", "set", self.port(machine), "nomaster")

    def join(self, machine):
        run("ip", "-n", SWITCH, "link", "set", self.port(machine), "master", BRIDGE)


class Work:
    """What jobs train: a plan, and the losses of a job that nothing happens to."""

    def __init__(self, bin_dir, folder):
        self.folder, self.run = folder, bin_dir / "agpcs-run"
        self.plan, self.cluster = folder / "three.plan", folder / "three.yaml"
        self.cluster.write_text(CLUSTER)
        compile_plan(bin_dir, self.cluster, self.plan, "--seeder", "data_parallel")
        done = subprocess.run([*self.command(self.plan), "--steps", str(STEPS), "--transport", "loopback"], check=True,
                              capture_output=True, text=True)
        self.losses = losses_of(done.stdout)

    def command(self, plan):
        return [str(word) for word in (self.run, plan, MODEL, "--json", "--threads", "1")]


class Job:
    """A rank, or with --elastic the keeper of one, on each machine."""
    port = None  # none on this machine's own network

    def __init__(self, work, name, steps, stall_limit, elastic):
        self.trial, self.folder, self.losses = f"agpcs-{os.getpid()}-{name}", work.folder / name, work.losses
        self.folder.mkdir()
        plan = shutil.copy(work.plan, self.folder)  # plans without lost ranks are written beside it
        command = [*work.command(plan), "--steps", str(steps), "--stall-limit", str(stall_limit), "--save",
                   str(self.folder / "checkpoints"), "--save-every", "20",
                   *(["--elastic", "--replan", str(work.cluster)] if elastic else [])]
        self.processes = [self.start(command, rank) for rank in range(SIZE)]

    def start(self, command, rank):
        extra = {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                 "MASTER_ADDR": f"{SUBNET}.1", "AGPCS_PORT": "29500", "AGPCS_JOB_TOKEN": token_of(self.trial)}
        with open(self.folder / f"{rank}.out", "wb") as out, open(self.folder / f"{rank}.err", "wb") as err:
            return subprocess.Popen(["ip", "netns", "exec", Network.space(rank), *command], stdin=subprocess.DEVNULL,
                                    stdout=out, stderr=err, env=environment(self.trial, extra))

    def output(self):
        return "".join((self.folder / f"{rank}.out").read_text(errors="replace") for rank in range(SIZE))

    def errors(self, rank):
        return (self.folder / f"{rank}.err").read_text(errors="replace")

    def train_on(self, steps=30):
        wanted = self.steps() + steps
        wait_until(lambda: self.steps() >= wanted, f"{steps} more steps", lambda: self.errors(0), PATIENCE)

    def steps(self):
        return self.output().count('"event": "step"')

    def codes(self, ranks, limit):
        """How these processes end, within `limit` seconds."""
        deadline = time.monotonic() + limit
        try:
            return [self.processes[rank].wait(max(deadline - time.monotonic(), 0)) for rank in ranks]
        except subprocess.TimeoutExpired:
            raise Failure(f"rank(s) {[rank for rank in ranks if self.processes[rank].poll() is None]} did not end within "
                          f"{limit} s") from None

    def check_end(self, ranks, words):
        """That these end with an error that has one of `words`, within the limit."""
        begin = time.monotonic()
        codes = self.codes(ranks, STALL_LIMIT + LIMIT)
        check(all(code == 1 for code in codes), f"ranks {ranks} ended with {codes}: {[self.errors(rank) for rank in ranks]}")
        for rank in ranks:
            check(any(word in self.errors(rank) for word in words), f"rank {rank} names none of {words}: {self.errors(rank)}")
        return time.monotonic() - begin

    def kill(self):
        kill_all(self.trial)
        for process in self.processes:
            process.wait()


ENDLESS = 10**8


def last_is_cut_off(network, job):
    network.cut(2)
    took = job.check_end([0, 1], ["rank 2 (c/0"])
    return max(took, job.check_end([2], ["rank 0 (a/0"]))


def first_is_cut_off(network, job):
    network.cut(0)
    took = job.check_end([1, 2], ["rank 0 (a/0"])
    return max(took, job.check_end([0], ["rank 1 (b/0", "rank 2 (c/0"]))


def short_cut(network, job):
    network.cut(1)
    time.sleep(SHORT)  # what is tried
    network.join(1)
    begin = time.monotonic()
    codes = job.codes(range(SIZE), PATIENCE)
    check(codes == [0] * SIZE, f"ended with {codes}: {job.errors(0)}")
    losses = losses_of(job.output())
    check(losses == job.losses, "the losses are not those of an undisturbed job")
    return time.monotonic() - begin


def last_is_done_without(network, job):
    network.cut(2)
    took = job.check_end([2], ["rank 0"])
    wait_until(lambda: "training goes on without rank 2 (c/0" in job.errors(0), "going on of the others",
               lambda: job.errors(0), PATIENCE)
    job.train_on()
    for process in job.processes[:2]:
        process.send_signal(signal.SIGTERM)
    codes = job.codes([0, 1], LIMIT)
    check(codes == [130, 130] and "saved in" in job.errors(0), f"ended with {codes}: {job.errors(0)}")
    return took


def first_is_not_done_without(network, job):
    network.cut(0)
    took = job.check_end([1, 2], ["the starter of rank 0 (a/0"])
    job.train_on()  # rank 0 alone, for it counts
    job.processes[0].send_signal(signal.SIGTERM)
    codes = job.codes([0], LIMIT)
    check(codes == [130], f"rank 0 ended with {codes}: {job.errors(0)}")
    return took


CASES = [  # what is done, how, steps, stall limit, --elastic
    ("the last rank is cut off", last_is_cut_off, ENDLESS, STALL_LIMIT, False),
    ("rank 0 is cut off", first_is_cut_off, ENDLESS, STALL_LIMIT, False),
    (f"rank 1 is cut off for {SHORT} s", short_cut, STEPS, LONG_LIMIT, False),
    ("--elastic: the last machine is cut off", last_is_done_without, ENDLESS, STALL_LIMIT, True),
    ("--elastic: rank 0's machine is cut off", first_is_not_done_without, ENDLESS, STALL_LIMIT, True),
]


def harmed(network, job, harm):
    """Seconds that it took to end."""
    job.train_on()
    took = harm(network, job)
    check_nothing_is_left(job)
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("ip"):
        print("skipped: network namespaces need root and iproute2")
        return 77
    folder = pathlib.Path(tempfile.mkdtemp(prefix="agpcs-cuts-"))
    work = Work(pathlib.Path(options.bin_dir).resolve(), folder)
    good = True
    for number in range(options.rounds):
        for what, harm, *settings in CASES:
            with Network() as network:
                job = Job(work, f"{number}-{harm.__name__}", *settings)
                good = keeps(lambda: harmed(network, job, harm), job, f"{what:<42}") and good
    if good:
        shutil.rmtree(folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
