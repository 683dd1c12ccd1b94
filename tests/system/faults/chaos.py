#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does harm to real agpcs-run jobs at random moments and checks that each ends, or goes on, as docs/design/reliability.md says.

    tests/system/faults/chaos.py BIN_DIR [--trials 100] [--seed 1] [--jobs 2]

A trial starts a job of two ranks that writes checkpoints (with --local, or rank by rank with torchrun's variables), does one
harm to one of its processes at a random moment, some while a checkpoint is written, some while the job moves to another
plan, and waits. Then it must hold that
  - the job ended within the limit, with the exit code and the words that the harm calls for, or trained to its end;
  - no process of it is left, and the port of its rank 0 is free;
  - every loss that it printed is that of an undisturbed job, to the last digit (after a move: up to rounding);
  - the newest checkpoint can be read, and training that goes on from it prints those same losses, too.
Which harm, which process and which moment is drawn from --seed; what the scheduler makes of it is not. Needs only Python's
standard library, Linux, and no privileges."""
import argparse
import collections
import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from ports import FreePorts

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "samples/models/small_cnn.onnxtxt"
# Two processes that are equally fast, of which the second is called four times as fast as the first: a plan for these
# gives it most of the samples, and a job that re-plans soon moves to another.
UNTRUE_CLUSTER = """name: untrue
device_kinds:
  core: {memory: 2GiB, memory_bandwidth: 10GB/s, peak: {fp32: 50GFLOPS}, launch_overhead: 100us}
  fast: {memory: 2GiB, memory_bandwidth: 40GB/s, peak: {fp32: 200GFLOPS}, launch_overhead: 25us}
hosts:
  - name: local
    devices: [{kind: core}, {kind: fast}]
    interconnect: {kind: tcp, bandwidth: 2GB/s, latency: 1us}
training: {batch: 256, loss: softmax_cross_entropy, optimizer: {kind: sgd, momentum: 0.9}}
"""
STALL_LIMIT = 3  # seconds, given to the jobs
TIMEOUT = 20     # seconds, likewise: for a rank to join, and for any one instruction
LIMIT = 10       # seconds from harm to the end of the last process, beyond STALL_LIMIT where that has to pass
MARK = "AGPCS_CHAOS_TRIAL"  # in the environment of every process of a trial

# name: (signal, seconds until SIGCONT or None, what the job must do)
HARMS = {
    "kill a rank": (signal.SIGKILL, None, "fail"),
    "stop a rank": (signal.SIGSTOP, 3 * STALL_LIMIT, "fail late"),
    "pause a rank": (signal.SIGSTOP, 0.7, "train on"),
    "terminate a rank": (signal.SIGTERM, None, "stop"),
    "kill the starter": (signal.SIGKILL, None, "vanish"),
    "interrupt the starter": (signal.SIGINT, None, "stop"),
}
RANK_HARMS = [name for name in HARMS if name.endswith("a rank")]
# A checkpoint and a move take a few milliseconds: to meet one, the script waits until it sees it being written, or until
# rank 0 proposes a plan, and then for up to MOVE seconds.
MOMENTS = ["any", "any", "checkpoint", "start", "move"]
MOVE = 0.15


class Failure(Exception):
    pass


def check(condition, what):
    if not condition:
        raise Failure(what)


def environment(trial, extra=None):
    variables = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**variables, MARK: trial, **(extra or {})}


def token_of(trial):
    return hashlib.sha256(trial.encode()).hexdigest()[:32]


def processes_of(trial):
    """Ids of the living processes that carry the trial's mark."""
    wanted = f"{MARK}={trial}\0".encode()
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if wanted in (folder / "environ").read_bytes() + b"\0" and \
                    (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found.append(int(folder.name))
        except (OSError, IndexError):
            pass  # it has just ended
    return sorted(found)


def losses_of(text):
    """Loss by step, of --json's lines."""
    losses = {}
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue  # cut short by the harm
        if event.get("event") == "step":
            losses[event["step"]] = event["loss"]
    return losses


def said(text, event):
    return f'"event": "{event}"' in text


def children_of(pid):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []  # it has just ended


def kill_all(trial):
    for pid in processes_of(trial):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_until(true, what, words, seconds=120):
    """Fails after `seconds`, with the text that words() gives."""
    deadline = time.monotonic() + seconds
    while not true():
        check(time.monotonic() < deadline, f"no {what} within {seconds} s: {words()}")
        time.sleep(0.02)


def cluster_of_cores(name, cores, batch):
    """The text of a cluster file: so many equal processes on this machine."""
    return f"""name: {name}
device_kinds:
  core: {{memory: 2GiB, memory_bandwidth: 10GB/s, peak: {{fp32: 50GFLOPS}}}}
hosts:
  - name: local
    devices: {{kind: core, count: {cores}}}
    interconnect: {{kind: tcp, bandwidth: 2GB/s, latency: 50us}}
training: {{batch: {batch}, loss: softmax_cross_entropy, optimizer: {{kind: sgd, momentum: 0.9}}}}
"""


def compile_plan(bin_dir, cluster, plan, *options):
    subprocess.run([bin_dir / "agpcs-compile", MODEL, cluster, "-o", plan, *options], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def keeps(promise, job, what):
    """Whether promise(), which gives seconds, fails; prints it as a line that begins with `what`. The job is over then."""
    try:
        print(f"{what}as promised, {promise():.1f} s", flush=True)
        return True
    except Failure as failure:
        print(f"{what}FAILED (files in {job.folder}): {failure}", flush=True)
        return False
    finally:
        job.kill()


class Job:
    """A job under way; its output goes to files, so that nothing blocks."""

    def __init__(self, work, trial, folder, launched):
        self.trial, self.folder, self.launched = trial, folder, launched
        self.save = folder / "checkpoints"
        self.steps, self.size, self.elastic = work.steps, work.size, work.elastic
        # Plans that a job proposes are written beside its plan.
        plan = pathlib.Path(shutil.copy(work.plan, folder))
        command = [*work.command(plan), "--steps", work.steps, "--stall-limit", STALL_LIMIT, "--timeout", TIMEOUT,
                   "--save", self.save, "--save-every", work.save_every, *work.options]
        command = [str(word) for word in command]
        self.port = None
        if launched:
            self.ports = FreePorts()
            self.port = self.ports.port
            self.processes = [self.start(command, rank) for rank in range(self.size)]
        else:
            self.processes = [self.start(command + ["--local"], None)]

    def start(self, command, rank):
        extra = {} if rank is None else {
            "RANK": str(rank), "WORLD_SIZE": str(self.size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1", "AGPCS_PORT": str(self.port), "AGPCS_JOB_TOKEN": token_of(self.trial)}
        name = "job" if rank is None else f"rank{rank}"
        with open(self.folder / f"{name}.out", "wb") as out, open(self.folder / f"{name}.err", "wb") as err:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                    env=environment(self.trial, extra))

    def output(self):
        return self.texts("*.out")  # rank 0 alone prints steps: another process with --elastic when that is lost

    def errors(self):
        return self.texts("*.err")

    def texts(self, pattern):
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob(pattern)))

    def ranks(self):
        """Ids of the ranks' processes, rank 0's first; fewer when they are not there yet."""
        living = [process.pid for process in self.processes if process.poll() is None]
        return [rank for pid in living for rank in children_of(pid)] if self.elastic or not self.launched else living

    def running(self):
        return any(process.poll() is None for process in self.processes)

    def wait(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self.running():
                return True
            time.sleep(0.02)
        return not self.running()

    def kill(self):
        kill_all(self.trial)
        for process in self.processes:
            process.wait()


class Work:
    """What jobs train: a plan, and the losses of a job that nothing happens to."""

    def __init__(self, bin_dir, folder, cluster, steps, save_every, replans, size=2, elastic=False):
        self.run = bin_dir / "agpcs-run"
        self.steps, self.save_every, self.moves, self.size, self.elastic = steps, save_every, replans, size, elastic
        self.options = ["--replan", cluster] * replans + ["--elastic"] * elastic
        self.plan = folder / f"{cluster.stem}.plan"
        compile_plan(bin_dir, cluster, self.plan)
        done = subprocess.run([*self.command(self.plan), "--local", "--stall-limit", "60", "--steps", str(steps + 10)],
                              check=True, capture_output=True, text=True, env=environment("reference"))
        self.losses = losses_of(done.stdout)

    def command(self, plan):
        return [self.run, plan, MODEL, "--json", "--threads", "1"]

    def differs(self, step, loss):
        """Another plan sums in another order."""
        expected = self.losses.get(step)
        return expected is None or abs(loss - expected) > (1e-4 * abs(expected) if self.moves else 0)


class Works:
    """By moment. Those that only some trials need are made when the first one asks."""

    def __init__(self, bin_dir, folder):
        self.bin_dir, self.folder, self.lock, self.made = pathlib.Path(bin_dir).resolve(), folder, threading.Lock(), {}

    def at(self, moment):
        moves = moment == "move"
        with self.lock:
            if moves not in self.made:
                self.made[moves] = self.moving() if moves else Work(
                    self.bin_dir, self.folder, ROOT / "samples/clusters/local-2.yaml", 60, 2, False)
            return self.made[moves]

    def moving(self):
        cluster = self.folder / "untrue.yaml"
        cluster.write_text(UNTRUE_CLUSTER)
        return Work(self.bin_dir, self.folder, cluster, 400, 20, True)


def saving(job):
    return any(".tmp-" in path.name for path in job.save.glob(".*"))


def trained(job):
    """Whether the last step is done: what comes now finds a job that ends."""
    return max(losses_of(job.output()), default=-1) == job.steps - 1


def wait_for_moment(job, moment, draw):
    """Waits for the moment of the harm; False when the job was over before."""
    deadline = time.monotonic() + 120
    at_step = draw.randrange(30)
    while time.monotonic() < deadline and job.running():
        if len(job.ranks()) == job.size:
            if moment == "start":
                time.sleep(draw.uniform(0, 1.5))
                return job.running() and not trained(job)
            if moment == "move":
                if said(job.output(), "proposed"):
                    time.sleep(draw.uniform(0, MOVE))
                    return job.running()
                time.sleep(0.002)
                continue
            reached = len(losses_of(job.output()))
            if reached > at_step and (moment == "any" or saving(job)):
                if moment == "any":
                    time.sleep(draw.uniform(0, 0.03))
                return job.running()
        if moment != "checkpoint":
            time.sleep(0.005)
    return False


def victim_of(job, harm, draw):
    if harm.endswith("the starter"):
        return job.processes[0].pid
    ranks = job.ranks()
    return draw.choice(ranks) if len(ranks) == job.size else None


def patience(job, promise, moment):
    """Seconds within which the harmed job must end."""
    if moment == "start" and (job.launched or promise == "fail late"):
        return LIMIT + TIMEOUT + 15  # to start, and to join: nobody knows the rank before
    return LIMIT + (STALL_LIMIT if promise == "fail late" else 0)


def check_end(job, harm, moment, begin):
    """That the job did what the harm calls for."""
    _, pause, promise = HARMS[harm]
    over = job.wait(240 if promise == "train on" else patience(job, promise, moment))
    took = time.monotonic() - begin
    check(over, f"still running {took:.1f} s after the harm")
    codes = [process.returncode for process in job.processes]
    said = job.errors()
    if promise == "train on":
        check(codes == [0] * len(codes), f"ended with {codes}: {said}")
    elif promise == "vanish":
        check(codes == [-signal.SIGKILL], f"ended with {codes}")
    elif promise == "stop":
        # Before training begins a signal ends a rank as it always did; after its last step there is nothing to stop.
        allowed = {130, *([-signal.SIGTERM, 1] if moment == "start" else []), *([0] if trained(job) else [])}
        fine = all(code in allowed for code in codes)
        check(fine, f"ended with {codes}: {said}")
    else:
        check(all(code != 0 for code in codes), f"ended with {codes}: {said}")
        check("rank 0" in said or "rank 1" in said, f"no rank is named: {said}")
    return took


def check_nothing_is_left(job, wait=None):
    deadline = time.monotonic() + (wait or LIMIT)
    while processes_of(job.trial) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = processes_of(job.trial)
    check(not left, f"processes {left} are left")
    if job.port is not None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", job.port))


def check_losses(work, losses, where):
    for step, loss in losses.items():
        check(not work.differs(step, loss), f"{where}: loss of step {step} is {loss}, undisturbed {work.losses.get(step)}")


def check_resumes(work, job):
    """That what was saved can be gone on from; the step that it was saved at."""
    saved = sorted(path.name for path in job.save.glob("step-*")) if job.save.exists() else []
    if not saved:
        return None
    newest = max(int(name.split("-")[1].split(".")[0]) for name in saved)
    done = subprocess.run([*work.command(work.plan), "--local", "--steps", str(newest + 4), "--stall-limit", "60",
                           "--resume", job.save, "--save", job.save], capture_output=True, text=True, timeout=240,
                          env=environment(job.trial + "-resumed"))
    check(done.returncode == 0, f"resume from {saved} ended with {done.returncode}: {done.stderr}")
    losses = losses_of(done.stdout)
    check(losses, "resumed without a step")
    first = min(losses)
    check(first == newest, f"resumed at step {first}, {saved} were there: {done.stderr}")
    check_losses(work, losses, "resumed")
    left = [path.name for path in job.save.iterdir() if ".tmp-" in path.name or path.name.endswith(".replaced")]
    check(not left, f"{left} are left in the folder of checkpoints")
    return first


def run_trial(works, folder, seed, number):
    """One trial; what was done, and what came of it."""
    draw = random.Random(seed * 1000003 + number)
    launched = draw.random() < 0.4
    harm = draw.choice(RANK_HARMS if launched else list(HARMS))
    moment = draw.choice(MOMENTS)
    what = f"{harm}, {'launcher' if launched else '--local'}, {moment}"
    trial = f"{os.getpid()}-{seed}-{number}"
    place = folder / str(number)
    place.mkdir()
    work = works.at(moment)
    job = Job(work, trial, place, launched)
    took = None
    try:
        number_of_signal, pause, promise = HARMS[harm]
        harmed = wait_for_moment(job, moment, draw)
        victim = victim_of(job, harm, draw) if harmed else None
        if victim is None:
            check(job.wait(120), "the job did not end")
            return harm, launched, moment, "missed", None, what
        begin = time.monotonic()
        try:
            os.kill(victim, number_of_signal)
            if pause is not None and promise == "train on":
                time.sleep(pause)
                os.kill(victim, signal.SIGCONT)
            elif pause is not None and launched:  # nobody reaps it: it must end by itself once it goes on
                other = [process for process in job.processes if process.pid != victim]
                check(all_over(other, patience(job, promise, moment)), "the other rank still runs")
                took = time.monotonic() - begin
                os.kill(victim, signal.SIGCONT)
        except ProcessLookupError:
            pass  # the job was quicker
        ended = check_end(job, harm, moment, begin)
        check_nothing_is_left(job)
        check_losses(work, losses_of(job.output()), "before the harm")
        resumed = check_resumes(work, job)
        shutil.rmtree(place)
        return harm, launched, moment, "ok" if resumed is not None else "ok, nothing saved", took or ended, what
    except Failure as failure:
        return harm, launched, moment, f"FAILED: {failure}", None, f"trial {number}: {what} (files in {place})"
    finally:
        job.kill()


def all_over(processes, seconds):
    deadline = time.monotonic() + seconds
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    return all(process.poll() is not None for process in processes)


def print_table(results):
    rows = collections.defaultdict(lambda: [0, 0, 0, 0, 0, 0.0])
    for harm, launched, moment, outcome, took, _ in results:
        row = rows[(harm, "launcher" if launched else "--local")]
        row[0] += outcome != "missed"
        row[1] += outcome.startswith("ok")
        row[2] += outcome == "ok"
        row[3] += moment == "checkpoint" and outcome != "missed"
        row[4] += moment == "move" and outcome != "missed"
        row[5] = max(row[5], took or 0)
    print(f"{'harm':<24}{'job':<10}{'trials':>8}{'as promised':>13}{'resumed':>9}{'in a checkpoint':>17}{'in a move':>11}"
          f"{'longest end':>13}")
    for (harm, job), (trials, good, resumed, writing, moving, longest) in sorted(rows.items()):
        print(f"{harm:<24}{job:<10}{trials:>8}{good:>13}{resumed:>9}{writing:>17}{moving:>11}"
              f"{longest:>11.1f} s")
    done = [r for r in results if r[3] != "missed"]
    print(f"{len(done)} trials, {sum(r[3].startswith('ok') for r in done)} as promised; "
          f"{len(results) - len(done)} jobs were over before their harm")


def main():
    global LIMIT
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds within which a harmed job must end")
    parser.add_argument("--only", help="this one trial")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs would ignore it, too, where a shell's & has it ignored
    LIMIT = options.limit
    folder = pathlib.Path(tempfile.mkdtemp(prefix="agpcs-chaos-"))
    works = Works(options.bin_dir, folder)
    numbers = [int(options.only)] if options.only else range(options.trials)
    results = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(lambda n: run_trial(works, folder, options.seed, n), numbers):
            results.append(result)
            if result[3].startswith("FAILED"):
                print(f"{result[5]}: {result[3]}", flush=True)
    print_table(results)
    bad = any(result[3].startswith("FAILED") for result in results)
    if not bad:
        shutil.rmtree(folder)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
