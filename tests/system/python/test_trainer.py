#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.planned_trainer with shares 3 to 1: losses are those of a Trainer in one process, or of plain PyTorch."""

import sys
import tempfile
import types
import unittest

from cases import BATCH, Data, on_ranks, plan_of
from adapter_cases import EPOCHS, SAMPLES, SEED, alone, check_other_plan, check_sample, compare, launched, optimizer_of
from test_loops import IGNORED, Adapted, Tagger, by_token, made, size_of

try:
    import accelerate  # noqa: F401  (the Trainer needs it)
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
except ImportError as error:
    print(f"skipped: {sys.executable} has no {error.name} (PyPI: transformers, accelerate)")
    sys.exit(77)
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import IterableDataset

import agpcs
from agpcs.torch import planned_trainer


class Labeler(Tagger):
    """Its loss is the mean over a batch's labels. Label smoothing asks for `config`."""

    config = types.SimpleNamespace()

    def forward(self, tokens, labels=None):
        logits = super().forward(tokens)
        if labels is None:
            return {"logits": logits}
        return {"loss": cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED), "logits": logits}


class SummingLabeler(Labeler):
    """Its loss is the sum over a batch's labels, divided by what the Trainer counts, as in models of transformers."""

    def forward(self, tokens, labels=None, num_items_in_batch=None, **kwargs):
        outputs = super().forward(tokens, labels)
        if num_items_in_batch is not None and labels is not None:
            logits = outputs["logits"].flatten(0, 1)
            outputs["loss"] = cross_entropy(logits, labels.flatten(), reduction="sum") / num_items_in_batch
        return outputs


class TargetLabeler(Labeler):
    """What it is trained for is not called labels; its loss is the mean over samples."""

    def forward(self, tokens, targets):
        return super().forward(tokens, targets.clamp(min=0))


class NamedData(Data):
    """Samples as dicts. Those numbered in `unlabeled` have no label that counts."""

    def __init__(self, unlabeled=(), names=("tokens", "labels")):
        super().__init__(Tagger, SAMPLES)
        self.columns[1][list(unlabeled)] = IGNORED
        self.names = names

    def __getitem__(self, index):
        return dict(zip(self.names, super().__getitem__(index)))


class NamedLengths(NamedData):
    """With the column from which the Trainer infers lengths."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return {**sample, "input_ids": sample["tokens"]}


class Unnumbered(IterableDataset):
    def __iter__(self):
        return iter(NamedData())


class Logging(Trainer):
    """Overrides compute_loss, as users do."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


class Bypassing(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = model(**inputs)["loss"]
        self.accelerator.backward(loss)
        return loss.detach()


def summed(outputs, labels, num_items_in_batch):
    return cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), reduction="sum") / num_items_in_batch


def its_own(outputs, labels, num_items_in_batch):
    return outputs["loss"]


def trainer_of(rank, plan, kind, folder, base=Trainer, parts=1, data=None, **options):
    """A Trainer; by the plan on two ranks, or without one in one process."""
    if plan is not None:
        launched(rank, 2)
    func = options.pop("compute_loss_func", None)
    arguments = {"per_device_train_batch_size": BATCH // 2 // parts if plan else BATCH, "num_train_epochs": EPOCHS,
                 "gradient_accumulation_steps": parts if plan else 1, "use_cpu": True, "logging_steps": 1, "report_to": [],
                 "disable_tqdm": True, "save_strategy": "no", "lr_scheduler_type": "constant", "max_grad_norm": 0.0,
                 "data_seed": SEED, **options}
    module = made(kind)
    made_by = base if plan is None else planned_trainer(plan, base)
    return made_by(module, TrainingArguments(folder, **arguments), train_dataset=data or NamedData(),
                   eval_dataset=NamedData(), optimizers=(optimizer_of(module), None), compute_loss_func=func)


def outcome(trainer):
    """The losses that the Trainer logged, and what the steps left of the parameters."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], size_of(trainer.model)


def trained(rank, plan, kind, folder, options):
    trainer = trainer_of(rank, plan, kind, folder, **options)
    trainer.train()
    return outcome(trainer)


def resumed(rank, plan, folder):
    """Trains until a checkpoint within the second epoch, and goes on from there with other weights."""
    options = {"parts": 2, "save_strategy": "steps", "save_steps": 4, "eval_strategy": "epoch"}
    trainer_of(rank, plan, Labeler, folder, max_steps=4, **options).train()
    trainer = trainer_of(rank, plan, Labeler, folder, **options)
    with torch.no_grad():
        [parameter.zero_() for parameter in trainer.model.parameters()]
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-4")
    return outcome(trainer), [entry["epoch"] for entry in trainer.state.log_history if "eval_loss" in entry]


def language_model():
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=8))


def generated(rank, ranks, folder):
    """Trains a causal language model, in one process, or by a plan that was measured in the job, with other shares."""
    data = NamedData(names=("input_ids", "labels"))
    data.columns = [data.columns[0], torch.where(data.columns[1] == IGNORED, IGNORED, data.columns[0])]
    module, made_by = language_model(), Trainer
    if ranks > 1:
        launched(rank, ranks)
        sample = torch.utils.data.default_collate([data[0], data[1]])
        measured = agpcs.torch.autoplan(module, lambda model, batch: model(**batch).loss, sample, BATCH, seconds=5,
                                        cache=folder, quiet=True)
        layout = ",".join(f"{device}:{share}" for device, share in zip(measured.devices, (3, 1)))
        # Rank 0 has the files.
        plans = [agpcs.plan(measured.files[3], measured.files[1], layout=layout).text if rank == 0 else None]
        torch.distributed.broadcast_object_list(plans)
        made_by = planned_trainer(agpcs.Plan(plans[0]))
    arguments = TrainingArguments(folder, per_device_train_batch_size=BATCH // 2 // ranks, gradient_accumulation_steps=2,
                                  num_train_epochs=EPOCHS, learning_rate=0.5, optim="sgd", max_grad_norm=0.0, use_cpu=True,
                                  logging_steps=1, report_to=[], disable_tqdm=True, save_strategy="no",
                                  train_sampling_strategy="sequential")
    trainer = made_by(module, arguments, train_dataset=data)
    trainer.train()
    return outcome(trainer)


class Planned(unittest.TestCase):
    def setUp(self):
        self.plan = plan_of(Tagger, shares="3:1")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def check(self, kind, tolerance=1e-5, **options):
        """Compares with a Trainer in one process, which takes the samples in the same order."""
        options = {"train_sampling_strategy": "sequential", **options}
        first, second = on_ranks(trained, self.plan, kind, self.folder, options)
        self.assertEqual(first, second)
        (expected,) = on_ranks(trained, None, kind, self.folder, options, ranks=1)
        compare(self, first, expected, tolerance)

    def test_losses_are_those_of_plain_pytorch_in_shuffled_epochs(self):
        (expected,) = on_ranks(alone, Tagger, by_token, 0.05, ranks=1)
        for kind, parts in ((Labeler, 1), (SummingLabeler, 2)):
            first, second = on_ranks(trained, self.plan, kind, self.folder, {"parts": parts, "max_grad_norm": 0.05})
            self.assertEqual(first, second)
            compare(self, first, expected)

    def test_means_of_a_batch(self):
        self.check(Labeler)
        self.check(Labeler, parts=2)

    def test_sums_over_the_counted_labels(self):
        self.check(SummingLabeler)
        self.check(SummingLabeler, parts=2)

    def test_label_smoothing(self):
        self.check(Labeler, parts=2, label_smoothing_factor=0.1)
        self.check(SummingLabeler, parts=2, label_smoothing_factor=0.1)

    def test_mixed_precision_and_compiled_models(self):
        self.check(Labeler, tolerance=1e-2, bf16=True)
        self.check(SummingLabeler, parts=2, torch_compile=True, torch_compile_backend="eager")

    def test_losses_of_ones_own(self):
        self.check(Labeler, parts=2, compute_loss_func=summed)
        self.check(SummingLabeler, parts=2, base=Logging)
        data = NamedData(names=("tokens", "targets"))
        self.check(TargetLabeler, parts=2, data=data)
        self.check(TargetLabeler, parts=2, data=data, compute_loss_func=its_own)

    def test_ranks_without_a_label_that_counts(self):
        unlabeled = NamedData([6, 7, 12])  # rank 1's whole share of the first step, and a batch of rank 0 in the second
        self.check(SummingLabeler, data=unlabeled)
        results = on_ranks(trained, self.plan, Labeler, self.folder, {"data": unlabeled, "train_sampling_strategy": "sequential"})
        self.assertEqual(results[1], ("PlanMismatch", "no label counts in a batch of rank 1, and its loss is nan\n"
                                      "  hint: a model that takes num_items_in_batch, or samples with labels"))

    def test_a_causal_language_model(self):
        first, second = on_ranks(generated, 2, self.folder)
        self.assertEqual(first, second)
        (expected,) = on_ranks(generated, 1, self.folder, ranks=1)
        compare(self, first, expected)

    def test_goes_on_within_an_epoch(self):
        first, second = on_ranks(resumed, self.plan, self.folder)
        self.assertEqual(first, second)
        (expected,) = on_ranks(alone, Tagger, by_token, ranks=1)
        compare(self, first[0], expected)
        self.assertEqual(first[1], [1.0, 2.0])

    def test_refuses_what_cannot_be_planned(self):
        for options, words in (
                ({"auto_find_batch_size": True},
                 "auto_find_batch_size=True is not planned\n  hint: the plan has the shares that fit into memory"),
                ({"accelerator_config": {"split_batches": True}},
                 "split_batches=True is not planned\n  hint: accelerator_config={'split_batches': False}"),
                ({"accelerator_config": {"dispatch_batches": True}},
                 "dispatch_batches=True lets rank 0 cut batches into equal shares\n  hint: dispatch_batches=False"),
                ({"average_tokens_across_devices": False, "compute_loss_func": summed},
                 "average_tokens_across_devices=False with compute_loss_func is not planned\n"
                 "  hint: average_tokens_across_devices=True"),
                ({"per_device_train_batch_size": 8},
                 "per_device_train_batch_size=8, 2 ranks and gradient_accumulation_steps=1 make a batch of 16, and the plan "
                 "is for 8\n  hint: change one of them, or plan with batch=16"),
                ({"train_sampling_strategy": "batch_rebalance", "data": NamedLengths()},
                 "samples come in the order of a BatchRebalanceSampler, which a plan does not know\n"
                 "  hint: all samples, shuffled or in order: DataLoader(data, batch_size, shuffle=True)"),
                ({"train_sampling_strategy": "group_by_length", "data": NamedLengths()},
                 "samples come in the order of a LengthGroupedSampler, which a plan does not know\n"
                 "  hint: all samples, shuffled or in order: DataLoader(data, batch_size, shuffle=True)"),
                ({"data": Unnumbered(), "max_steps": 1, "accelerator_config": {"dispatch_batches": False}},
                 "an IterableDataset has no numbered samples that ranks could share\n"
                 "  hint: a dataset with __getitem__ and __len__"),
                ({"base": Bypassing}, "Bypassing trains without compute_loss, so its losses are not weighed\n"
                                      "  hint: a training_step that calls self.compute_loss")):
            for result in on_ranks(trained, self.plan, Labeler, self.folder, options):
                self.assertEqual(result, ("PlanMismatch", words))

    def test_the_hook_refuses_the_plan_of_another_model(self):
        check_other_plan(self, on_ranks(trained, plan_of(Adapted, shares="3:1"), Labeler, self.folder, {}))

    def test_the_sample_trains(self):
        check_sample(self, "with_trainer.py")


if __name__ == "__main__":
    unittest.main()
