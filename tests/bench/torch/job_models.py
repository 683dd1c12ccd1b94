#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains models of several families by agpcs.torch.Job, and each of them alone in one process; compares both.

    job_models.py [--compile] [MODEL...]
    job_models.py --masks

Plans have two stages, four stages, and two stages of two replicas with shares 3 to 1 and 1 to 3; four micro-batches of 3, 3,
2 and 2 samples; 20 steps of SGD with momentum, fp32. Ranks are processes of this machine over Gloo. The one process trains
the user's module as it is, on whole batches; where the module has dropout, by masks of its own that follow the sample. With
--compile, Inductor compiles the stages of the job, which has two: it takes minutes. The table has the largest relative difference of a step's loss,
and that of a tensor of the final state: of its elements, to the largest one of the tensor. Exits with 1 if one is above
1e-4, or if a model is refused. Run it with PyPI's PyTorch (2.6 or newer), transformers and torchvision, and the package on
PYTHONPATH.

With --masks, prints the processor time of dropout by the sample on one thread, beside torch's own, with its backward pass.
"""

import argparse
import functools
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("AGPCS_STEPS", "20")  # that job_cases compares
sys.path[:0] = [str(ROOT / "tests/system/python/job"), str(ROOT / "tests/system/python")]
import job_cases  # noqa: E402  (plans, and training by one process)
import test_job_dropout  # noqa: E402  (training by a job, and by one process with dropout)
from cases import on_ranks  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

PLANS = {"2 stages": job_cases.TWO, "4 stages": job_cases.FOUR, "2 x 2, shares 3 : 1": job_cases.TWO_BY_TWO}
WORDS, TOKENS = 100, 12


def words(count, generator, tokens=TOKENS):
    """Texts that count by ones to fours, so that there is something to learn."""
    first, by = (torch.randint(low, high, (count, 1), generator=generator) for low, high in ((0, WORDS), (1, 5)))
    return (first + by * torch.arange(tokens)) % WORDS


class ResNet50(nn.Module):
    """torchvision's, with group norm in place of batch norm, a block of three convolutions for each of its four widths, and a
    quarter of these. Blocks begin as their shortcut. docs/results/jobs.md says why it is not all 16 blocks."""

    RATE = 3e-3

    def __init__(self):
        super().__init__()
        from torchvision.models import resnet

        class Narrow(resnet.ResNet):
            def _make_layer(self, block, planes, *arguments, **options):
                return super()._make_layer(block, planes // 4, *arguments, **options)

        self.net = Narrow(resnet.Bottleneck, [1, 1, 1, 1], zero_init_residual=True, norm_layer=functools.partial(nn.GroupNorm, 8))
        self.net.fc = nn.Linear(512, 10)

    def forward(self, image):
        return self.net(image)

    @staticmethod
    def samples(count, generator):
        """A tint of the image tells its class."""
        image, labels = torch.randn(count, 3, 32, 32, generator=generator), torch.randint(0, 10, (count,), generator=generator)
        return image + (labels.view(-1, 1, 1, 1) - 4.5) / 4, labels


class Bert(nn.Module):
    """Of transformers, with texts of unlike length."""

    def __init__(self, dropout=0.0):
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification
        self.net = BertForSequenceClassification(BertConfig(
            vocab_size=WORDS, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128, num_labels=4,
            max_position_embeddings=64, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout))

    def forward(self, tokens, mask):
        return self.net(input_ids=tokens, attention_mask=mask).logits

    @staticmethod
    def samples(count, generator):
        lengths = torch.randint(TOKENS // 2, TOKENS + 1, (count, 1), generator=generator)
        return (words(count, generator), (torch.arange(TOKENS) < lengths).long(),
                torch.randint(0, 4, (count,), generator=generator))


class LanguageModel(nn.Module):
    """A decoder of transformers: scores of the next word at each place."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, tokens):
        return self.net(input_ids=tokens, use_cache=False).logits.transpose(1, 2)

    @staticmethod
    def samples(count, generator):
        text = words(count, generator, TOKENS + 1)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()


class Gpt2(LanguageModel):
    """Its head is its table of words."""

    def __init__(self, dropout=0.0):
        from transformers import GPT2Config, GPT2LMHeadModel
        super().__init__(GPT2LMHeadModel(GPT2Config(
            vocab_size=WORDS, n_embd=64, n_layer=4, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=None,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout)))


class Llama(LanguageModel):
    """Grouped queries (four heads, two of keys and values), RMSNorm, rotary embeddings, a head of its own."""

    def __init__(self):
        from transformers import LlamaConfig, LlamaForCausalLM
        super().__init__(LlamaForCausalLM(LlamaConfig(
            vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64)))


class UNet(nn.Module):
    """Three levels, two convolutions in each, group norm, a transposed convolution upwards; a class for each pixel."""

    def __init__(self, widths=(8, 16, 32)):
        super().__init__()
        self.down = nn.ModuleList(self.block(a, b) for a, b in zip((3, *widths), widths))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(self.block(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(widths[0], 4, 1)

    @staticmethod
    def block(inputs, outputs):
        return nn.Sequential(*(part for channels in (inputs, outputs) for part in (
            nn.Conv2d(channels, outputs, 3, 1, 1), nn.GroupNorm(4, outputs), nn.ReLU(inplace=True))))

    def forward(self, image):
        skips, x = [], image
        for block in self.down:
            x = block(x if not skips else nn.functional.max_pool2d(x, 2))
            skips.append(x)
        for skip, grow, block in reversed(list(zip(skips[:-1], self.grow, self.up))):
            x = block(torch.cat([skip, grow(x)], 1))
        return self.head(x)

    @staticmethod
    def samples(count, generator):
        image = torch.randn(count, 3, 16, 16, generator=generator)
        return image, (image[:, 0] > 0) * 2 + (image[:, 1] > 0).long()


class T5(nn.Module):
    """An encoder of two layers and a decoder of two; all layers of the decoder read the encoder's last values. One table of
    words is read by encoder, decoder and head."""

    def __init__(self):
        super().__init__()
        from transformers import T5Config, T5ForConditionalGeneration
        self.net = T5ForConditionalGeneration(T5Config(
            vocab_size=WORDS, d_model=64, d_ff=128, d_kv=16, num_layers=2, num_heads=4, dropout_rate=0.0, use_cache=False))

    def forward(self, source, target):
        return self.net(input_ids=source, decoder_input_ids=target).logits.transpose(1, 2)

    @staticmethod
    def samples(count, generator):
        source, target = words(count, generator, 2 * TOKENS + 1).split((TOKENS, TOKENS + 1), 1)
        return source.contiguous(), target[:, :-1].contiguous(), target[:, 1:].contiguous()


class BertDrops(Bert):
    DROPS = True

    def __init__(self):
        super().__init__(0.1)


class Gpt2Drops(Gpt2):
    DROPS = True

    def __init__(self):
        super().__init__(0.1)


MODELS = {"resnet50": ResNet50, "bert": Bert, "bert-dropout": BertDrops, "gpt2": Gpt2, "gpt2-dropout": Gpt2Drops, "llama": Llama,
          "unet": UNet, "t5": T5}


@functools.lru_cache(maxsize=None)
def expected(kind):
    """(losses, final state) of one process."""
    if hasattr(kind, "DROPS"):
        return on_ranks(test_job_dropout.by_one_process, kind, ranks=1)[0]
    return job_cases.expected(kind, ((0, job_cases.BATCH),))


def compared(kind, layout, compiles):
    """(largest relative difference of losses, that of tensors of the final state) over all ranks."""
    losses, state = expected(kind)
    if not max(losses) - min(losses) > 0.05:
        raise RuntimeError(f"nothing was trained: {losses}")
    plan = job_cases.plan_of(kind, layout)
    of_losses = of_state = 0.0
    for result in on_ranks(functools.partial(test_job_dropout.by_job, compile=compiles), kind, plan, ranks=plan.ranks):
        if isinstance(result[0], str):
            raise RuntimeError(": ".join(result))
        own, tensors = result
        of_losses = max(of_losses, *(abs(a - b) / abs(a) for a, b in zip(losses, own, strict=True)))
        if list(state) != list(tensors):
            raise RuntimeError(f"the job's state has {list(tensors)}, and the module's {list(state)}")
        of_state = max(of_state, *(float(abs(tensor - tensors[name]).max() / max(abs(tensor).max(), 1e-3))
                                   for name, tensor in state.items()))
    return of_losses, of_state


def mask_costs():
    """Prints a table of dropout's times, the least of 15 each."""
    from agpcs._job.dropout import Masks, dropout
    print("| values | torch's dropout, ns an element | by the sample |\n| --- | --- | --- |")
    for shape in ((8, 128, 768), (8, 12, 128, 128), (2, 32, 64)):
        x = torch.randn(shape, requires_grad=True)
        rows = Masks(0, x.device).rows(("dropout",), 0, shape[0])[:, 0]
        found = []
        for drop in (lambda: nn.functional.dropout(x, 0.1), lambda: dropout(rows, 0, x, 0.1, True)):
            times = []
            for _ in range(15):
                begin = time.process_time()
                drop().sum().backward()
                times.append((time.process_time() - begin) / x.numel())
            found.append(f"{min(times) * 1e9:.1f}")
        print(f"| {' x '.join(map(str, shape))} | {' | '.join(found)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; by default all")
    parser.add_argument("--compile", action="store_true", help="stages are compiled by Inductor")
    parser.add_argument("--masks", action="store_true", help="prints what dropout by the sample costs, and ends")
    options = parser.parse_args()
    if options.masks:
        return mask_costs()
    models = options.models or list(MODELS)
    if unknown := [name for name in models if name not in MODELS]:
        parser.error(f"unknown model '{unknown[0]}'; models: {', '.join(MODELS)}")
    print("| model | plan | losses differ by | parameters differ by | verdict |\n| --- | --- | --- | --- | --- |", flush=True)
    failed = False
    for name in models:
        for plan, layout in list(PLANS.items())[:1 if options.compile else None]:
            begin = time.perf_counter()
            try:
                apart = compared(MODELS[name], layout, options.compile)
                verdict, shown = ("equal" if max(apart) < job_cases.TOLERANCE else "differs"), [f"{x:.1e}" for x in apart]
            except Exception as error:  # of a rank, or of planning
                verdict, shown = f"refused: {(str(error) or repr(error)).splitlines()[0]}", ["", ""]
            failed |= verdict != "equal"
            print(f"| {name} | {plan} | {' | '.join(shown)} | {verdict} |", flush=True)
            print(f"{name}, {plan}: {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    sys.exit(failed)


if __name__ == "__main__":
    main()
