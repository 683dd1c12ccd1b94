# SPDX-License-Identifier: Apache-2.0
"""Parts that build, and parts that run the tests which this project has over all transports."""

import json
import sys

import jobs
from machine import toolkit
from work import CannotRun

# In the order of their worth: a build that is cut off leaves the first.
TARGETS = ["transport_conformance_test", "agpcs-run", "agpcs-compile", "agpcs-profile", "agpcs-plan", "nccl_test",
           "state_moves_test", "nccl_replay_bench", "agpcs_python"]
CONFORMANCE = ("transport_conformance_test", "state_moves_test")
TEST_LIMIT = 45  # seconds of one test
FAULTS = "*Abort*:*PeerThat*:*ATimeout*"  # of the conformance suite: what ranks say of each other's failures
# Small cases with a kernel of ours (flows), or with several operations under way.
SMALL = ["AFlowLeavesTheSameBytesOnAllRanksEachTime", "AlternatesAlgorithmsOnOneGroup", "ExchangesInBothDirectionsAtOnce"]


def torch(work):
    """Makes an environment of the folder's wheels where the machine has no PyTorch of a CUDA build."""
    machine = work.machine
    if not machine.torch:
        wheels = machine.given / "wheels" if machine.given else None
        if wheels is None or not any(wheels.glob("torch-*.whl")):
            raise CannotRun("no PyTorch of a CUDA build here, and no wheel of one in the folder of --from")
        environment = machine.own_python.parents[1]
        work.need([sys.executable, "-m", "venv", environment])
        work.need([machine.own_python, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", wheels, "-r",
                   machine.root / "tools/pytorch/environment.txt"])
        machine.forget()
        if not machine.torch:
            raise RuntimeError(f"{machine.own_python} does not import torch")
    origin = "of the folder's wheels" if machine.torch["python"] == str(machine.own_python) else "the machine's own"
    work.note(f"PyTorch {machine.torch['version']} of CUDA {machine.torch['cuda']}, {origin}")


def configuration(machine):
    """The arguments by which CMake finds the machine's PyTorch, and the NCCL that it brings."""
    found = [f"-DCMAKE_PREFIX_PATH={machine.torch['folder']}", f"-DAGPCS_TORCH_PYTHON={machine.torch['python']}",
             f"-DCMAKE_CUDA_COMPILER={toolkit('nvcc')}"]
    if machine.torch["nccl_folder"]:
        folder = machine.torch["nccl_folder"]
        found += [f"-DNCCL_INCLUDE_DIR={folder}/include", f"-DNCCL_LIBRARY={folder}/lib/libnccl.so.2"]
    return found


def build(work):
    """Builds in build/gpu, target by target; the folder's programs serve where nothing can be built."""
    machine = work.machine
    why = machine.builder
    if not why and not machine.rehearsal:
        configured = work.call(["cmake", "--preset", "gpu", *configuration(machine)])
        if configured.code == 0:
            for target in TARGETS:
                work.need(["cmake", "--build", "--preset", "gpu", "--target", target])
                work.row("Targets", target=target, seconds_left=round(work.seconds_left()))
            return
        why = "CMake cannot configure:\n" + configured.last_lines()
    if not machine.programs:
        raise CannotRun(f"{why}; and no folder of --from has programs" if why else "nothing is built in build/release")
    work.note(f"not built here ({why or 'a rehearsal builds nothing'}): the programs are {machine.origin()}")


def names_of(listed):
    """The full names in what a GoogleTest program lists."""
    suite = ""
    for line in listed.splitlines():
        word = line.split("#")[0].rstrip()
        if word.startswith(" "):
            yield suite + word.strip()
        elif word.endswith("."):
            suite = word


def result_of(work, path, name):
    """Runs one test in a process of its own, so that one that hangs costs its own time alone; returns its state, and why."""
    out = work.folder / "test.json"
    out.unlink(missing_ok=True)
    done = work.call([path, f"--gtest_filter={name}", f"--gtest_output=json:{out}", "--gtest_brief=1"], jobs.LOADED,
                     limit=TEST_LIMIT)
    if done.code is None:
        return ["failed", f"not over after {TEST_LIMIT} s"]
    if not out.exists():
        return ["failed", f"ended with {done.code} and left no result:\n{done.last_lines()}"]
    test = json.loads(out.read_text())["testsuites"][0]["testsuite"][0]
    if "failures" in test:
        return ["failed", test["failures"][0]["failure"]]
    return ["skipped", skip_reason(test)] if test["result"] == "SKIPPED" else ["passed", ""]


def tests(work, program, pattern):
    """Runs tests of a GoogleTest program over the world of the machine, one after the other, and counts them."""
    path = work.machine.program(f"tests/{program}")
    if path is None:
        work.note(f"{program} is not built")
        return 0
    chosen = ":".join(f"{word}/{work.machine.world}" for word in pattern.split(":"))
    count = {"passed": 0, "failed": 0, "skipped": 0}
    try:
        for name in names_of(work.need([path, f"--gtest_filter={chosen}", "--gtest_list_tests"])):
            state, why = work.once(name, lambda: result_of(work, path, name))
            count[state] += 1
            if state == "failed":
                work.fault(f"{name}: {why}")
            if state == "skipped":
                work.note(f"{name} was skipped: {why}")
    finally:
        work.row("Tests", program=program, pattern=pattern, **count)
    return count["passed"]


def skip_reason(test):
    reasons = test.get("skipped", [])
    return reasons[0]["message"].strip().splitlines()[-1] if reasons else "it does not say why"


def conformance(work):
    passed = sum(tests(work, program, "*") for program in CONFORMANCE)
    work.figure("tests passed", passed)
    if not passed:
        work.fault(f"no test ran over {work.machine.world}")


def aborted(work):
    passed = tests(work, "transport_conformance_test", FAULTS)
    work.figure("tests passed", passed)
    if not passed:
        work.fault(f"no test of failures ran over {work.machine.world}")


def sanitizer(work):
    """memcheck, then racecheck, each on one small case at a time: they make kernels many times as slow."""
    path = work.machine.program("tests/transport_conformance_test")
    if path is None:
        raise CannotRun("transport_conformance_test is not built")
    for tool in ("memcheck", "racecheck"):
        for case in SMALL:
            done = work.call([toolkit("compute-sanitizer"), "--tool", tool, "--error-exitcode", "99", path,
                              f"--gtest_filter=*.{case}/{work.machine.world}"], limit=150)
            if "Unable to" in done.output or "not supported" in done.output:
                raise CannotRun(f"compute-sanitizer may not run here: {done.last_lines(2)}")
            summary = [line for line in done.output.splitlines() if "SUMMARY" in line]
            ended = {None: "cut off after 150 s", 0: "clean"}.get(done.code, done.code)
            work.row("Runs", tool=tool, case=case, ended=ended, summary=summary[-1].strip("= ") if summary else "")
            if done.code not in (None, 0):
                work.fault(f"{tool} of {case}:\n{done.last_lines(20)}")


