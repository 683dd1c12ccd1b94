#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.torch.Job: plans of several stages on local ranks over Gloo train as one process does."""

import functools
import pathlib
import re
import unittest
import warnings

from cases import on_ranks
from job_cases import (BATCH, FOUR, NEWER, TWO, TWO_BY_TWO, Compares, Gated, Mlp, OneBert, OneResNet, Rows, Sloped, Tagger, Tied,
                       TiedHead, Transformer, UNet, batches, captured, expected, exported, job_of, operators_of, optimizer_of,
                       plan_of, trained_by_job)

import torch
import torch.distributed as dist
from torch import nn

import agpcs
import agpcs.torch
from agpcs._job.loss import MeanLoss

OTHER_CLUSTER = pathlib.Path(__file__).resolve().parents[4] / "samples/clusters/local-2.yaml"


class InPlace(Mlp):
    def forward(self, x):
        x = self.layers[0](x)
        x[:, :4].mul_(2)
        return self.layers[1:](x)


class Dropping(Mlp):
    def forward(self, x):
        return self.layers(nn.functional.dropout(x, 0.5))


def first_step(rank, kind, plans, batch=BATCH, change=None, **options):
    """Begins a job and makes a step; the tests look at errors and warnings."""
    dist.barrier()  # all ranks are connected before one of them fails
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        job = job_of(kind, plans[rank], **options)
        batch = kind.samples(batch, torch.Generator().manual_seed(1))
        job.step(batch if change is None else change(batch))
    return "ok", [str(warning.message) for warning in caught if "random" in str(warning.message)]


def goes_on(rank, kind, plan, other):
    """Losses of a job, and those of one that goes on from its state after two steps, by another plan."""
    job = job_of(kind, plan)
    first = [job.step(batch).item() for batch in batches(kind, 2)]
    state = job.state_dict()
    third = job.step(batches(kind, 3)[2]).item()
    second = job_of(kind, other)
    second.load_state_dict(state)
    try:
        second.load_state_dict({**state, "more": torch.zeros(1)})
    except agpcs.PlanMismatch as error:
        said = str(error)
    return first, third, second.step(batches(kind, 3)[2]).item(), said


def begins_apart(rank, plan):
    """What each rank has of a parameter that does not train, which was made by other random numbers on each."""
    torch.manual_seed(rank)
    model = Sloped()
    nn.init.uniform_(model.slopes)
    job_of(Sloped, plan, model)
    return model.slopes.tolist()


def loads_tied(rank, plan):
    """The module's names and ties on this rank, and what a job says of a state whose tied names differ."""
    job = job_of(Tied, plan)
    job.step(batches(Tied, 1)[0])
    state = {name: tensor.clone() for name, tensor in job.state_dict().items()}
    job.load_state_dict(state)
    same = all(torch.equal(tensor, state[name]) for name, tensor in job.state_dict().items())
    try:
        job.load_state_dict({**state, "layers.2.weight": state["layers.2.weight"] + 1, "layers.0.bias": torch.zeros(16)})
    except agpcs.PlanMismatch as error:
        said = str(error)
    kept = torch.equal(job.state_dict()["layers.0.bias"], state["layers.0.bias"])
    return list(state), same, kept, said


class Trains(Compares):
    """Losses of all steps and final parameters equal those of one process."""

    def test_an_mlp_in_two_and_four_stages(self):
        first, second = self.compare(Mlp, plan_of(Mlp, TWO), exports=True)
        self.assertTrue(first and second)
        self.assertFalse(set(first) & set(second), "a parameter is on both ranks")
        self.compare(Mlp, plan_of(Mlp, FOUR, 10))

    def test_stages_with_other_numbers_in_flight_than_the_textbooks(self):
        for numbers, recompute in (((3, 1), "s0"), ((1, 1), ""), ((5, 3, 3, 1), ""), ((2, 2, 1, 1), "s1 s2")):
            devices = ("a/0", "b/0") if len(numbers) == 2 else ("a/0", "a/1", "b/0", "b/1")
            layout = "|".join(f"{device},in-flight={number}" for device, number in zip(devices, numbers))
            with self.subTest(layout=layout):
                plan = plan_of(Mlp, layout, 5, recompute=recompute)
                firsts = [section.split("  backward")[0].count("\n  forward") for section in plan.text.split("\nprogram ")[1:]]
                self.assertEqual(tuple(firsts), numbers)
                self.compare(Mlp, plan)

    def test_parted_backward_passes(self):
        # Matrix products, convolutions, and a table that is the head, too.
        for kind, layout, micro_batches in ((Mlp, TWO, 5), (Mlp, FOUR, 10), (Transformer, FOUR, 5), (TiedHead, TWO_BY_TWO, 4),
                                            (UNet, TWO, 5)):
            with self.subTest(kind=kind.__name__, layout=layout):
                plan = plan_of(kind, layout + "|schedule=zero-bubble", micro_batches)
                self.assertIn("schedule=zero-bubble", plan.text)
                self.assertIn("\n  backward_weight mb=", plan.text)
                self.compare(kind, plan)

    def test_parted_backward_passes_in_stages_with_other_numbers_in_flight(self):
        self.compare(Mlp, plan_of(Mlp, "a/0,in-flight=5|a/1,in-flight=3|b/0,in-flight=3|b/1,in-flight=1|schedule=zero-bubble", 5))

    def test_an_mlp_on_uneven_replicas(self):
        self.compare(Mlp, plan_of(Mlp, TWO_BY_TWO, 1))
        plan = plan_of(Mlp, TWO_BY_TWO)  # micro-batches of 3, 3, 2 and 2
        self.assertEqual([stage.samples for stage in plan.stages], [(2, 1), (1, 2)])
        self.assertEqual(plan.shares, (6, 4, 4, 6))
        self.compare(Mlp, plan)

    def test_a_transformer(self):
        for layout, recompute in ((TWO, "s0 s1"), (FOUR, ""), (TWO_BY_TWO, "s1")):
            with self.subTest(layout=layout):
                self.compare(Transformer, plan_of(Transformer, layout, recompute=recompute))

    def test_operators_that_the_exporter_took_apart(self):
        for layout in (TWO, FOUR):
            with self.subTest(layout=layout):
                plan = plan_of(Gated, layout)
                self.assertIn("\n  fused RMSNormalization\n  fused Swish\n", plan.text)
                self.compare(Gated, plan)

    def test_labels_of_which_some_do_not_count(self):
        self.compare(Tagger, plan_of(Tagger, TWO_BY_TWO))

    def test_a_table_that_is_the_head_too(self):
        for layout, recompute in ((TWO, ""), (FOUR, ""), (TWO_BY_TWO, "s1")):
            with self.subTest(layout=layout):
                plan = plan_of(TiedHead, layout, recompute=recompute)
                last = f"s{len(plan.stages) - 1}"
                shared, = (group for group in plan.groups if group.shared_with)
                self.assertEqual((shared.parameters, shared.stage, shared.shared_with), (("table.weight",), "s0", (last,)))
                self.assertEqual(shared.ranks, tuple(sorted(plan.stages[0].ranks + plan.stages[-1].ranks)))
                lives = self.compare(TiedHead, plan)
                self.assertEqual([rank for rank, live in enumerate(lives) if "table.weight" in live], list(shared.ranks))

    def test_a_unet_whose_skips_pass_stages_by(self):
        for layout, recompute in ((TWO, ""), (FOUR, "s0 s2"), (TWO_BY_TWO, "")):
            with self.subTest(layout=layout):
                plan = plan_of(UNet, layout, recompute=recompute)
                self.assertTrue("from=s0 to=s3" in plan.text or layout != FOUR)
                self.compare(UNet, plan)

    def test_a_bert_whose_mask_goes_to_each_stage(self):
        self.compare(OneBert, plan_of(OneBert, TWO_BY_TWO))

    def test_a_parameter_that_does_not_train_in_two_stages(self):
        lives = self.compare(Sloped, plan_of(Sloped, TWO))
        self.assertEqual([[name for name in live if "." not in name] for live in lives], [["slopes"]] * 2)
        first, second = on_ranks(begins_apart, plan_of(Sloped, TWO))
        self.assertEqual(first, second)

    def test_gradients_that_travel_rounded(self):
        self.assertLess(self.apart(Mlp, plan_of(Mlp, TWO_BY_TWO, wire_type="fp16")), 2e-3)

    def apart(self, kind, plan):
        losses, _ = expected(kind, ((0, BATCH),))
        results = on_ranks(trained_by_job, kind, plan, False, ranks=plan.ranks)
        apart = max(abs(a - b) for a, b in zip(losses, results[0][0]))
        self.assertGreater(apart, 1e-7, "nothing was rounded")
        return apart

    def test_batch_norm_takes_each_micro_batch_by_itself_and_counts_recomputed_ones_once(self):
        self.compare(OneResNet, plan_of(OneResNet, TWO, recompute="s0"), ((0, 3), (3, 6), (6, 8), (8, 10)))

    def test_batch_norm_takes_each_replica_by_itself(self):
        self.compare(OneResNet, plan_of(OneResNet, "a/0:1,a/1:1|b/0:1,b/1:1", 1), ((0, 5), (5, 10)), states=False)

    def test_a_job_goes_on_from_the_state_of_another_plan(self):
        for _, third, again, said in on_ranks(goes_on, Mlp, plan_of(Mlp, TWO), plan_of(Mlp, TWO, 2, recompute="s0")):
            self.assertLess(abs(third - again), 1e-5, "the loss of a step is that before its update")
            self.assertEqual(said, "the state is of another module: 'more' differs")

    def test_tied_parameters_have_all_their_names(self):
        self.compare(Tied, plan_of(Tied, TWO))
        for names, same, kept, said in on_ranks(loads_tied, plan_of(Tied, TWO)):
            self.assertEqual(names, list(Tied().state_dict()))
            self.assertTrue(same and kept)
            self.assertEqual(said, "'layers.0.weight' and 'layers.2.weight' are one tensor of the module, and two different "
                                   "ones of the state\n  hint: a state of a module in which they are tied")


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Refuses(unittest.TestCase):
    def refused(self, kind, *plans, **options):
        """(type, text) of the error on each rank."""
        captured(kind)
        results = on_ranks(functools.partial(first_step, **options), kind, plans, ranks=len(plans))
        for result in results:
            self.assertNotEqual(result[0], "ok", result)
        return results

    def assert_all(self, results, kind, text):
        for result in results:
            self.assertEqual(result, (kind, text))

    def test_another_number_of_ranks(self):
        plan = plan_of(Mlp, TWO)
        self.assert_all(self.refused(Mlp, plan, plan, plan), "PlanMismatch",
                        "the plan of model has 2 ranks, and the job has 3\n"
                        "  hint: torchrun --nproc-per-node and --nnodes that make 2, or a plan for 3 devices")

    def test_another_module_than_the_plans(self):
        plan = plan_of(Mlp, TWO)
        for kind, text in self.refused(Dropping, plan, plan):
            self.assertEqual(kind, "PlanMismatch")
            self.assertRegex(text, "^the plan is not for this module: .* this model is 'model' \\(sha256:[0-9a-f]{64}\\)")
            self.assertTrue(text.endswith("give Job the same input_names, output_names and options"), text)

    def test_ranks_that_have_other_plans(self):
        first, second = self.refused(Mlp, plan_of(Mlp, TWO), plan_of(Mlp, TWO, 2))
        text = "rank {} has another plan than this rank\n  hint: give every rank the same file"
        self.assertEqual((first, second), (("PlanMismatch", text.format(1)), ("PlanMismatch", text.format(0))))

    def test_a_rank_that_cannot_begin_is_named_on_the_others(self):
        first, second = self.refused(Mlp, plan_of(Mlp, TWO), "nowhere.plan")
        self.assertEqual(second[0], "FileNotFoundError")
        self.assertEqual(first, ("Error", f"rank 1 cannot begin: FileNotFoundError: {second[1]}"))

    def test_a_batch_of_another_size(self):
        plan = plan_of(Mlp, TWO)
        self.assert_all(self.refused(Mlp, plan, plan, batch=8), "PlanMismatch",
                        "input 0 has 8 samples; the plan's batch has 10\n"
                        "  hint: every rank gives the whole batch (drop_last=True)")

    def test_inputs_of_another_form(self):
        plan = plan_of(Mlp, TWO)
        self.assert_all(self.refused(Mlp, plan, plan, change=lambda batch: (batch[0][:, :8], batch[1])), "PlanMismatch",
                        "input 0 is a tensor of float32 and shape 10x8, and in sample_batch it was a tensor of float32 "
                        "and shape s77x16")
        self.assert_all(self.refused(Mlp, plan, plan, change=lambda batch: (batch[0], batch[1][:4])), "PlanMismatch",
                        "the targets have a tensor of int64 and shape 4; the plan's batch has 10 samples\n"
                        "  hint: every rank gives the whole batch (drop_last=True)")
        self.assert_all(self.refused(Mlp, plan, plan, change=lambda batch: (batch[0], *batch)), "UsageError",
                        "the batch has other inputs than sample_batch: 2 instead of 1")
        self.assert_all(self.refused(Mlp, plan, plan, change=lambda batch: batch[0]), "UsageError",
                        "a batch is a tuple or list of the module's inputs, in the order of its arguments, and then the "
                        "targets; this is a tensor of float32 and shape 10x16")

    def test_options_that_nobody_knows(self):
        plan = plan_of(Mlp, TWO)
        self.assert_all(self.refused(Mlp, plan, plan, exports=True, dropuot="by-sample"), "UsageError",
                        "unknown option 'dropuot'\n  hint: options that agpcs.torch does not know go to torch.onnx.export, "
                        "which has none of that name")
        self.assert_all(self.refused(Mlp, plan, plan, on_drift="sya"), "UsageError",
                        "on_drift is 'sya'; it is 'say', None or a function of the changes")

    def test_another_cluster_file(self):
        plan = plan_of(Mlp, TWO)
        self.assert_all(self.refused(Mlp, plan, plan, cluster="nowhere.yaml"), "InvalidInput",
                        "nowhere.yaml: error: cannot be read: No such file or directory")
        for kind, text in self.refused(Mlp, plan, plan, cluster=str(OTHER_CLUSTER)):
            self.assertEqual(kind, "PlanMismatch")
            self.assertRegex(text, "^the plan is not for this cluster: the plan is for cluster 'cluster' ")

    def test_a_cut_inside_a_node(self):
        plan = plan_of(Rows, TWO)
        names = [operator["name"] for operator in operators_of(plan, exported(Rows))]
        cut = names.index("layers.4/linear_2")  # its addition, after the product
        runs = iter((names[:cut], names[cut:]))

        def run(_):
            of_stage = next(runs)
            return f"operators={len(of_stage)}\n  operators {of_stage[0]} .. {of_stage[-1]} count={len(of_stage)}\n"

        plan = agpcs.Plan(re.sub(r"operators=.*\n(  operators .*\n)+", run, plan.text))
        for kind, text in self.refused(Rows, plan, plan):
            self.assertEqual(kind, "PlanMismatch")
            self.assertRegex(text, r"^the plan cuts inside 'linear_2' \(linear.default\) in layers.4 .*: its operator "
                                   r"'layers.4/Transpose_\d+' is in s0, 'layers.4/linear_2' in s1\n"
                                   "  hint: agpcs.torch.Job cuts between the nodes of torch.export's graph, as do plans of "
                                   "what agpcs.torch.export writes; plan that$")

    def test_a_change_in_place_of_a_part(self):
        plan = plan_of(InPlace, TWO)
        for kind, text in self.refused(InPlace, plan, plan):
            self.assertEqual(kind, "UsageError")
            self.assertRegex(text, "^'mul_' \\(mul_.Tensor\\) .*changes a tensor in place that has other names, which "
                                   "agpcs.torch.Job does not follow\n  hint: write it without the change in place$")

    def test_a_loss_that_it_does_not_know(self):
        plan = plan_of(Mlp, TWO, ignore_index=-100)
        for kind, text in self.refused(Mlp, plan, plan, change=lambda batch: (batch[0], [batch[1], batch[1]])):
            self.assertIn("the plan's loss counts labels (ignore-index), and the targets have 2 tensors of whole numbers\n"
                          "  hint: one tensor of labels", text)

    def test_says_that_dropout_is_not_that_of_one_process(self):
        plan = plan_of(Dropping, TWO)
        for kind, said in on_ranks(first_step, Dropping, [plan, plan]):
            self.assertEqual(kind, "ok", said)
            self.assertEqual(len(said), 1)
            self.assertRegex(said[0], "^'dropout' \\(dropout.default\\) .*draws random numbers: other ones than one process")


@unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
class Means(unittest.TestCase):
    def said(self, loss_fn, **of_plan):
        loss = MeanLoss(loss_fn, torch.utils._pytree.tree_structure(torch.ones(1)), of_plan, BATCH, torch.device("cpu"))
        generator = torch.Generator().manual_seed(1)
        labels, outputs = Tagger.samples(BATCH, generator)[1], torch.randn(BATCH, 4, 6, generator=generator)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loss.begin(labels.clamp(min=-100 if of_plan else 0))
            loss.part([outputs], 0, BATCH)
        return [str(warning.message) for warning in caught]

    def test_warns_of_a_loss_that_is_no_mean(self):
        cross_entropy = nn.functional.cross_entropy
        self.assertEqual(self.said(cross_entropy), [])
        self.assertEqual(self.said(cross_entropy, ignore_index=-100), [])
        said, = self.said(functools.partial(cross_entropy, reduction="sum"))
        self.assertRegex(said, "^loss_fn gives .* for 10 samples, and .* is the mean of what it gives for their halves: steps are "
                               "not those of one process\n  hint: the mean over the samples$")
        said, = self.said(lambda outputs, labels: cross_entropy(outputs[..., :-1], labels[:, 1:]), ignore_index=-100)
        self.assertRegex(said, "hint: the mean over the labels that are not -100$")

    def test_refuses_shifted_labels_of_which_some_do_not_count(self):
        with self.assertRaises(agpcs.UsageError) as raised:
            self.said(nn.functional.cross_entropy, ignore_index=-100, next_token="tokens")
        self.assertIn("the targets have labels of -100, which do not count, and the plan's labels are the tokens that follow",
                      str(raised.exception))


class Older(unittest.TestCase):
    @unittest.skipIf(NEWER, "PyTorch is 2.6 or newer")
    def test_an_older_pytorch_is_refused(self):
        with self.assertRaises(agpcs.Error) as raised:
            agpcs.torch.Job(Mlp(), "model.plan", nn.functional.cross_entropy, optimizer_of, [])
        self.assertEqual(str(raised.exception), "agpcs.torch.Job needs PyTorch 2.6 or newer, whose exporter it uses; this is "
                                                f"{torch.__version__}")

    @unittest.skipUnless(NEWER, "PyTorch is older than 2.6")
    def test_a_process_without_a_process_group_is_refused(self):
        with self.assertRaises(agpcs.UsageError) as raised:
            agpcs.torch.Job(Mlp(), "model.plan", nn.functional.cross_entropy, optimizer_of, [])
        self.assertIn("agpcs.torch.Job needs torch.distributed", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
