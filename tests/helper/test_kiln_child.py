"""The Python helper against docs/child-protocol.md: small programs are started as kiln starts a child. Run by tests/helper.rs."""

import ast
import csv
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

HELPER = pathlib.Path(__file__).resolve().parents[2] / "python" / "kiln_child.py"
TRIAL = {
    "kiln_trial": 1, "trial": "t4f0c1a2b3d", "attempt": 2, "model": {"kind": "custom", "name": "line", "rate": 0.1},
    "data": {"kind": "generated"}, "train": {"steps": 20, "batch_size": 4, "seed": 1}, "engine": "line", "device": "cpu",
    "measure": {"warmup_steps": 3, "warmup_seconds": 0.0, "log_every": 5, "sample_interval": "500ms"},
    "run_anchor_nanoseconds": 0, "differs_from_defaults": ["model.kind", "model.rate", "train.steps"],
}
# The whole course of a trial; `body` and `end` are what a test changes.
PROGRAM = """
    import sys, time
    import kiln_child

    with kiln_child.trial(default={{"train.steps": 20, "train.batch_size": 4, "measure.warmup_steps": 3, "measure.warmup_seconds": 0.0}}) as trial:
        trial.honours("{honours}")
        trial.ready(parameters=2, total_steps=trial["train.steps"], libraries={{"line": "1.0"}})
        for step in trial.steps():
            {body}
            step.done(samples=trial["train.batch_size"], loss=1.0 / step.number)
        {end}
"""
# PyTorch and the functions that the script of docs/engines.md leaves to its reader.
STAND_INS = """
    import itertools, types

    torch = types.ModuleType("torch")
    torch.__version__, torch.cuda = "2", types.SimpleNamespace(is_available=lambda: False)
    sys.modules["torch"] = torch
    build = lambda d_model, seed: (types.SimpleNamespace(parameters=lambda: []), None, itertools.repeat(None))
    train_step = lambda model, optimizer, batch: 1.0
    validation_loss = lambda model: 0.5
"""


class Child:
    """One child: its folder, and what it left behind."""

    def __init__(self, text, asked=None, trial_file=None, attempt=None):
        self.place = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.place.name)
        program = self.folder / "line.py"
        head = f"import sys; sys.path.insert(0, {str(HELPER.parent)!r})\n"
        program.write_text(head + textwrap.dedent(text), encoding="utf-8")
        command = [sys.executable, "-I", str(program)]
        if asked is not None:
            (self.folder / "trial.asked.json").write_text(json.dumps({**asked, "folder": str(self.folder)}), encoding="utf-8")
            command.append(str(self.folder / "trial.yaml"))
        if trial_file is not None:
            (self.folder / "trial.yaml").write_text(trial_file, encoding="utf-8")
            command.append(str(self.folder / "trial.yaml"))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KILN_")}
        if attempt is not None:
            environment["KILN_ATTEMPT"] = attempt
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def end(self):
        self.stdout, self.stderr = self.process.communicate(timeout=60)
        self.status = self.process.returncode
        self.messages = [json.loads(line) for line in self.stdout.splitlines() if line.startswith("{")]
        path = self.folder / "trial.json"
        self.result = json.loads(path.read_text()) if path.exists() else None
        return self

    def rows(self, name):
        with open(self.folder / name, newline="") as file:
            return list(csv.DictReader(file))

    def events(self):
        return [message["event"] for message in self.messages]


def run(body="pass", end="trial.finish(valid_loss=0.5)", honours="model.kind model.rate train.steps train.batch_size", asked=None):
    text = PROGRAM.format(body=body, end=end, honours=honours)
    return Child(text, {**TRIAL, **(asked or {})}).end()


class ATrialOfKiln(unittest.TestCase):
    def failed(self, child, reason, outcome="failed", status=1):
        """The result, the last message and the exit status say the same."""
        self.assertEqual((child.status, child.result["outcome"]), (status, outcome), child.stderr)
        self.assertIn(reason, child.result["reason"])
        self.assertNotIn("\n", child.result["reason"])
        self.assertEqual(child.messages[-1], {"event": "finished", "outcome": outcome, "reason": child.result["reason"]})

    def test_the_messages_come_in_the_order_of_the_protocol(self):
        child = run()
        self.assertEqual(child.status, 0, child.stderr)
        self.assertEqual(child.events(), ["hello", "ready", "window_started", "window_ended", "evaluated", "finished"])
        hello, ready, began, ended, _, finished = child.messages
        self.assertEqual((hello["protocol"], hello["kiln_trial"], hello["pid"]), (1, "line.py", child.process.pid))
        self.assertEqual((ready["parameters"], ready["total_steps"], ready["libraries"]), (2, 20, {"line": "1.0"}))
        self.assertEqual((began["step"], ended["step"]), (4, 20))
        self.assertLess(began["monotonic_nanoseconds"], ended["monotonic_nanoseconds"])
        self.assertEqual(finished, {"event": "finished", "outcome": "completed", "reason": None})

    def test_the_result_and_the_tables_have_each_step(self):
        child = run(body="time.sleep(0.002)")
        result, rows = child.result, child.rows("steps.csv")
        self.assertEqual((result["trial"], result["attempt"], result["steps"], result["left_out_steps"]), ("t4f0c1a2b3d", 2, 20, 3))
        self.assertAlmostEqual(result["train_loss"], sum(1 / step for step in range(16, 21)) / 5)
        self.assertEqual((result["valid_loss"], result["window_samples"]), (0.5, 17 * 4))
        self.assertAlmostEqual(result["samples_per_second"], 68 / result["window_seconds"])
        self.assertGreater(result["median_step_seconds"], 0.002)
        self.assertEqual([(row["step"], float(row["loss"])) for row in rows], [(str(n), 1 / n) for n in range(1, 21)])
        self.assertEqual([row["is_warmup"] for row in rows], ["true"] * 3 + ["false"] * 17)
        self.assertTrue(all(float(row["step_seconds"]) > 0.002 and float(row["run_seconds"]) > 0 for row in rows))
        self.assertEqual([(row["step"], row["valid_loss"], row["samples"]) for row in child.rows("epochs.csv")], [("20", "0.5", "80")])

    def test_an_evaluation_in_between_is_cut_out_of_the_window(self):
        body = "if step.number == 10: trial.evaluate(lambda: time.sleep(0.3) or 0.7)"
        child = run(body=body)
        (begin, end), = child.result["window_cuts_nanoseconds"]
        self.assertGreater(end - begin, 3e8)
        whole = child.result["window_ended_nanoseconds"] - child.result["window_started_nanoseconds"]
        self.assertAlmostEqual(child.result["window_seconds"], (whole - (end - begin)) / 1e9, places=6)
        self.assertLess(float(child.rows("steps.csv")[9]["step_seconds"]), 0.3)
        self.assertGreater(child.result["evaluation_seconds"], 0.3)

    def test_evaluations_come_when_the_file_asks_for_them(self):
        asked = {"train": {**TRIAL["train"], "evaluate": {"every": 5}}}
        body = "if trial.evaluation_is_due(step.number - 1): trial.evaluate(lambda: 0.25)"
        child = run(body=body, asked=asked)
        self.assertEqual([row["step"] for row in child.rows("epochs.csv")], ["5", "10", "15", "20"])

    def test_the_wait_for_a_batch_is_measured(self):
        child = run(body="step.next(iter([time.sleep(0.004)]))")
        waits = [float(row["data_wait_seconds"]) for row in child.rows("steps.csv")]
        self.assertTrue(all(wait >= 0 for wait in waits) and child.result["data_wait_fraction"] < 1, waits)
        slow = "step.next(slow)"
        text = PROGRAM.format(body=slow, end="trial.finish()", honours="*").replace(
            "with kiln_child", "slow = (time.sleep(0.004) for _ in range(99))\n    with kiln_child", 1)
        child = Child(text, {**TRIAL, "differs_from_defaults": []}).end()
        self.assertGreaterEqual(float(child.rows("steps.csv")[5]["data_wait_seconds"]), 0.004)
        self.assertGreater(child.result["data_wait_fraction"], 0.05, child.stderr)

    def test_a_device_is_waited_for_at_both_ends_of_the_window_and_where_losses_are_read(self):
        end = "trial.finish(); open(trial['folder'] + '/waits', 'w').write(str(len(waits)))"
        text = PROGRAM.format(body="pass", end=end, honours="*").replace("trial.steps()", "trial.steps(wait=lambda: waits.append(1))")
        text = text.replace("with kiln_child", "waits = []\n    with kiln_child", 1)
        child = Child(text, {**TRIAL, "differs_from_defaults": []}).end()
        # The window's two ends, the losses of steps 5, 10, 15 and those of the last ones.
        self.assertEqual((child.folder / "waits").read_text(), "6", child.stderr)
        self.assertEqual({row["step_seconds"] for row in child.rows("steps.csv")}, {""})
        self.assertIn("median_step_seconds", child.result["notes"])

    def test_timed_events_give_the_times_of_a_device(self):
        events = "class Event:\n        clock = 0.0\n        def record(self): self.at = Event.clock\n" \
                 "        def elapsed_time(self, later): return later.at - self.at\n"
        text = PROGRAM.format(body="Event.clock += 7.0", end="trial.finish()", honours="*")
        text = text.replace("trial.steps()", "trial.steps(wait=lambda: None, event=Event)").replace("with kiln_child", events + "    with kiln_child", 1)
        child = Child(text, {**TRIAL, "differs_from_defaults": []}).end()
        self.assertEqual({row["step_seconds"] for row in child.rows("steps.csv")}, {"0.007"}, child.stderr)
        self.assertEqual(child.result["median_step_seconds"], 0.007)

    def test_a_wait_counts_as_far_as_the_device_has_nothing_to_do(self):
        # The host waits for 50 ms; between the events around its wait the device has nothing to do for 2 ms, or for a second.
        for idle, at_least, at_most in ((2.0, 0.002, 0.002), (1000.0, 0.05, 0.9)):
            events = "class Event:\n        clock = 0.0\n        def record(self): self.at = Event.clock\n" \
                     "        def elapsed_time(self, later): return later.at - self.at\n" \
                     f"    def batches():\n        while True:\n            time.sleep(0.05); Event.clock += {idle}; yield 1\n" \
                     "    made = batches()\n"
            text = PROGRAM.format(body="step.next(made); Event.clock += 7.0", end="trial.finish()", honours="*")
            text = text.replace("trial.steps()", "trial.steps(wait=lambda: None, event=Event)").replace("with kiln_child", events + "    with kiln_child", 1)
            child = Child(text, {**TRIAL, "differs_from_defaults": []}).end()
            for row in child.rows("steps.csv"):
                self.assertTrue(at_least - 1e-9 <= float(row["data_wait_seconds"]) <= at_most + 1e-9, (row, child.stderr))
            share = child.result["data_wait_fraction"] * child.result["window_seconds"] / (child.result["steps"] - child.result["left_out_steps"])
            self.assertTrue(at_least - 1e-9 <= share <= at_most + 1e-9, child.result)

    def test_events_without_a_wait_for_the_device_are_not_read(self):
        events = "class Event:\n        def record(self): pass\n        def elapsed_time(self, later): raise RuntimeError('not reached')\n" \
                 "    made = iter(range(99))\n"
        text = PROGRAM.format(body="step.next(made)", end="trial.finish()", honours="*").replace("trial.steps()", "trial.steps(event=Event)")
        child = Child(text.replace("with kiln_child", events + "    with kiln_child", 1), {**TRIAL, "differs_from_defaults": []}).end()
        self.assertEqual(child.result["outcome"], "completed", child.stderr)
        self.assertGreater(child.result["median_step_seconds"], 0.0)

    def test_what_the_program_prints_is_not_taken_for_a_message(self):
        child = run(body="print('a print'); __import__('os').system('echo from a process')")
        self.assertEqual(len(child.messages), len(child.stdout.splitlines()))
        self.assertIn("a print", child.stderr)
        self.assertIn("from a process", child.stderr)

    def test_keys_that_are_not_honoured_are_named_in_one_line(self):
        asked = {"differs_from_defaults": ["model.rate", "train.clip_norm", "data.stride", "train.optimizer.beta2"], "devices_per_trial": 2}
        child = run(honours="model.rate train.optimizer.*", asked=asked)
        self.failed(child, "line.py does not support `train.clip_norm`, `data.stride`, `devices_per_trial`; remove the key")
        self.assertEqual((child.events(), child.rows("steps.csv")), (["hello", "finished"], []))

    def test_a_value_that_is_not_supported_is_named_with_those_that_are(self):
        child = run(end="trial.only('model.name', 'curve', 'circle')")
        self.failed(child, "`model.name` is `line`; line.py supports `curve`, `circle`")

    def test_a_program_that_never_says_what_it_honours_fails(self):
        child = Child("import kiln_child\nwith kiln_child.trial() as trial:\n    trial.ready(parameters=1, total_steps=1)", TRIAL).end()
        self.failed(child, "call trial.honours(…) before trial.ready(…)")

    def test_exceptions_end_it_as_failed_with_their_first_line(self):
        child = run(body="if step.number == 8: raise ValueError('shapes differ\\nand more')")
        self.failed(child, "ValueError: shapes differ")
        self.assertEqual(child.result["steps"], 7)
        self.assertIn("Traceback", child.stderr)
        self.failed(run(body="sys.exit(0)"), "SystemExit: 0")
        self.failed(run(end="pass"), "the program left its block without trial.finish(…)")
        self.failed(run(body="continue"), "step.done(…) was not called in step 1")
        self.failed(run(end="trial.finish(valid_loss=0.5, valid_top1=float('nan'))"), "`valid_top1` is NaN")

    def test_lack_of_memory_is_oom_whoever_says_it(self):
        for error in ("MemoryError()", "type('OutOfMemoryError', (RuntimeError,), {})('CUDA out of memory')",
                      "RuntimeError(\"DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes\")",
                      "type('ResourceExhaustedError', (Exception,), {})('Graph execution error:\\n\\nOOM when allocating tensor')",
                      "type('ResourceExhaustedError', (Exception,), {})('{{function_node x}} failed to allocate memory [Op:Mul]')",
                      "type('ResourceExhaustedError', (Exception,), {})('SameWorkerRecvDone unable to allocate output tensor. Key: x')",
                      "type('InternalError', (Exception,), {})('Failed copying input tensor: Dst tensor is not initialized.')"):
            child = run(body=f"if step.number == 8: raise {error}")
            self.failed(child, "ran out of memory at step 8", "oom", 4)
        nested = "try: raise MemoryError()\n                except MemoryError as error: raise KeyError('compiler') from error"
        self.failed(run(body=f"if step.number == 8:\n                {nested}"), "ran out of memory at step 8 (MemoryError)", "oom", 4)
        child = Child("import kiln_child\nwith kiln_child.trial() as trial:\n    model = [0] * 9**18", TRIAL).end()
        self.failed(child, "ran out of memory while the model was built", "oom", 4)

    def test_a_text_about_memory_in_another_error_is_a_failure(self):
        self.failed(run(body="raise ValueError(\"file 'out of memory.txt' not found\")"), "ValueError: file 'out of memory.txt'")
        for text in ("Too many open files", "No space left on device; OOM handler not needed", "Dst tensor is not initialized."):
            self.failed(run(body=f"raise type('ResourceExhaustedError', (Exception,), {{}})('{text}')"), f"ResourceExhaustedError: {text}")

    def test_figures_that_cannot_be_are_left_out_with_a_note_and_cost_no_training(self):
        end = ("trial.note('mfu', None); trial.finish(valid_loss=True, valid_top1='0.5', peak_allocated_bytes=5.5, peak_reserved_bytes=7, "
               "parameters=-1, steps=3, mean_gpu_utilization=[1])")
        child = run(end=end)
        self.assertEqual((child.status, child.result["outcome"], child.result["steps"]), (0, "completed", 20), child.stderr)
        self.assertEqual((child.result["parameters"], child.result["peak_reserved_bytes"]), (2, 7))
        left_out = {"valid_loss", "valid_top1", "peak_allocated_bytes", "mean_gpu_utilization"}
        self.assertFalse(left_out & set(child.result))
        self.assertEqual(set(child.result["notes"]), left_out | {"parameters", "mfu"})
        self.assertIn("the program gave 5.5, and it must be a whole number", child.result["notes"]["peak_allocated_bytes"])
        self.assertTrue(any("`steps` is 3 and left out" in message.get("text", "") for message in child.messages), child.messages)

    def test_steps_and_batches_that_do_not_add_up_are_named(self):
        self.failed(run(body="step.done(samples=4)"), "step.done(…) was called twice in step 1")
        self.failed(run(body="step.next(iter([]))"), "the iterator of batches ended in step 1 of 20")
        self.failed(run(body="step.done(samples=-4)"), "they cannot be negative")

    def test_maps_that_are_no_json_are_left_out_and_others_stay(self):
        end = "trial.finish(valid_loss=0.5, metrics={'x': float('nan')}, flags={'tf32': 'on'}, mfu={'a': 1}, class_names=[object()])"
        child = run(end=end)
        self.assertEqual((child.status, child.result["outcome"], child.result["flags"]), (0, "completed", {"tf32": "on"}), child.stderr)
        self.assertFalse({"metrics", "mfu", "class_names"} & set(child.result))
        self.assertEqual({"metrics", "mfu", "class_names"}, set(child.result["notes"]))

    def test_an_end_of_batches_that_is_swallowed_leaves_no_whole_step(self):
        body = "sum(map(lambda _: step.next(batches), range(2)))"
        text = PROGRAM.format(body=body, end="trial.finish()", honours="*").replace(
            "with kiln_child", "batches = iter([1, 2, 3])\n    with kiln_child", 1)
        self.failed(Child(text, {**TRIAL, "differs_from_defaults": []}).end(), "the iterator of batches ended in step 2")
        body = "list(step.next(batches) for _ in range(2))"
        text = PROGRAM.format(body=body, end="trial.finish()", honours="*").replace(
            "with kiln_child", "batches = iter([1, 2, 3])\n    with kiln_child", 1)
        self.failed(Child(text, {**TRIAL, "differs_from_defaults": []}).end(), "BatchesEnded: the iterator of batches ended in step 2 of 20")

    def test_batches_that_begin_again_are_caught_as_the_end_of_an_iterator(self):
        body = ("try: step.next(batches)\n            except StopIteration:\n                batches = iter([1, 2, 3])\n"
                "                step.next(batches)")
        text = PROGRAM.format(body=body, end="trial.finish(valid_loss=0.5)", honours="*").replace(
            "with kiln_child", "batches = iter([1, 2, 3])\n    with kiln_child", 1)
        child = Child(text, {**TRIAL, "differs_from_defaults": []}).end()
        self.assertEqual((child.status, child.result["steps"]), (0, 20), child.stderr)

    def test_the_ends_of_a_cut_are_told_within_the_window(self):
        child = run(body="if step.number in (2, 10): trial.evaluate(lambda: time.sleep(0.3) or 0.7)")
        told = [message for message in child.messages if message["event"].startswith("cut_")]
        self.assertEqual([(message["event"], message["step"]) for message in told], [("cut_started", 9), ("cut_ended", 9)])
        (begin, end), = child.result["window_cuts_nanoseconds"]
        self.assertEqual(told[0]["monotonic_nanoseconds"], begin)
        self.assertLess(abs(told[1]["monotonic_nanoseconds"] - end), 5e7)

    def test_a_loss_that_is_no_number_is_diverged_at_its_step(self):
        text = PROGRAM.format(body="pass", end="trial.finish()", honours="*").replace("1.0 / step.number", "[1.0, float('nan')][step.number > 6]")
        child = Child(text, {**TRIAL, "differs_from_defaults": []}).end()
        self.failed(child, "the training loss of step 7 is NaN", "diverged", 0)
        # Losses are read every five steps.
        self.assertEqual([row["loss"] for row in child.rows("steps.csv")], ["1.0"] * 6 + [""] * 4)
        self.assertNotIn("train_loss", child.result)
        self.failed(run(end="trial.finish(valid_loss=float('inf'))"), "the validation loss after step 20 is inf", "diverged", 0)

    def test_sigterm_stops_it_within_the_step(self):
        for body in ("time.sleep(60)", "trial.alive(1, 2); time.sleep(0.01)"):
            steps = {"train": {**TRIAL["train"], "steps": 100_000}}
            child = Child(PROGRAM.format(body=body, end="trial.finish()", honours="*"), {**TRIAL, **steps, "differs_from_defaults": []})
            for line in child.process.stdout:
                if '"ready"' in line:
                    break
            time.sleep(0.1)
            begun = time.monotonic()
            child.process.send_signal(signal.SIGTERM)
            child.end()
            self.assertLess(time.monotonic() - begun, 5)
            self.failed(child, "SIGTERM stopped the trial; its last step was", "interrupted", 130)

    def test_an_error_that_the_signal_caused_is_no_failure(self):
        # kiln signals the whole group: a worker of a loader may be gone before this thread hears of it.
        body = "os.kill(os.getpid(), signal.SIGTERM); exec('raise RuntimeError(\"DataLoader worker exited\")')"
        text = f"import kiln_child, os, signal\nwith kiln_child.trial() as trial:\n    with trial._uninterrupted():\n        {body}"
        self.failed(Child(text, TRIAL).end(), "SIGTERM stopped the trial at step 0: RuntimeError: DataLoader worker exited", "interrupted", 130)

    def test_sigterm_while_the_model_is_built_stops_it_too(self):
        text = "import kiln_child, time\nwith kiln_child.trial() as trial:\n    time.sleep(60)"
        child = Child(text, TRIAL)
        child.process.stdout.readline()
        child.process.send_signal(signal.SIGTERM)
        self.failed(child.end(), "SIGTERM stopped the trial; its last step was 0", "interrupted", 130)

    @unittest.skipIf(sys.version_info < (3, 10), "Python uses no other stack")
    def test_handlers_have_a_stack_of_their_own(self):
        text = """
import ctypes, kiln_child, signal, sys
system = ctypes.CDLL(None)
class Stack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
class Action(ctypes.Structure):
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_byte * 128), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]
NO_STACK, ON_THAT_STACK = 2, 0x08000000
def flags():
    stack = Stack()
    assert system.sigaltstack(None, ctypes.byref(stack)) == 0
    return stack.flags
before = flags()
with kiln_child.trial() as trial:
    action = Action()
    assert system.sigaction(int(signal.SIGTERM), None, ctypes.byref(action)) == 0
    print(before == NO_STACK, flags() == 0, action.flags & ON_THAT_STACK != 0, file=sys.stderr)
"""
        self.assertIn("True True True", Child(text, TRIAL).end().stderr)

    def test_a_full_disk_is_told_by_its_own_status(self):
        child = run(body="if step.number == 3: open('/dev/full', 'w').write('x' * 99999)")
        self.failed(child, "No space left on device", "interrupted", 5)

    def test_files_that_cannot_be_read_are_named(self):
        child = run(asked={"kiln_trial": 9})
        self.assertEqual((child.status, child.result), (2, None))
        self.assertIn("its `kiln_trial` is 9, and this program reads 1", child.stderr)
        (child.folder / "trial.asked.json").unlink()
        again = subprocess.run(child.process.args, capture_output=True, text=True)
        self.assertEqual(again.returncode, 2)
        self.assertIn("trial.asked.json", again.stderr)

    def test_a_training_shorter_than_its_warm_up_says_why_it_has_no_speed(self):
        child = run(asked={"measure": {**TRIAL["measure"], "warmup_steps": 50}})
        self.assertNotIn("samples_per_second", child.result)
        self.assertEqual(child.result["left_out_steps"], 20)
        self.assertIn("only 20 steps", child.result["notes"]["window_seconds"])
        self.assertEqual(child.status, 0, child.stderr)

    def test_a_loop_that_is_left_early_is_a_shorter_training(self):
        text = PROGRAM.format(body="pass", end="trial.finish()", honours="*") \
            .replace("step.number)\n", "step.number)\n            if step.number == 9: break\n", 1)
        child = Child(text, {**TRIAL, "differs_from_defaults": []}).end()
        self.assertEqual((child.status, child.result["steps"], len(child.rows("steps.csv"))), (0, 9, 9), child.stderr)
        self.assertEqual(child.result["window_samples"], 6 * 4)


class WithoutKiln(unittest.TestCase):
    def test_the_same_program_trains_with_its_defaults_and_prints_lines_for_people(self):
        text = PROGRAM.format(body="pass", end="trial.finish(valid_loss=0.5)", honours="model.rate")
        child = Child(text).end()
        self.assertEqual((child.status, child.messages), (0, []), child.stderr)
        self.assertIn("2 parameters, 20 steps on cpu", child.stdout)
        self.assertIn("step 20: validation loss 0.5000", child.stdout)
        self.assertRegex(child.stdout, r"20 steps, training loss [0-9.]+, [0-9.]+ samples/s after the warm-up")
        self.assertEqual({path.name for path in child.folder.iterdir()}, {"line.py"})

    def test_an_error_is_the_programs_own(self):
        child = Child(PROGRAM.format(body="raise ValueError('mine')", end="pass", honours="")).end()
        self.assertEqual(child.status, 1)
        self.assertIn("ValueError: mine", child.stderr)

    def test_a_key_without_a_default_is_named(self):
        child = Child("import kiln_child\nwith kiln_child.trial() as trial:\n    trial['train.steps']").end()
        self.assertIn("the trial has no `train.steps`; name it in `default`", child.stderr)

    def test_one_line_of_numbers_for_a_command(self):
        child = Child("import kiln_child\nkiln_child.line(samples_per_second=812.5, step=3)").end()
        self.assertEqual(child.messages, [{"samples_per_second": 812.5, "step": 3}])

    def test_a_trial_in_a_command_is_refused_with_what_to_do(self):
        text = "import kiln_child\nwith kiln_child.trial() as trial:\n    pass"
        child = Child(text, trial_file="kiln_trial: 1\nmodel:\n  argv:\n  - python\n  kind: command\ntrain:\n  steps: 1\n").end()
        self.assertEqual((child.status, child.stdout), (1, ""), child.stderr)
        self.assertIn("kiln_child.trial() is not for a command (`model.kind: command`); print numbers with kiln_child.line()", child.stderr)
        # The last line is the reason that kiln shows.
        self.assertIn("`run.engines`", child.stderr.splitlines()[-1])
        for model in ["model:\n  kind: custom\ndata:\n  kind: command\n", "model:\n  kind: custom\n  own:\n    kind: command\n"]:
            self.assertNotIn("is not for a command", Child(text, trial_file=model).end().stderr)

    def test_under_kiln_without_its_argument_it_does_not_train_with_the_defaults(self):
        text = "import kiln_child\nwith kiln_child.trial(default={'train.steps': 1}) as trial:\n    print('trains')"
        with tempfile.TemporaryDirectory() as trial:
            attempt = os.path.join(trial, "1")
            os.mkdir(attempt)
            for kind, words in (("custom", "its last argument is not the `trial.yaml`"), ("command", "kiln_child.trial() is not for a command")):
                for folder in (trial, attempt):
                    path = pathlib.Path(folder, "trial.yaml")
                    path.write_text(f"kiln_trial: 1\nmodel:\n  kind: {kind}\n", encoding="utf-8")
                    child = Child(text, attempt=attempt).end()
                    path.unlink()
                    self.assertEqual((child.status, child.stdout), (1, ""), child.stderr)
                    self.assertIn(words, child.stderr.splitlines()[-1])
        # Started by hand.
        self.assertEqual(Child(text).end().stdout, "trains\n")

    def test_the_script_of_the_page_trains(self):
        page = (HELPER.parents[1] / "docs" / "engines.md").read_text(encoding="utf-8")
        script = page.split("```python\n")[1].split("```")[0]
        child = Child(textwrap.dedent(STAND_INS) + script).end()
        self.assertEqual((child.status, child.stderr), (0, ""))
        self.assertIn("400 steps, training loss", child.stdout)


class TheFile(unittest.TestCase):
    def test_it_needs_python_3_8_and_its_standard_library_alone(self):
        tree = ast.parse(HELPER.read_text(encoding="utf-8"), feature_version=(3, 8))
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        self.assertFalse([node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)])
        allowed = {"contextlib", "csv", "errno", "faulthandler", "json", "math", "os", "signal", "sys", "time", "traceback"}
        self.assertLessEqual(imported, allowed)


if __name__ == "__main__":
    unittest.main(warnings="ignore")
