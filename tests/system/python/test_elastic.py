#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""samples/pytorch_ddp/elastic.py under torchrun, which loses one of two machines and gets it back."""

import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import cases  # skips without PyTorch

import torch.distributed as dist

SAMPLE = cases.ROOT / "samples/pytorch_ddp/elastic.py"
LIMIT = 60  # seconds
LOSS = re.compile(r"(\d) ranks came to epoch (\d), step (\d): loss (\S+)")

# The sample, but a rank that is alone waits in the second epoch's first step, until torchrun ends it because another one came.
ALONE = f"""
import os, sys
sys.path.insert(0, {str(SAMPLE.parent)!r})
import elastic
save = elastic.save
def wait_or_save(model, optimizer, sampler):
    if sampler.plan.ranks == 1 and sampler.epoch == 1:
        print("alone", flush=True)
        open("nobody writes here").read()
    save(model, optimizer, sampler)
elastic.save = wait_or_save
elastic.on_ranks(elastic.train, 2)
"""


class Job:
    """Agents of torchrun, which stand for machines; their lines come in one queue."""

    def __init__(self, folder):
        # torchrun's own store is neither machine's, so that either may go.
        self.store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.folder, self.lines, self.agents, self.said = folder, queue.Queue(), [], []

    def agent(self):
        # An agent that is gone is noticed after 3 s; the others wait 15 s for new ones.
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc_per_node", "1",
                   "--max_restarts", "5", "--rdzv_backend", "c10d", "--rdzv_endpoint", f"localhost:{self.store.port}",
                   "--rdzv_conf", "is_host=false,last_call_timeout=15,keep_alive_interval=1", "--monitor_interval", "1", "alone.py"]
        # Without this variable an agent of PyTorch 2.15 that joins later waits for a key that the first one does not set.
        agent = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
        threading.Thread(target=self._read, args=(agent,), daemon=True).start()
        self.agents.append(agent)
        return agent

    def _read(self, agent):
        for line in agent.stdout:
            self.lines.put(line)

    def line(self, pattern):
        """Waits for a line that matches."""
        while True:
            try:
                line = self.lines.get(timeout=LIMIT)
            except queue.Empty:
                raise AssertionError(f"no '{pattern}' in {LIMIT} s:\n" + "".join(self.said)) from None
            self.said.append(line)
            if re.search(pattern, line):
                return

    def rest(self):
        """Returns all that was said."""
        while not self.lines.empty():
            self.said.append(self.lines.get())
        return "".join(self.said)

    def ended(self, agent):
        """Waits for an agent's end, and returns its exit code."""
        try:
            return agent.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end in {LIMIT} s:\n{self.rest()}") from None

    def kill(self, agent):
        """Ends an agent and its worker as a machine does that loses power."""
        workers = pathlib.Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        for process in (agent.pid, *map(int, workers)):
            os.kill(process, signal.SIGKILL)
        agent.wait()

    def end(self):
        for agent in self.agents:
            if agent.poll() is None:
                agent.terminate()
                agent.wait()
            agent.stdout.close()


class Elastic(unittest.TestCase):
    def test_a_job_that_loses_a_machine_and_gets_it_back_has_the_losses_of_one_that_does_not(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "alone.py").write_text(ALONE)
            os.mkfifo(f"{folder}/nobody writes here")
            job = Job(folder)
            try:
                first, second = job.agent(), job.agent()
                job.line("2 ranks came to epoch 0, step 5")
                job.kill(second)
                job.line("^alone")
                third = job.agent()
                self.assertEqual((job.ended(first), job.ended(third)), (0, 0), job.rest())
            finally:
                job.end()
            said = job.rest()
            os.remove(f"{folder}/elastic.pt")
            undisturbed = subprocess.run([sys.executable, SAMPLE], cwd=folder, capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(undisturbed.returncode, 0, undisturbed.stderr)
        expected = {(epoch, step): float(loss) for _, epoch, step, loss in LOSS.findall(undisturbed.stdout)}
        self.assertEqual(len(expected), 24, undisturbed.stdout)
        found = LOSS.findall(said)
        self.assertEqual({(epoch, step) for _, epoch, step, _ in found}, set(expected), said)
        for ranks, epoch, step, loss in found:
            self.assertLess(abs(float(loss) / expected[epoch, step] - 1), 1e-5, f"{ranks} ranks, {epoch}, {step}: {said}")
        # Measured once; then planned from that for the rank that was left; then the first plan again.
        plans = re.findall(r"agpcs: plan for (\d) ranks, batch 64 \((measured|by the measurements of a job of 2 ranks|by)", said)
        self.assertEqual(plans, [("2", "measured"), ("1", "by the measurements of a job of 2 ranks"), ("2", "by")], said)
        self.assertRegex(said, r"(RankLost|agpcs): rank \d \(host \S+, process \d+\) is gone: its process ended\n")


if __name__ == "__main__":
    unittest.main()
