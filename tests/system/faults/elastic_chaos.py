#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does harm to agpcs-run jobs with --elastic at random moments and checks that those that are left train to the end.

    tests/system/faults/elastic_chaos.py BIN_DIR [--trials 30] [--seed 1] [--jobs 1]

A trial starts a job of four ranks (with --local, or keeper by keeper with torchrun's variables), and does one to three harms
to its processes, one after another: at any moment, while a checkpoint is written, while the ranks start, or while they start
again after the harm before. Then it must hold that
  - the job trained to its end, and every process of it that was left ended with 0;
  - no process of it is left, and its ports are free;
  - the losses of all steps are those of an undisturbed job, up to rounding;
  - the newest checkpoint can be read, and training that goes on from it prints those same losses, too.
See chaos.py, whose jobs these are."""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

from chaos import (STALL_LIMIT, Failure, Job, Work, check, check_losses, check_nothing_is_left, check_resumes,
                   cluster_of_cores, losses_of, wait_for_moment)

HARMS = ["kill", "stop", "pause", "kill a keeper"]
MOMENTS = ["any", "any", "checkpoint", "start"]
MOST_HARMS = 3    # of four ranks: one is left
PAUSE = 0.7       # seconds, less than STALL_LIMIT
PATIENCE = 150    # seconds from the last harm to the end: ranks that nobody has met are waited for, and the rest is trained


def harm_one(job, harm, draw):
    """Does it; False where there is nobody to do it to."""
    if harm == "kill a keeper":  # that of rank 0 ends the job
        victims = [process.pid for process in job.processes[1:] if process.poll() is None]
    else:
        victims = job.ranks()
    if not victims:
        return False
    victim = draw.choice(victims)
    try:
        os.kill(victim, signal.SIGKILL if harm.startswith("kill") else signal.SIGSTOP)
        if harm == "pause":
            time.sleep(PAUSE)
            os.kill(victim, signal.SIGCONT)
    except ProcessLookupError:
        return False  # it was quicker
    return True


def check_end(job, begin):
    check(job.wait(PATIENCE), f"still running {time.monotonic() - begin:.1f} s after the last harm: {job.errors()}")
    took = time.monotonic() - begin
    codes = [process.returncode for process in job.processes]
    check(codes[0] == 0 and all(code in (0, -signal.SIGKILL) for code in codes), f"ended with {codes}: {job.errors()}")
    check(codes.count(-signal.SIGKILL) <= MOST_HARMS, f"ended with {codes}")
    return took


def run_trial(work, folder, seed, number):
    """(harms done, launched, moment, outcome, seconds from the last harm to the end)"""
    draw = random.Random(seed * 1000003 + number)
    launched, moment = draw.random() < 0.5, draw.choice(MOMENTS)
    harms = [draw.choice(HARMS if launched else HARMS[:-1]) for _ in range(draw.randint(1, MOST_HARMS))]
    place = folder / str(number)
    place.mkdir()
    job = Job(work, f"{os.getpid()}-{seed}-{number}", place, launched)
    done = []
    begin = time.monotonic()
    try:
        if wait_for_moment(job, moment, draw):
            for i, harm in enumerate(harms):
                if i > 0:
                    time.sleep(draw.choice([0, draw.uniform(0, 2), draw.uniform(0, 3 * STALL_LIMIT)]))
                if harm_one(job, harm, draw):
                    done.append(harm)
                begin = time.monotonic()
        took = check_end(job, begin)
        check_nothing_is_left(job)
        losses = losses_of(job.output())
        check(sorted(losses) == list(range(work.steps)), f"losses of {len(losses)} steps of {work.steps}")
        check_losses(work, losses, "trained")
        check_resumes(work, job)
        shutil.rmtree(place)
        return done, launched, moment, "ok", took
    except Failure as failure:
        print(f"trial {number}: {', '.join(harms)}; {'launcher' if launched else '--local'}, {moment} (files in {place}): "
              f"FAILED: {failure}", flush=True)
        return done, launched, moment, "FAILED", None
    finally:
        job.kill()


def print_table(results):
    rows = collections.defaultdict(lambda: [0, 0, 0, 0, 0.0])
    for done, launched, moment, outcome, took in results:
        row = rows[("launcher" if launched else "--local", len(done))]
        row[0] += 1
        row[1] += outcome == "ok"
        row[2] += moment == "checkpoint"
        row[3] += moment == "start"
        row[4] = max(row[4], took or 0)
    print(f"{'job':<10}{'harms':>6}{'trials':>8}{'as promised':>13}{'in a checkpoint':>17}{'at the start':>14}{'longest end':>13}")
    for (job, harms), (trials, good, writing, starting, longest) in sorted(rows.items()):
        print(f"{job:<10}{harms:>6}{trials:>8}{good:>13}{writing:>17}{starting:>14}{longest:>11.1f} s")
    harms = collections.Counter(harm for result in results for harm in result[0])
    print(f"{len(results)} trials, {sum(result[3] == 'ok' for result in results)} as promised; "
          + ", ".join(f"{harm} {count}" for harm, count in sorted(harms.items())))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--only", type=int, help="this one trial")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="agpcs-elastic-"))
    cluster = folder / "four.yaml"
    cluster.write_text(cluster_of_cores("four", 4, 64))
    work = Work(pathlib.Path(options.bin_dir).resolve(), folder, cluster, 120, 5, True, size=4, elastic=True)
    numbers = range(options.trials) if options.only is None else [options.only]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda n: run_trial(work, folder, options.seed, n), numbers))
    print_table(results)
    bad = any(result[3] != "ok" for result in results)
    if not bad:
        shutil.rmtree(folder)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
