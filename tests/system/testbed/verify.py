# SPDX-License-Identifier: Apache-2.0
"""Are the machines what they should be? Measures each rank's share of a core and each link's rate.

As a script it is one end of a measurement, started in a machine:  verify.py spin SECONDS | receive PORT BYTES |
send ADDRESS PORT BYTES.  Each prints one number or `listening`.
"""

import pathlib
import socket
import subprocess
import sys
import time

from machines import Failed

CHUNK = 65536
PAYLOAD = 1448 / 1514  # of a full Ethernet frame, what TCP (with time stamps) carries
PORT = 29600
WITHIN = 0.05
SPIN_SECONDS, STREAM_SECONDS = 3.0, 2.0
LIMIT = 60  # seconds that one of them may take


def spin(seconds):
    """CPU seconds a second of a process that never waits."""
    start, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - start < seconds:
        pass
    return (time.process_time() - cpu) / (time.monotonic() - start)


def receive(port, size):
    """Bytes a second of a stream, from its second chunk on: the first may have met an idle, full token bucket."""
    with socket.create_server(("", port)) as server:
        print("listening", flush=True)
        connection, _ = server.accept()
    with connection:
        got = len(connection.recv(CHUNK))
        start, skipped = time.monotonic(), got
        while got < size:
            got += len(connection.recv(CHUNK))
        return (got - skipped) / (time.monotonic() - start)


def send(address, port, size):
    with socket.create_connection((address, port)) as connection:
        chunk = bytes(CHUNK)
        for start in range(0, size, CHUNK):
            connection.sendall(chunk[: size - start])
    return size


def _script(*words):
    return [sys.executable, str(pathlib.Path(__file__).resolve()), *map(str, words)]


def _figure(process, what):
    """The number that a script prints at its end."""
    try:
        return float(process.communicate(timeout=LIMIT)[0])
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{what}: not done after {LIMIT} s") from error
    except ValueError as error:
        raise Failed(f"{what}: exit code {process.returncode}") from error


def _measure_speeds(bed):
    """(what, wanted, measured): all ranks at once, as in training."""
    bed.set_speeds()
    running = [bed.start(rank, _script("spin", SPIN_SECONDS), stdout=subprocess.PIPE, text=True)
               for rank in range(len(bed.ranks))]
    shares = [_figure(process, f"rank {rank}") for rank, process in enumerate(running)]
    bed.lift_speeds()
    return [(f"rank {rank} on {machine.name}: share of a core", machine.cpu, share)
            for rank, ((machine, _), share) in enumerate(zip(bed.ranks, shares))]


def _measure_link(bed, source, target):
    """(what, wanted, measured) of a TCP stream between two ranks' machines."""
    here, there = bed.ranks[source][0], bed.ranks[target][0]
    wanted = min(here.mbit, there.mbit) * 1e6 / 8 * PAYLOAD
    size = int(wanted * STREAM_SECONDS)
    receiver = bed.start(target, _script("receive", PORT, size), stdout=subprocess.PIPE, text=True)
    receiver.stdout.readline()  # it listens
    sender = bed.start(source, _script("send", bed.address(there), PORT, size), stdout=subprocess.PIPE, text=True)
    _figure(sender, f"{here.name} -> {there.name}, sender")
    measured = _figure(receiver, f"{here.name} -> {there.name}, receiver")
    return f"{here.name} -> {there.name}: payload Mbit/s", wanted * 8e-6, measured * 8e-6


def verify(bed):
    """All measurements of a bed that is up: what, wanted, measured."""
    firsts = [rank for rank, (_, place) in enumerate(bed.ranks) if place == 0]
    results = _measure_speeds(bed)
    for source, target in zip(firsts, firsts[1:]):
        results.append(_measure_link(bed, source, target))
        results.append(_measure_link(bed, target, source))
    return results


def report(results):
    """(text of a table, whether all are as they should be)."""
    lines, good = ["| what | wanted | measured | off |", "| --- | --- | --- | --- |"], True
    for what, wanted, measured in results:
        off = measured / wanted - 1
        good = good and abs(off) <= WITHIN
        lines.append(f"| {what} | {wanted:.4g} | {measured:.4g} | {off:+.1%}{'' if abs(off) <= WITHIN else ' !'} |")
    return "\n".join(lines), good


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "spin":
        print(spin(float(rest[0])))
    elif role == "receive":
        print(receive(int(rest[0]), int(rest[1])))
    else:
        print(send(rest[0], int(rest[1]), int(rest[2])))
