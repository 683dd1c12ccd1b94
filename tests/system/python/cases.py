# SPDX-License-Identifier: Apache-2.0
"""What the tests of agpcs.torch share: models, plans for two ranks, and ranks as processes."""

import functools
import io
import itertools
import multiprocessing
import pathlib
import re
import sys
import tempfile
import traceback

try:
    import torch
except ImportError:
    print(f"skipped: {sys.executable} has no PyTorch (Debian: python3-torch)")
    sys.exit(77)
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import agpcs
import agpcs.torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
CLUSTER = ROOT / "samples/clusters/local-2.yaml"
BATCH = 8
LIMIT = 240  # seconds that ranks may take
torch.set_num_threads(1)  # ranks are forked

sys.path.insert(0, str(ROOT / "tests/system/training"))
from models import Bert  # noqa: E402  (BERT for classification, two layers)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = norm(outputs), norm(outputs)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + shortcut)


class ResNet18(nn.Module):
    """torchvision's, 62 parameters, for small images: `width` channels in the first layer instead of 64."""

    def __init__(self, norm=nn.BatchNorm2d, width=16, classes=10):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1, bias=False), norm(width)
        layers = []
        for i in range(4):
            inputs, outputs = width << max(i - 1, 0), width << i
            layers.append(nn.Sequential(Block(inputs, outputs, 1 if i == 0 else 2, norm),
                                        Block(outputs, outputs, 1, norm)))
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.fc = nn.Linear(width << 3, classes)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3)))

    @staticmethod
    def samples(count, generator):
        return {"image": torch.randn(count, 3, 16, 16, generator=generator),
                "labels": torch.randint(0, 10, (count,), generator=generator)}


class GroupResNet18(ResNet18):
    """Without batch statistics, which are a rank's own, so that ranks can do what one process does."""

    def __init__(self):
        super().__init__(norm=functools.partial(nn.GroupNorm, 4))


def build(kind):
    torch.manual_seed(1)
    module = kind()
    for part in module.modules():  # ranks draw other numbers than one process, unless they draw by sample
        if isinstance(part, nn.Dropout) and not getattr(kind, "DROPS", False):
            part.p = 0.0
    return module.train()


@functools.lru_cache(maxsize=None)
def exported(kind):
    inputs = kind.samples(2, torch.Generator().manual_seed(1))
    inputs.pop("labels")
    file = io.BytesIO()
    agpcs.torch.export(build(kind), tuple(inputs.values()), file, input_names=list(inputs))
    return file.getvalue()


@functools.lru_cache(maxsize=None)
def plan_of(kind, *, shares="1:1", **options):
    """A plan for two ranks with these shares."""
    a, b = shares.split(":")
    options = {"layout": f"local/0:{a},local/1:{b}", "micro_batches": 1, "batch": BATCH, **options}
    return agpcs.plan(exported(kind), CLUSTER, **options)


class Data(torch.utils.data.Dataset):
    def __init__(self, kind, count):
        self.columns = list(kind.samples(count, torch.Generator().manual_seed(2)).values())

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, index):
        return tuple(column[index] for column in self.columns)


def loss_of(module, batch):
    *inputs, labels = batch
    return nn.functional.cross_entropy(module(*inputs), labels)


def optimizer_of(module):
    return torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9)


def train(module, batches, step=None):
    """The losses of steps over `batches`; `step` makes a step's gradients and returns its loss."""
    optimizer, losses = optimizer_of(module), []
    for i, batch in enumerate(batches):
        optimizer.zero_grad()
        if step is None:
            loss = loss_of(module, batch)
            loss.backward()
        else:
            loss = step(i, batch)
        optimizer.step()
        losses.append(loss.item())
    return losses


def on_ranks(work, *arguments, ranks=2):
    """What `work(rank, *arguments)` returns, by rank; in processes of one Gloo group. Errors are (type, text). This
    process computes no gradients itself: autograd does not work in a process that was forked afterwards."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        queue = context.Queue()
        processes = [context.Process(target=_rank, args=(work, rank, ranks, folder, queue, arguments))
                     for rank in range(ranks)]
        for process in processes:
            process.start()
        try:
            results = dict(queue.get(timeout=LIMIT) for _ in range(ranks))
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()
    return [results[rank] for rank in range(ranks)]


def _rank(work, rank, ranks, folder, queue, arguments):
    torch.set_num_threads(1)  # makes a new pool of threads, before autograd's threads would do so all at once
    try:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks)
        queue.put((rank, work(rank, *arguments)))
    except Exception as error:  # the test looks at it
        traceback.print_exc(limit=-3)
        queue.put((rank, (type(error).__name__, str(error))))


def wrapped(module, plan=None, hook=None, **options):
    """DDP, with the plan's hook where there is a plan. Returns it and the hook's state."""
    ddp = DistributedDataParallel(module, **options)
    if plan is None:
        return ddp, None
    state, function = agpcs.torch.plan_hook(plan, **(hook or {}))
    ddp.register_comm_hook(state, function)
    return ddp, state


def divided(plan, *weights, level="optimizer"):
    """The plan with the optimizer's state of all buckets that several ranks hold divided by these weights of its ranks; with
    `level` "gradients" also the gradients of those of one stage, which are summed after each micro-batch."""
    heads, each = {}, [group.name for group in plan.groups if level == "gradients" and not group.shared_with and len(group.ranks) > 1]
    for group in plan.groups:
        if len(group.ranks) == 1:
            continue
        own = [weights[rank] for rank in group.ranks]
        parts = [sum(group.elements) * weight // sum(own) for weight in own]
        parts[own.index(max(own))] += sum(group.elements) - sum(parts)
        runs = [(part, len(list(same))) for part, same in itertools.groupby(parts)]
        said = ",".join(f"{part}x{count}" if count > 1 else str(part) for part, count in runs)
        heads[group.name] = f" state={'gradients' if group.name in each else 'optimizer'} parts={said} gradients="
    text, program = [], None
    for line in [*plan.text.splitlines(), ""]:
        if program is not None and not line.startswith(" "):
            text += _sharded_program(program, heads, each)
            program = None
        if line.startswith("program "):
            program = []
        name = line.split()[1] if line.startswith("bucket ") else None
        (text if program is None else program).append(line.replace(" gradients=", heads[name]) if name in heads else line)
    return agpcs.Plan("\n".join(text), made_from=plan._made_from)


def _sharded_program(lines, heads, each):
    summed = [line.split()[1] for line in lines if line.startswith("  all_reduce ")]
    text, last = [], None
    for line in lines:
        what, *of = line.split()
        if what == "all_reduce" and of[0] in each:
            continue
        if what == "all_reduce":
            last = f"all_reduce:{of[0]}"
            if of[0] in heads:
                line, last = line.replace("all_reduce", "reduce_scatter"), f"reduce_scatter:{of[0]}"
        if what == "update" and last is not None:
            line = f"  update after={last}"
        text.append(line)
        if what == "backward":
            k = of[0].partition("=")[2]
            for name in summed:
                if name in each:
                    text.append(f"  reduce_scatter {name} mb={k} after=gradients:{name}:{k}")
                    last = f"reduce_scatter:{name}:{k}"
        if what == "update":
            gathers = [name for name in summed if name in each] + [name for name in summed if name in heads and name not in each]
            text += [f"  all_gather {name} after=update" for name in sorted(gathers, key=summed.index)]
    return text


_NEXT = ("gather", None)  # the first gather of the pass that follows


def gathered(plan, *weights, model=None, cluster=None):
    """`divided` at the level "parameters". The bytes of the plan's ONNX file and the text of its cluster file tell in which order
    backward passes come to buckets: the compiler's own checks say where a guess is wrong. Without them it is the guess."""
    base, orders = divided(plan, *weights, level="gradients").text, {}
    while True:
        made = agpcs.Plan(_with_gathers(base, orders), made_from=plan._made_from)
        if model is None:
            return made
        try:
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(cluster)
                file.flush()
                made._command("json", [made, "--model", model, "--cluster", file.name])
            return made
        except agpcs.InvalidInput as error:
            item = r"'(\w+) (b\d+) mb=\d+'"
            wrong = re.search(f"program (s\\d+): {item} comes where {item} has to", str(error))
            if wrong is None:
                raise
            order = orders[wrong[1]]
            found, wanted = (one if one in order[1:] else _NEXT for one in ((wrong[2], wrong[3]), (wrong[4], wrong[5])))
            place = 0 if found == _NEXT and wanted[0] == "gather_backward" else order.index(found)
            assert place < order.index(wanted), error
            order.remove(wanted)
            order.insert(place, wanted)


def _with_gathers(text, orders):
    """The text of a plan that divides gradients, which divides parameters, too. `orders`: by stage, the gathers for a backward
    pass and its sums, as they begin from the first gather on."""
    names = re.findall(r"\nbucket (b\d+) .*state=gradients", text)
    head, *programs = text.replace(" state=gradients ", " state=parameters ").split("\nprogram ")
    made = [head]
    for program in programs:
        lines = [line for line in program.splitlines() if line.split()[:2] not in [["all_gather", name] for name in names]]
        sums = list(dict.fromkeys(re.findall(r"reduce_scatter (b\d+) mb=", program)))
        passes = [tuple(line.split()[:2]) for line in lines if line.startswith(("  forward mb=", "  backward mb="))]
        if passes and sums:
            order = [("gather_backward", sums[0])]
            for name, following in zip(sums, [*sums[1:], None]):
                order += [_NEXT if following is None else ("gather_backward", following), ("reduce_scatter", name)]
            order = orders.setdefault(lines[0], order)
            forward = [("gather_forward", name) for name in sorted(sums, key=lambda name: -int(name[1:]))] + [_NEXT]
            lines = _woven([line for line in lines if " mb=" not in line or not line.startswith("  reduce_scatter")],
                           passes, {"forward": forward, "backward": order})
        made.append("\n".join(lines))
    return "\nprogram ".join(made) + "\n"


def _woven(lines, passes, orders):
    """The lines of a program with what begins within its passes."""
    within = {}
    for (what, mb), following in zip(passes, [*passes[1:], None]):
        k, need, begun = mb[3:], orders[what][0][1], within.setdefault((what, mb), [])
        for item, name in orders[what][1:]:
            if item == "reduce_scatter":
                begun.append(f"  {item} {name} {mb} after=gradients:{name}:{k}")
            elif name is not None or following is not None:
                of = mb if name is not None else following[1]
                item, name = (item, name) if name is not None else orders[following[0]][0]
                begun.append(f"  {item} {name} {of} after=in_{what}:{need}:{k}")
                need = name
    first = orders[passes[0][0]][0]
    text = []
    for line in lines:
        here = tuple(line.split()[:2])
        text += [f"  {first[0]} {first[1]} {passes[0][1]}"] if here == passes[0] else []
        text += [line, *within.get(here, ())]
    return text
