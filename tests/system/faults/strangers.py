#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Has strangers come to the listeners of jobs, and says whether they did harm.

    tests/system/faults/strangers.py BIN_DIR [--attempts 1000] [--seed 1] [--crowd 24] [--transport tcp] [--tls] [--elastic]

A job has three ranks, started one by one with torchrun's variables. Strangers come to rank 0's bootstrap service before the
other ranks do, and while the job trains; and to rank 0's own listener before the last rank, which the script stops (SIGSTOP)
meanwhile. With --elastic they come to the service of the keepers before the other keepers do, while the last of them is
stopped, and while the job trains, when they come to the ranks' bootstrap service, too. They scan, say garbage, begin TLS,
guess a token, replay a proof of another connection, hold a connection, and flood. Each job has to end by itself with the
losses of a job without strangers, and a stranger may hear a nonce and a refusal, and nothing else. Prints a line for each
kind, and what went wrong; exit code 1 if anything did.
"""

import argparse
import collections
import contextlib
import hashlib
import hmac
import os
import pathlib
import random
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import time

from chaos import Failure, Job, Work, check, check_losses, cluster_of_cores, kill_all, losses_of, token_of, wait_until

RANKS, STEPS = 3, 40
MAGIC, NONCE, PROOF = b"agpcs-proof-2\n", 32, 32
PLAIN, TLS = b"p", b"t"  # what a greeting asks for
REFUSAL = b"n" + bytes(PROOF)
PATIENCE = 60  # seconds for a job
PATIENT = {"--stall-limit": "30", "--timeout": "60"}  # a rank is stopped for a while, and that is no fault
FLOOD = 200    # connections


def claim(token, plane, mode, nonce, challenge, rank=1, listener=0):
    """What a rank answers to `challenge`."""
    text = MAGIC + b"c" + mode + rank.to_bytes(4, "little") + listener.to_bytes(4, "little") + nonce + challenge + plane
    return rank.to_bytes(4, "little") + hmac.new(token.encode(), text, hashlib.sha256).digest()


def hear(connection, seconds=10):
    """All that comes until the other end closes, or for so long."""
    heard, deadline = b"", time.monotonic() + seconds
    with contextlib.suppress(OSError):
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            more = connection.recv(4096)
            if not more:
                break
            heard += more
    return heard


class Strangers:
    """Those that come to one job. Counts attempts by (listener, kind), and keeps what was heard that nobody may hear."""

    def __init__(self, token, rng, mode):
        self.token, self.rng, self.mode = token, rng, mode
        self.greeting = MAGIC + mode + b"n" * NONCE
        self.attempts, self.leaks, self.held = collections.Counter(), [], []
        self.kinds = {"scan": self.scan, "garbage": self.garbage, "tls": self.tls, "guess": self.guess,
                      "replay": self.replay, "hold": self.hold, "flood": self.flood}

    def come(self, listener, port, count):
        """Strangers of all kinds in turn. Returns early where the listener is gone."""
        for number in range(count):
            kind = list(self.kinds)[number % len(self.kinds)]
            try:
                self.kinds[kind](port)
            except ConnectionRefusedError:
                return
            except OSError:
                pass  # the listener closed a connection while its stranger spoke
            self.attempts[listener, kind] += 1

    def connect(self, port):
        return socket.create_connection(("127.0.0.1", port), timeout=10)

    def judge(self, kind, heard, allowed):
        if heard not in allowed:
            self.leaks.append(f"{kind} heard {heard[:80]!r}")

    def scan(self, port):
        self.connect(port).close()

    def garbage(self, port):
        with self.connect(port) as connection:
            connection.sendall(self.rng.choice([b"GET / HTTP/1.1\r\n\r\n", self.rng.randbytes(300), MAGIC[:5] + b"\0" * 99]))
            self.judge("garbage", hear(connection), {b""})

    def tls(self, port):
        """A hello of TLS, as of a scanner or a browser."""
        with self.connect(port) as connection:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            with contextlib.suppress(ssl.SSLWantReadError):
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(incoming, outgoing, server_hostname="rank").do_handshake()
            connection.sendall(outgoing.read())
            self.judge("tls", hear(connection), {b""})

    def answer(self, kind, port, answer):
        with self.connect(port) as connection:
            connection.sendall(self.greeting)
            connection.settimeout(10)
            challenge = b""
            while len(challenge) < NONCE:
                more = connection.recv(NONCE - len(challenge))
                if not more:
                    return  # it had to make room for others
                challenge += more
            connection.sendall(answer(challenge))
            self.judge(kind, hear(connection), {b"", REFUSAL})

    def guess(self, port):
        token = f"{self.rng.getrandbits(128):032x}"
        self.answer("guess", port, lambda challenge: claim(token, b"bootstrap", self.mode, b"n" * NONCE, challenge))

    def replay(self, port):
        """A proof that was right once, for the challenge of another connection."""
        old = claim(self.token, b"bootstrap", self.mode, b"n" * NONCE, b"o" * NONCE)
        self.answer("replay", port, lambda challenge: old)

    def hold(self, port):
        connection = self.connect(port)
        connection.sendall(self.rng.choice([b"", MAGIC, self.greeting]))
        self.held.append(connection)

    def flood(self, port):
        for _ in range(FLOOD):
            with contextlib.suppress(ConnectionResetError):
                with self.connect(port) as connection:
                    connection.sendall(MAGIC)

    def leave(self):
        for connection in self.held:
            heard = hear(connection, 0.01)
            self.judge("hold", b"" if len(heard) == NONCE else heard, {b""})
            connection.close()


def sockets(state, end):
    """Port of one end (1: here, 2: there) by inode, of the IPv4 sockets of 127.0.0.1 that are in a state."""
    lines = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {fields[9]: int(fields[end].split(":")[1], 16) for fields in lines
            if fields[3] == state and fields[end].startswith("0100007F:")}


def listening():
    return sockets("0A", 1)


def connected(pid, port):
    mine = sockets_of(pid)
    return any(inode in mine and to == port for inode, to in sockets("01", 2).items())


def sockets_of(pid):
    found = set()
    with contextlib.suppress(OSError):
        for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(entry)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


class GuardedJob(Job):
    """A job whose ranks the script starts when it wants to."""

    def __init__(self, work, trial, folder):
        folder.mkdir()
        super().__init__(work, trial, folder, launched=True)

    def start(self, command, rank):
        if rank > 0:  # later
            return None
        self.command = [PATIENT.get(before, word) for before, word in zip([None, *command], command)]
        return super().start(self.command, 0)

    def start_later(self, rank):
        self.processes[rank] = super().start(self.command, rank)

    def running(self):
        return any(process is not None and process.poll() is None for process in self.processes)

    def kill(self):
        self.processes = [process for process in self.processes if process is not None]
        super().kill()

    def service(self):
        """(name, port) of the service that its processes meet at."""
        return ("the keepers'", self.port + 1) if self.elastic else ("the bootstrap's", self.port)


@contextlib.contextmanager
def last_one_stopped(job):
    """Starts the other processes. The last one has joined, but is stopped, so that all have to wait for it."""
    last, (_, port) = job.size - 1, job.service()
    job.start_later(last)
    wait_until(lambda: connected(job.processes[last].pid, port) or not job.running(), "process that joins", job.errors)
    check(job.processes[last].poll() is None, f"the last process ended: {job.errors()}")
    os.kill(job.processes[last].pid, signal.SIGSTOP)
    try:
        for rank in range(1, last):
            job.start_later(rank)
        yield
    finally:
        os.kill(job.processes[last].pid, signal.SIGCONT)


def attack_mesh(job, strangers, before, count):
    """Strangers come to rank 0's own listener, once it has one."""
    deadline = time.monotonic() + PATIENCE / 4
    while time.monotonic() < deadline and job.processes[0].poll() is None:
        mine = sockets_of(job.processes[0].pid)
        for inode, port in listening().items():
            if inode not in before and inode in mine:
                return strangers.come("a rank's", port, count)
        time.sleep(0.02)


def run_job(work, folder, number, count, rng, mode):
    """One job, and the strangers that came to it. Returns them, and what went wrong."""
    trial = f"strangers-{os.getpid()}-{number}"
    before = set(listening())
    job = GuardedJob(work, trial, folder / str(number))
    strangers = Strangers(token_of(trial), rng, mode)
    try:
        service, port = job.service()
        wait_until(lambda: job.processes[0].poll() is not None or answers(port), "service", job.errors)
        strangers.come(service, port, count)
        with last_one_stopped(job):
            if job.elastic:  # its ranks start when all keepers have met
                strangers.come(service, port, count)
            else:
                attack_mesh(job, strangers, before, count)
        wait_until(lambda: '"step": 1,' in job.output() or not job.running(), "step", job.errors)
        strangers.come(service, port, count)
        if job.elastic:
            strangers.come("the bootstrap's", job.port, count)
        check(job.wait(2 * PATIENCE), f"the job did not end: {job.errors()}")
        codes = [process.returncode for process in job.processes]
        check(codes == [0] * RANKS, f"exit codes {codes}: {job.errors()}")
        losses = losses_of(job.output())
        check(sorted(losses) == list(range(STEPS)), f"losses of {len(losses)} steps of {STEPS}")
        check_losses(work, losses, "trained")
        strangers.leave()
        check(not strangers.leaks, "; ".join(strangers.leaks[:3]))
        return strangers, None
    except Failure as failure:
        return strangers, f"job {number} (files in {job.folder}): {failure}"
    finally:
        job.kill()
        kill_all(trial)


def answers(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--attempts", type=int, default=1000, help="at least so many")
    parser.add_argument("--crowd", type=int, default=24, help="strangers that come to one listener at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transport", default="tcp", help="gloo: to see what comes of listeners without a proof")
    parser.add_argument("--tls", action="store_true", help="jobs that are encrypted")
    parser.add_argument("--elastic", action="store_true", help="jobs that go on without lost ranks: they have keepers")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="agpcs-strangers-"))
    cluster = folder / "three.yaml"
    cluster.write_text(cluster_of_cores("three", RANKS, 48))
    work = Work(options.bin_dir.resolve(), folder, cluster, STEPS, STEPS, replans=options.elastic, size=RANKS,
                elastic=options.elastic)
    work.options += ["--transport", options.transport] + ["--tls"] * options.tls
    attempts, harmed, jobs = collections.Counter(), [], 0
    while sum(attempts.values()) < options.attempts and len(harmed) < 5:
        strangers, failure = run_job(work, folder, jobs, options.crowd, rng, TLS if options.tls else PLAIN)
        jobs += 1
        attempts += strangers.attempts
        harmed += [failure] * (failure is not None)
    for (listener, kind), count in sorted(attempts.items()):
        print(f"{kind:<10}at {listener} listener{count:>8}")
    print(f"{sum(attempts.values())} attempts on {jobs} jobs, {len(harmed)} harmed")
    for failure in harmed:
        print(failure)
    if not harmed:
        shutil.rmtree(folder)
    sys.exit(1 if harmed else 0)


if __name__ == "__main__":
    main()
