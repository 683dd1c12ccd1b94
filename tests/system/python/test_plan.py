#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agpcs.plan and agpcs.load, without PyTorch. AGPCS_BIN_DIR has the commands."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from unittest import mock

import agpcs
from agpcs._new_file import replace, write

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "samples/models/small_cnn.onnxtxt"
RESNET = ROOT / "samples/models/resnet50.onnx"
CLUSTER = ROOT / "samples/clusters/local-2.yaml"
MIXED = ROOT / "samples/clusters/v100x4-rtx3090x4.yaml"


def quick(**options):
    return agpcs.plan(MODEL, CLUSTER, **{"refiner": "none", **options})


def cpu_ticks(process):
    """User time of a process, in hundredths of a second."""
    return int(pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11])


class NewFile(unittest.TestCase):
    """How plans, profiles, models and traces are written."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "file"

    def test_has_the_mode_of_an_open_one_or_the_one_it_had(self):
        write(self.path, "new\n")
        (self.folder / "opened").write_text("")
        self.assertEqual(self.path.stat().st_mode, (self.folder / "opened").stat().st_mode)
        self.path.chmod(0o600)
        write(self.path, b"newer\n")
        self.assertEqual((self.path.stat().st_mode & 0o777, self.path.read_text()), (0o600, "newer\n"))
        self.assertEqual(sorted(each.name for each in self.folder.iterdir()), ["file", "opened"])

    def test_goes_through_no_link_that_others_planted_and_replaces_what_a_link_names(self):
        kept = self.folder / "kept"
        kept.write_text("kept")
        for name in ("file.partial", "file.00000000.tmp"):
            (self.folder / name).symlink_to(kept)
        with mock.patch("secrets.token_hex", return_value="00000000"), self.assertRaises(FileExistsError) as raised:
            write(self.path, "new")
        self.assertEqual(raised.exception.filename, str(self.path))
        write(self.path, "new")
        self.assertEqual(kept.read_text(), "kept")
        (self.folder / "link").symlink_to(self.path)
        write(self.folder / "link", "newer")
        self.assertTrue((self.folder / "link").is_symlink())
        self.assertEqual(self.path.read_text(), "newer")

    def test_takes_the_place_of_a_link_where_no_user_named_it(self):
        kept = self.folder / "kept"
        kept.write_text("kept")
        self.path.symlink_to(kept)
        replace(self.path, "new")
        self.assertFalse(self.path.is_symlink())
        self.assertEqual((self.path.read_text(), kept.read_text()), ("new", "kept"))

    def test_takes_the_place_of_a_link_to_nowhere(self):
        self.path.symlink_to(self.folder / "nowhere")
        write(self.path, "new")
        self.assertFalse(self.path.is_symlink())
        self.assertEqual(list(self.folder.iterdir()), [self.path])

    def test_that_cannot_be_written_is_as_it_was(self):
        self.path.write_text("old")
        with mock.patch("os.replace", side_effect=OSError("no room")), self.assertRaisesRegex(OSError, "no room"):
            write(self.path, "new")
        self.assertEqual([each.name for each in self.folder.iterdir()], ["file"])
        self.assertEqual(self.path.read_text(), "old")
        with self.assertRaisesRegex(FileNotFoundError, "nowhere/file"):
            write(self.folder / "nowhere" / "file", "new")

    def test_is_no_file_where_a_pipe_is_named(self):
        os.mkfifo(self.path)
        reader = threading.Thread(target=lambda: read.append(self.path.read_text()))
        read = []
        reader.start()
        write(self.path, "new")
        reader.join()
        self.assertEqual(read, ["new"])

    def test_is_no_file_where_an_open_pipe_or_file_without_a_name_is_named(self):
        for what in ("pipe", "file"):  # as behind /dev/stdout
            with self.subTest(what):
                if what == "pipe":
                    reader, writer = os.pipe()
                else:
                    reader = writer = os.open(self.path, os.O_RDWR | os.O_CREAT)
                    self.path.unlink()
                self.addCleanup(os.close, reader)
                write(f"/proc/self/fd/{writer}", "new")
                self.assertEqual(os.read(reader, 100), b"new")
                if writer != reader:
                    os.close(writer)
                self.assertEqual(list(self.folder.iterdir()), [])


class Plan(unittest.TestCase):
    def test_is_what_agpcs_compile_writes(self):
        options = {"--budget": "50", "--seed": "3", "--batch": "64", "--seeder": "metis", "--micro-batches": "4"}
        command = [f"{os.environ['AGPCS_BIN_DIR']}/agpcs-compile", MODEL, CLUSTER, "-q", "-o", "-"]
        text = subprocess.run(command + [word for option in options.items() for word in option], check=True,
                              capture_output=True, text=True).stdout
        plan = agpcs.plan(MODEL, CLUSTER, budget=50, seed=3, batch=64, seeders=["metis"], micro_batches=4)
        self.assertEqual(plan.text, text)
        self.assertEqual((plan.batch, plan.micro_batches), (64, 4))

    def test_activations_lie_in_hosts_unless_they_are_left_out(self):
        layers = "".join(f"  w{i} = ConstantOfShape (square)\n  h{i} = MatMul ({f'x{i - 1}' if i > 1 else 'x'}, w{i})\n"
                         f"  x{i} = Relu (h{i})\n" for i in range(1, 6))
        with tempfile.TemporaryDirectory() as folder:
            model, cluster = pathlib.Path(folder, "deep.onnxtxt"), pathlib.Path(folder, "cluster.yaml")
            model.write_text('<ir_version: 8, opset_import: ["": 17]>\ndeep (float[n, 1024] x) => (float[n, 1024] logits)\n{\n'
                             f"  square = Constant <value_ints = [1024, 1024]> ()\n{layers}  logits = MatMul (x5, w5)\n}}\n")
            cluster.write_text("device_kinds: {gpu: {memory: 540MB, memory_bandwidth: 400GB/s, peak: {fp32: 5TFLOPS}, "
                               "launch_overhead: 0, host_link: {bandwidth: 12GB/s}}}\n"
                               "hosts: [{name: a, devices: {kind: gpu}, memory: 4GB}]\ntraining: {batch: 16384, optimizer: sgd}\n")
            plans = [agpcs.plan(model, cluster, micro_batches=1, bound=False, without=without) for without in (["activations"], [])]
        self.assertEqual([plan.stages[0].activations_in for plan in plans], ["device", "host"])
        self.assertLess(plans[1].estimates.step_seconds, plans[0].estimates.step_seconds)

    def test_groups_shares_and_estimates_of_unequal_devices(self):
        plan = agpcs.plan(RESNET, MIXED, data_parallel=True)
        self.assertEqual(plan.ranks, 8)
        self.assertEqual(sum(plan.shares), 512)
        self.assertGreater(plan.shares[plan.devices.index("ampere/0")], plan.shares[plan.devices.index("volta/0")])
        names = [name for group in plan.groups for name in group.parameters]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(len(names), 161)
        self.assertEqual(sum(sum(group.elements) for group in plan.groups), 25_557_032)
        self.assertEqual(plan.groups[0].ranks, tuple(range(8)))
        self.assertIn("fc.weight", plan.groups[0].parameters)  # backward order
        self.assertIn("conv1.weight", plan.groups[-1].parameters)
        estimates = plan.estimates
        self.assertAlmostEqual(estimates.samples_per_second, 512 / estimates.step_seconds,
                               delta=0.01 * estimates.samples_per_second)
        self.assertEqual(set(estimates.peak_memory), set(plan.devices))
        self.assertGreater(min(estimates.bytes_sent.values()), 1e6)

    def test_says_how_far_it_is_from_the_best_possible(self):
        bound = agpcs.plan(RESNET, MIXED, data_parallel=True).bound
        self.assertEqual(str(bound), "within 1.6% of the best without a pipeline, 7.8% of any plan without interleaved stages")
        self.assertEqual((bound.reason, bound.one_stage_reason), ("pipeline", "work"))
        self.assertLess(bound.seconds, bound.one_stage_seconds)
        self.assertLess(bound.one_stage_gap, bound.gap)
        self.assertIsNone(quick(bound=False).bound)

    def test_groups_are_in_the_order_of_the_all_reduces(self):
        plan = quick(layout="local/0,local/1", bucket_bytes=4096)
        order = [line.split()[1] for line in plan.text.splitlines() if line.startswith("  all_reduce")]
        self.assertGreater(len(order), 1)
        self.assertEqual([group.name for group in plan.groups], order)

    def test_frozen_weights_are_in_no_group(self):
        plan = quick(freeze=["conv1_*"])
        self.assertEqual(plan.frozen, ("conv1_bias", "conv1_weight"))
        self.assertEqual(quick().frozen, ())
        names = {name for group in plan.groups for name in group.parameters}
        self.assertEqual(names, {"conv2_weight", "conv2_bias", "fc_weight", "fc_bias"})
        with self.assertRaisesRegex(agpcs.UsageError, "^freeze is the text 'fc_bias'\n"):
            quick(freeze="fc_bias")
        with self.assertRaisesRegex(agpcs.InvalidInput, "did you mean 'fc_bias'"):
            quick(freeze=["fc_bais"])

    def test_stages_of_a_pipeline_have_groups_and_shares_of_their_own(self):
        plan = quick(layout="local/0|local/1", micro_batches=4)
        self.assertEqual([stage.ranks for stage in plan.stages], [(0,), (1,)])
        self.assertEqual(plan.shares, (32, 32))
        self.assertEqual({group.ranks for group in plan.groups}, {(0,), (1,)})

    def test_devices_without_work_may_have_idle_ranks(self):
        self.assertEqual(quick(layout="local/1").ranks, 1)
        self.assertEqual([stage.ranks for stage in quick(layout="local/1", idle_ranks=True).stages], [(1,), (0,)])

    def test_plans_for_some_devices_of_the_cluster_are_for_its_whole_file(self):
        plan = quick(devices=["local/1"])
        self.assertEqual((plan.devices, plan.shares), (("local/1",), (32,)))
        plan._command("check", [plan, "--model", str(MODEL), "--cluster", str(CLUSTER)])
        self.assertEqual(quick(devices=["local/1"], idle_ranks=True).ranks, 1)
        with self.assertRaisesRegex(agpcs.UsageError, "^devices has no device to plan for\n  hint: "):
            quick(devices=[])
        with self.assertRaisesRegex(agpcs.UsageError, "^unknown device 'local/2' is to be planned for\n  hint: did you mean 'local/"):
            quick(devices=["local/0", "local/2"])

    def test_saves_what_load_reads_and_agpcs_plan_checks(self):
        plan = quick()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.plan"
            plan.save(path)
            self.assertEqual(path.read_bytes().decode(), plan.text)
            self.assertEqual(agpcs.load(path), plan)
            subprocess.run([f"{os.environ['AGPCS_BIN_DIR']}/agpcs-plan", "check", path], check=True,
                           capture_output=True)

    def test_says_what_gradients_travel_in(self):
        self.assertIsNone(quick().wire_type)
        plan = quick(layout="local/0,local/1", wire_type="bf16")
        self.assertEqual(plan.wire_type, "bf16")
        self.assertIn(" wire-type=bf16\n", plan.text)

    def test_takes_a_model_from_memory(self):
        path = ROOT / "samples/models/resnet50.onnx"
        options = {"data_parallel": True, "batch": 16, "cluster": CLUSTER}
        of_bytes, of_file = (agpcs.plan(model, **options).text for model in (path.read_bytes(), path))
        self.assertIn("\nmodel name=model dims=", of_bytes)
        self.assertEqual(of_bytes.replace("model name=model ", "model name=resnet50 "), of_file)

    def test_wrong_inputs_raise_with_the_compilers_message(self):
        with tempfile.TemporaryDirectory() as folder:
            cluster = pathlib.Path(folder) / "cluster.yaml"
            cluster.write_text(CLUSTER.read_text().replace("count: 2", "cout: 2"))
            with self.assertRaisesRegex(agpcs.InvalidInput, r"cluster.yaml:\d+:\d+: error: .*'cout'(.|\n)*hint: did you"):
                agpcs.plan(MODEL, cluster)
            plan = pathlib.Path(folder) / "wrong.plan"
            plan.write_text(quick().text.replace("backward mb=0", "backwart mb=0"))
            with self.assertRaisesRegex(agpcs.InvalidInput, r"wrong.plan:\d+:(.|\n)*backwart"):
                agpcs.load(plan)
        with self.assertRaisesRegex(agpcs.InvalidInput, "missing.onnx"):
            agpcs.plan("missing.onnx", CLUSTER)
        with self.assertRaisesRegex(agpcs.InvalidInput, "model.onnx"):
            agpcs.plan(b"no model", CLUSTER)
        with self.assertRaises(FileNotFoundError):
            agpcs.load("missing.plan")
        with self.assertRaisesRegex(agpcs.InvalidInput, "^/dev/zero: error: it is a character device, not a plan\n"):
            agpcs.load("/dev/zero")

    def test_explains_compares_and_shows_itself(self):
        plan, other = quick(layout="local/0:3,local/1:1"), quick(layout="local/0,local/1")
        for made in (plan, agpcs.plan(RESNET.read_bytes(), MIXED, data_parallel=True)):
            self.assertIn("critical path", made.explain())
            self.assertIn("<svg", made.report(against=made))
            self.assertIn("&lt;svg", made._repr_html_())
        self.assertIn("samples 24,8 -> 16x2", plan.compare(other))
        self.assertIn("same", plan.compare(plan))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "net.plan")
            plan.save(path)
            loaded = agpcs.load(path)
            self.assertEqual(loaded.compare(path), plan.compare(plan))
        self.assertRegex(loaded._repr_html_(), r"^<pre>(.|\n)*local/0(.|\n)*</pre>$")
        self.assertEqual(loaded.explain(MODEL, CLUSTER, top=3), plan.explain(top=3))
        for wrong, error, words in (((), agpcs.UsageError, "plan came from a file"),
                                    ((RESNET, CLUSTER), agpcs.InvalidInput, "^plan: error: the plan is for model 'small_cnn'"),
                                    ((MODEL, "no.yaml"), agpcs.InvalidInput, "no.yaml")):
            with self.assertRaisesRegex(error, words):
                loaded.explain(*wrong)
        with self.assertRaisesRegex(agpcs.UsageError, "^--top: '0' is not a whole number from 1 to 2147483647\n"):
            plan.explain(top=0)

    def test_wrong_options_raise_usage_errors(self):
        for words, options in (("did you mean 'dqn'", {"refiner": "dqm"}), ("unknown seeder 'metic'", {"seeders": ["metic"]}),
                               ("unknown loss 'mae'", {"loss": "mae"}), ("batch is 0", {"batch": 0}),
                               ("--loss mse has no labels", {"loss": "mse", "ignore_index": 0}),
                               ("class_axis is 2, not 1 or -1", {"class_axis": 2}),
                               ("^batch is \"64\", not a whole number$", {"batch": "64"}),
                               ("^dims is .*, not names with numbers$", {"dims": {"n": 1.5}}),
                               ("^label_smoothing is \"much\", not a number$", {"label_smoothing": "much"}),
                               ("^batch is 64.5\n  hint: it is a text or a whole number", {"batch": 64.5}),
                               ("^dims is \\['n'\\]\n  hint: it maps names to numbers: dims=", {"dims": ["n"]}),
                               ("^slower is nan for 'local/0', not a finite number$", {"slower": {"local/0": float("nan")}}),
                               ("^slower is '2' for 'local/0', not a finite number$", {"slower": {"local/0": "2"}}),
                               ("^layout is ''\n", {"layout": ""}), ("^policy is 3, not a text$", {"policy": 3}),
                               ("^seeders is the text 'metis'\n", {"seeders": "metis"}),
                               ("threads is -1", {"threads": -1}), ("seed is -1", {"seed": -1}),
                               ("unknown precision 'fp8'", {"precision": "fp8"}),
                               ("unknown wire type 'fp8'", {"wire_type": "fp8"}),
                               ("unknown all-reduce 'rings'", {"all_reduce": "rings"}),
                               ("there is no device 'local/7'", {"layout": "local/7"}),
                               ("layout and refiner", {"layout": "local/0", "refiner": "greedy"}),
                               ("layout and --budget", {"layout": "local/0", "budget": 5}),
                               ("data_parallel and seeders", {"data_parallel": True, "seeders": ["metis"]}),
                               ("layout or a refiner are both", {"data_parallel": True, "refiner": "greedy"})):
            with self.assertRaisesRegex(agpcs.UsageError, words):
                agpcs.plan(MODEL, CLUSTER, **options)

    def test_a_model_that_fits_nowhere_is_infeasible(self):
        with self.assertRaisesRegex(agpcs.Infeasible, "local/0 lacks"):
            agpcs.plan(RESNET, CLUSTER, batch=4096, layout="local/0", refiner="none", micro_batches=1)

    def test_python_goes_on_while_it_plans(self):
        turns, done = 0, threading.Event()

        def work():
            agpcs.plan(RESNET, MIXED, data_parallel=True)
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        while not done.is_set():
            turns += 1
            time.sleep(0)  # lets the other thread have Python
        thread.join()
        self.assertGreater(turns, 100)

    def test_control_c_ends_the_search(self):
        script = textwrap.dedent(f"""
            import agpcs
            try:
                print("begin", flush=True)
                agpcs.plan({str(RESNET)!r}, {str(MIXED)!r}, refiner="anneal", budget=10**9)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        """)
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        self.assertEqual(process.stdout.readline(), "begin\n")
        begun = cpu_ticks(process.pid)
        while cpu_ticks(process.pid) < begun + 50:  # half a second: it searches
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
        self.assertEqual((rest, process.returncode), ("interrupted\n", 0))


if __name__ == "__main__":
    unittest.main()
