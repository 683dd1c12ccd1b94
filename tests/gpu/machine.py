# SPDX-License-Identifier: Apache-2.0
"""What a machine has for the proof: GPUs, a toolkit, a PyTorch of a CUDA build, programs; and what it lacks."""

import functools
import json
import os
import pathlib
import shutil
import subprocess

import mps

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARING = (2, 30)  # the first NCCL that lets ranks share a GPU
BUILDS = ("cmake", "ninja", "g++", "nvcc")
# Imports PyTorch, which takes seconds, only where it is one of a CUDA build.
OF_TORCH = """import ctypes, importlib.util as util, json, pathlib, runpy, sys
torch = util.find_spec("torch")
if torch is None or not torch.origin:
    sys.exit(1)
folder = pathlib.Path(torch.origin).parent
if runpy.run_path(str(folder / "version.py"))["cuda"] is None:
    sys.exit(1)
import torch
nccl, code = util.find_spec("nvidia.nccl"), ctypes.c_int()  # PyTorch knows its header's version, not the loaded library's
ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(code))
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "gpu": torch.cuda.is_available(),
  "folder": str(folder), "nccl": [code.value // 10000, code.value // 100 % 100, code.value % 100],
  "nccl_folder": str(next(iter(nccl.submodule_search_locations))) if nccl else None}))"""


def said(*command, environment=None):
    """What a command prints; None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
                              env={**os.environ, **(environment or {})})
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def toolkit(name):
    """A program of CUDA's toolkit, on the PATH or where the toolkit is usually installed."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")


class Machine:
    """`given` is the folder that prepare.py filled, or None. Parts write below `work`."""

    def __init__(self, work, given=None, rehearsal=False, root=ROOT):
        self.root, self.work, self.given, self.rehearsal = root, work, given, rehearsal
        self.transport = "tcp" if rehearsal else "nccl"
        self.world = "tcp" if rehearsal else "nccl"  # of the tests that run over all transports

    # --- what there is

    @functools.cached_property
    def gpus(self):
        """Name, memory in MiB, driver and compute capability of each."""
        text = said("nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap",
                    "--format=csv,noheader,nounits")
        rows = [line.split(", ") for line in (text or "").splitlines()]
        return [dict(zip(("name", "memory", "driver", "compute"), row)) for row in rows if len(row) == 4]

    @functools.cached_property
    def builder(self):
        """What building lacks here; empty if nothing of it."""
        missing = [name for name in BUILDS if not toolkit(name)]
        return f"no {', '.join(missing)} here" if missing else ""

    @functools.cached_property
    def toolkit_version(self):
        text = said(toolkit("nvcc"), "--version") if toolkit("nvcc") else None
        return text.splitlines()[-1] if text else "none"

    @property
    def given_nccl(self):
        """The NCCL of the folder, which ranks use in the place of the machine's own; None where the folder has none."""
        path = self.given / "nccl/libnccl.so.2" if self.given else None
        return path if path and path.exists() and not self.rehearsal else None

    def with_given_nccl(self):
        """What makes programs use that NCCL. PyTorch names its own by an RPATH, which LD_LIBRARY_PATH does not change."""
        return {"LD_PRELOAD": str(self.given_nccl)} if self.given_nccl else {}

    def torch_of(self, python):
        text = said(str(python), "-c", OF_TORCH, environment=self.with_given_nccl())
        if text is None:
            return None
        return {"python": str(python), **json.loads(text.splitlines()[-1])}

    @property
    def own_python(self):
        """The environment that part `torch` makes of the folder's wheels."""
        return self.work / "python/bin/python"

    @functools.cached_property
    def torch(self):
        """What OF_TORCH says of the first PyTorch of a CUDA build, and its python; None where there is none."""
        candidates = [os.environ.get("AGPCS_TORCH_PYTHON"), self.own_python, shutil.which("python3"), "/usr/bin/python3",
                      f"{said('bash', str(self.root / 'tools/pytorch/pytorch.sh'), 'prefix')}/bin/python"]
        return next((found for python in candidates if python and (found := self.torch_of(python))), None)

    def forget(self):
        """Looks for PyTorch anew."""
        self.__dict__.pop("torch", None)

    @property
    def programs(self):
        """The build folder whose programs run here: that of this machine, or that of the folder; None without any."""
        folders = [self.root / "build/release"] if self.rehearsal else [self.root / "build/gpu"]
        folders += [self.given / "build"] if self.given else []
        return next((folder for folder in folders if (folder / "bin/agpcs-run").exists()), None)

    def program(self, name):
        """The path of "bin/agpcs-run" or "tests/nccl_test"; None where it has not been built."""
        path = self.programs / name if self.programs else None
        return path if path and path.exists() else None

    def command(self, name):
        """The same of a command that has to be there; agpcs-compile may come from the folder alone."""
        path = self.program(f"bin/{name}") or (self.given / "bin" / name if self.given else None)
        if path is None or not path.exists():
            raise RuntimeError(f"{name} is not built")
        return path

    def model(self, name):
        """An ONNX model that the folder has, or the sources; None where neither has it."""
        folders = [self.given / "models"] if self.given else []
        folders += [self.work / "models", self.root / "samples/models", self.root / "tests/system/training/models"]
        return next((folder / f"{name}.onnx" for folder in folders if (folder / f"{name}.onnx").exists()), None)

    # --- how programs run

    def environment(self):
        """That of this process, with what ranks on one GPU and the folder's programs need."""
        libraries = []
        if self.torch:
            nvidia = pathlib.Path(self.torch["folder"]).parent / "nvidia"
            libraries = [f"{self.torch['folder']}/lib", *map(str, sorted(nvidia.glob("*/lib")))]
        if self.given and self.programs == self.given / "build":
            libraries.insert(0, str(self.programs / "lib"))
        own = {"PYTHONDONTWRITEBYTECODE": "1", **self.with_given_nccl()}
        if libraries and not self.rehearsal:
            own["LD_LIBRARY_PATH"] = ":".join([*libraries, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        if self.programs:
            own.update(PYTHONPATH=str(self.programs / "python"), AGPCS_BIN_DIR=str(self.programs / "bin"))
        if self.shares():
            own["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        return {**os.environ, **own}

    def shares(self):
        """Whether ranks may share a GPU."""
        return bool(self.torch and self.torch["nccl"] and tuple(self.torch["nccl"][:2]) >= SHARING)

    # --- what parts need

    def obstacle(self, need):
        """Why `need` is not there; empty if it is."""
        return getattr(self, f"_no_{need}")()

    def _no_gpu(self):
        if self.rehearsal or self.gpus:
            return ""
        return "no NVIDIA GPU: " + ("nvidia-smi lists none" if shutil.which("nvidia-smi") else "there is no nvidia-smi")

    def _no_torch(self):
        if not self.torch:
            return "no PyTorch of a CUDA build here, and no wheels of one installed"
        return "" if self.torch["gpu"] or self.rehearsal else f"PyTorch {self.torch['version']} sees no GPU"

    def _no_programs(self):
        return "" if self.programs else "no programs: neither built here nor in the folder of --from"

    def _no_ranks(self):
        if self.rehearsal or len(self.gpus) > 1 or self.shares():
            return ""
        version = ".".join(map(str, self.torch["nccl"])) if self.torch and self.torch["nccl"] else "none"
        return f"one GPU, and ranks share one from NCCL 2.30 on; this is {version}"

    def _no_sanitizer(self):
        return "" if toolkit("compute-sanitizer") else "no compute-sanitizer here"

    def named_gpus(self):
        """What a report is of, beside its sources."""
        if self.rehearsal:
            return "none: a rehearsal"
        return ", ".join(f"{gpu['name']} ({gpu['memory']} MiB, compute {gpu['compute']})" for gpu in self.gpus) or "none"

    def facts(self):
        """What a report says of the machine, beside its GPUs."""
        torch = self.torch or {}
        nccl = torch.get("nccl")
        return {"cores": os.cpu_count(), "driver": self.gpus[0]["driver"] if self.gpus else "none",
                "toolkit": self.toolkit_version,
                "PyTorch": f"{torch['version']} (CUDA {torch['cuda']})" if torch else "none",
                "NCCL": (".".join(map(str, nccl)) if nccl else "none") + (", the folder's" if self.given_nccl else ""),
                "ranks on one GPU": "yes" if self.shares() else "no",
                "compute-sanitizer": "yes" if toolkit("compute-sanitizer") else "no",
                "MPS": "yes" if mps.control() else "no",
                "programs": self.origin()}

    def origin(self):
        """Where the programs come from."""
        known = {None: "none", self.root / "build/gpu": "built here", self.root / "build/release": "those of build/release"}
        return known.get(self.programs, "those of the folder")
