#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts agpcs-run as docs/reference/agpcs_run.md says under the launchers that are here, and does to its jobs what a cluster does.

    tests/system/faults/launchers.py BIN_DIR [torchrun|mpirun|srun ...]     all three

Jobs of three ranks on this machine. Under each launcher one trains to its end, and one is asked to stop in the way of that
launcher (Ctrl-C, scancel) and must save before. A third loses the process of rank 0, then all that runs on the last machine,
must go on each time (with --elastic; torchrun starts all ranks anew), and is then asked to stop. For srun the script runs a
Slurm of its own, of three nodes, as root. A launcher that is not here is skipped (Debian: openmpi-bin, slurm-wlm; pip: torch).
Exit: 0 all that ran was as promised, 1 something was not."""
import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from chaos import (MODEL, Failure, check, children_of, cluster_of_cores, compile_plan, environment, keeps, kill_all,
                   losses_of, processes_of, token_of, wait_until)
from ports import FreePorts

RANKS = 3
SLURM = """ClusterName=launchers
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdTimeout=10
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cores}
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cores}
NodeName=n3 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[3]} CPUs={cores}
PartitionName=all Nodes=n1,n2,n3 Default=YES State=UP
"""
PATIENCE = 120  # seconds for a job to end


def variables_of(pid):
    try:
        return dict(word.split("=", 1) for word in
                    pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0") if "=" in word)
    except OSError:
        return {}  # it has just ended


def stat_of(pid):
    """Name and parent of a process; nothing of one that has just ended."""
    try:
        before, after = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)
        return before.split("(", 1)[1], int(after.split()[1])
    except (OSError, IndexError):
        return "", 0


class Launcher:
    """How jobs are started and asked to stop, and how they lose machines; entered while it is used."""
    name = number = ""  # of the launcher; of the variable that has the number of a process

    def __init__(self, folder):
        del folder

    def missing(self):
        """Why it cannot be used here; nothing where it can."""
        raise NotImplementedError

    def command(self, job, with_losses):
        """What goes before agpcs-run."""
        raise NotImplementedError

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def options(self, job, work):
        """What agpcs-run needs to go on after losses."""
        del job
        return ["--elastic", "--replan", work.cluster]

    def times_gone_on(self, job):
        return job.errors().count("training goes on without rank")

    def stop(self, job):
        job.process.send_signal(signal.SIGINT)

    def lose_machine(self, job, number):
        """Ends all of one of the launcher's processes, as a machine that is switched off does."""
        for pid in job.processes(number):
            os.kill(pid, signal.SIGKILL)

    def noticed(self, job):
        """Whether the launcher has said that it lost a machine."""
        del job
        return True


class Torchrun(Launcher):
    """When a rank is lost it starts all anew."""
    name, number = "torchrun", "RANK"

    def missing(self):
        if not shutil.which("torchrun"):
            return "no torchrun here"
        tried = subprocess.run(["torchrun", "--no_python", "--nproc_per_node", "1", "true"], capture_output=True, text=True)
        return tried.returncode and "torchrun does not start `true`: " + tried.stderr.strip().rsplit("\n", 1)[-1]

    def command(self, job, with_losses):
        del job
        return ["torchrun", "--no_python", "--nproc_per_node", str(RANKS), *["--max_restarts", "2"] * with_losses]

    def options(self, job, work):
        del work
        return ["--resume", job.save]

    def times_gone_on(self, job):
        return job.output().count('"event": "resumed"')


class Mpirun(Launcher):
    name, number = "mpirun", "OMPI_COMM_WORLD_RANK"

    def missing(self):
        return None if shutil.which("mpirun") else "no mpirun here (Debian: openmpi-bin)"

    def command(self, job, with_losses):
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        # The timeout: so many seconds mpirun waits before SIGTERM, and as many before SIGKILL; it reads no output meanwhile.
        return ["mpirun", *root, "--oversubscribe", "-n", str(RANKS), "-x", "AGPCS_JOB_TOKEN", "-x", "MASTER_ADDR",
                "-x", "AGPCS_PORT", "--mca", "odls_base_sigkill_timeout", "2", *["--enable-recovery"] * with_losses]


class Srun(Launcher):
    name, number = "srun", "SLURM_PROCID"

    def __init__(self, folder):
        super().__init__(folder)
        self.folder, self.daemons = folder / "slurm", {}

    def missing(self):
        if os.geteuid() != 0:
            return "a Slurm of one's own needs root"
        here = all(shutil.which(program) for program in ("srun", "slurmctld", "slurmd"))
        return None if here else "no Slurm here (Debian: slurm-wlm)"

    def __enter__(self):
        (self.folder / "state").mkdir(parents=True)
        settings = self.folder / "slurm.conf"
        self.claims = [FreePorts(), FreePorts()]
        ports = [claim.port + more for claim in self.claims for more in (0, 1)]
        settings.write_text(SLURM.format(folder=self.folder, ports=ports, cores=os.cpu_count()))
        os.environ["SLURM_CONF"] = str(settings)
        try:
            self.start("slurmctld", "-i")
            for node in ("n1", "n2", "n3"):
                self.start("slurmd", "-N", node)
            wait_until(lambda: self.says("sinfo", "-h", "-o", "%D %T") == "3 idle", "three idle nodes", self.log)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, *command):
        with open(self.folder / "daemons.log", "ab") as log:
            self.daemons[command[-1]] = subprocess.Popen([command[0], "-D", *command[1:]], stdout=log, stderr=log)

    def log(self):
        return (self.folder / "daemons.log").read_text(errors="replace")

    @staticmethod
    def says(*command):
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    def __exit__(self, *error):
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
        for daemon in self.daemons.values():
            daemon.wait()

    def command(self, job, with_losses):
        return ["srun", "--job-name", job.trial, "-N", "3", "-n", str(RANKS),
                *["--no-kill", "--kill-on-bad-exit=0", "--wait=0"] * with_losses]

    def stop(self, job):
        subprocess.run(["scancel", "--name", job.trial], check=True)

    def lose_machine(self, job, number):
        mine = job.processes(number)
        node = self.daemons[variables_of(mine[0])["SLURMD_NODENAME"]]
        for pid in [stat_of(mine[0])[1], node.pid, *mine]:  # the step's daemon, the node's, the job's
            os.kill(pid, signal.SIGKILL)
        node.wait()

    def noticed(self, job):
        return "Node failure on" in job.errors()


class Job:
    def __init__(self, launcher, work, number, steps, with_losses):
        self.launcher, self.trial = launcher, f"agpcs-{os.getpid()}-{launcher.name}-{number}"
        self.folder = work.folder / self.trial
        self.folder.mkdir()
        self.save = self.folder / "checkpoints"
        plan = shutil.copy(work.plan, self.folder)  # plans without lost ranks are written beside it
        self.ports = FreePorts()
        extra = {"AGPCS_JOB_TOKEN": token_of(self.trial), "MASTER_ADDR": "127.0.0.1", "AGPCS_PORT": str(self.ports.port)}
        command = [*launcher.command(self, with_losses), work.run, plan, MODEL, "--json", "--threads", "1", "--steps", steps,
                   "--save", self.save, "--save-every", "20", *(launcher.options(self, work) if with_losses else [])]
        with open(self.folder / "out", "wb") as out, open(self.folder / "err", "wb") as err:
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                            env=environment(self.trial, extra))

    def output(self):
        return (self.folder / "out").read_text(errors="replace")

    def errors(self):
        return (self.folder / "err").read_text(errors="replace")

    def steps(self):
        return len(self.output().split('"event": "step"')) - 1

    def processes(self, number):
        """Ids of what the launcher started as process `number`, and of its children: with --elastic a keeper and its rank."""
        mine = [pid for pid in processes_of(self.trial) if stat_of(pid)[0] == "agpcs-run"
                and variables_of(pid).get(self.launcher.number) == str(number)]
        started = [pid for pid in mine if stat_of(pid)[1] not in mine]
        return [*started, *(child for pid in started for child in children_of(pid))]

    def train_on(self, steps=30):
        wanted = self.steps() + steps
        wait_until(lambda: self.steps() >= wanted or self.process.poll() is not None, f"{steps} more steps", self.errors)
        check(self.process.poll() is None, f"ended with {self.process.returncode}: {self.errors()}")

    def wait(self):
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failure(f"it does not end: {self.errors()}") from None
        wait_until(lambda: not processes_of(self.trial), "end of all processes", lambda: str(processes_of(self.trial)))
        return code

    def kill(self):
        kill_all(self.trial)
        self.process.wait()


def trains(job):
    code = job.wait()
    check(code == 0, f"ended with {code}: {job.errors()}")
    check(sorted(losses_of(job.output())) == list(range(20)), f"not each of 20 steps was printed: {job.output()}")


def saves(job):
    job.train_on()
    job.launcher.stop(job)
    job.wait()
    check("a signal asked for it; saved in" in job.errors(), f"nothing was saved: {job.errors()}")
    check(any(job.save.iterdir()), "the folder of checkpoints is empty")


def goes_on(job):
    job.train_on()
    os.kill(job.processes(0)[-1], signal.SIGKILL)
    wait_until(lambda: job.launcher.times_gone_on(job) == 1, "going on without the first process", job.errors)
    job.train_on()
    job.launcher.lose_machine(job, RANKS - 1)
    wait_until(lambda: job.launcher.times_gone_on(job) == 2, "going on without the last machine", job.errors)
    job.train_on()
    wait_until(lambda: job.launcher.noticed(job), "word of it by the launcher", job.errors)
    saves(job)


JOBS = [("trains", trains), ("saves when asked to stop", saves), ("goes on after losses", goes_on)]


class Work:
    """What jobs train, and by what."""

    def __init__(self, bin_dir, folder):
        self.folder, self.run, self.plan = folder, bin_dir / "agpcs-run", folder / "three.plan"
        self.cluster = folder / "three.yaml"
        self.cluster.write_text(cluster_of_cores("three", RANKS, 1536))
        compile_plan(bin_dir, self.cluster, self.plan, "--seeder", "data_parallel")


def timed(promise, job):
    begin = time.monotonic()
    promise(job)
    return time.monotonic() - begin


def try_launcher(launcher, work):
    """Prints a line for each job; whether all was as promised."""
    good = True
    with launcher:
        for number, (what, promise) in enumerate(JOBS):
            job = Job(launcher, work, number, 20 if promise is trains else 10**8, promise is goes_on)
            good = keeps(lambda: timed(promise, job), job, f"{launcher.name:<10}{what:<26}") and good
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir")
    parser.add_argument("launchers", nargs="*", metavar="launcher")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="agpcs-launchers-"))
    work = Work(pathlib.Path(options.bin_dir).resolve(), folder)
    good = True
    for launcher in (kind(folder) for kind in (Torchrun, Mpirun, Srun)):
        if options.launchers and launcher.name not in options.launchers:
            continue
        missing = launcher.missing()
        if missing:
            print(f"{launcher.name:<10}skipped: {missing}", flush=True)
        else:
            good = try_launcher(launcher, work) and good
    if good:
        shutil.rmtree(folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
