"""Parts of scripts/check-gpu.sh: the limits of the part `measured`, over planted rows, the order of all, and names that only a GPU looks up. Run by mod.rs."""

import contextlib
import io
import pathlib
import re
import sys
import types
import unittest

HOME = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOME / "scripts"))

from check_gpu import parts, programs, trials  # noqa: E402
from check_gpu.setting import Checks  # noqa: E402
from check_gpu.tables import Row  # noqa: E402


def measured(whole=None, cut=None):
    """Faults and notes of the part, over the planted rows with these changes."""
    rows = [
        Row({**trials.planted(Row({"train.checkpoint": checkpoint}, "trials.csv")), **(changes or {})}, "trials.csv")
        for checkpoint, changes in (("", whole), ("{every_steps: 150}", cut))
    ]
    checks, notes = Checks(), []
    with contextlib.redirect_stdout(io.StringIO()):
        trials.check_measured(types.SimpleNamespace(is_rehearsal=False, note=notes.append), checks, types.SimpleNamespace(last_rows=lambda: rows))
    return checks.faults, notes


class Measured(unittest.TestCase):
    def test_planted_rows_are_within_the_limits(self):
        self.assertEqual(measured()[0], [])

    def test_checkpoints_may_lower_the_utilization_more(self):
        self.assertEqual(measured(cut={"mean_gpu_utilization": "0.82"})[0], [])
        for changes in ({"cut": {"mean_gpu_utilization": "0.79"}}, {"whole": {"mean_gpu_utilization": "0.82"}}):
            self.assertEqual(len(measured(**changes)[0]), 1, changes)

    def test_the_energy_of_a_sample_may_differ_by_some_percent(self):
        for joules, faults in (("11750.0", 0), ("10200.0", 0), ("11970.0", 1), ("9990.0", 1)):
            self.assertEqual(len(measured(cut={"energy_counter_joules": joules})[0]), faults, joules)

    def test_what_was_measured_is_told_within_the_limits_and_beyond(self):
        for joules in ("10980.0", "20000.0"):
            told = "\n".join(measured(cut={"energy_counter_joules": joules, "mean_gpu_utilization": "0.1234"})[1])
            for words in ("mean_gpu_utilization 0.1234", f"energy_counter_joules {joules}", "joules per sample"):
                self.assertIn(words, told)


class Order(unittest.TestCase):
    def test_what_no_gpu_has_run_yet_comes_right_after_whether_kiln_runs(self):
        names = [part.name for part in parts.ALL]
        runs = ["versions", "examine", "doctor", "snapshot", "gpt-f32", "gpt-amp-bf16"]
        unseen = ["tests-operations", "tests-alone", "kernels-gpt2-124m", "kernels-resnet50-224"]
        self.assertEqual(names[: len(runs) + len(unseen)], runs + unseen)
        self.assertEqual(len(set(names)), len(names))


def tests_of(program):
    """The names of the tests of kiln-trial's program, `file::test`."""
    folder = HOME / "crates" / "trial" / "tests"
    files = [*(folder / "alone").rglob("*.rs")] if program == "alone" else [*folder.glob("*.rs")]
    for path in files:
        module = path.stem if path.parent in (folder, folder / "alone") else path.parent.name
        for name in re.findall(r"^#\[test\]\n(?:#\[.*\n)*fn (\w+)", path.read_text(), re.M):
            yield f"{module}::{name}"


class Names(unittest.TestCase):
    """What only a GPU looks up."""

    def test_tests_that_are_left_out_on_cuda_exist(self):
        left_out = {**programs.NOT_ON_CUDA, "suite": (*programs.NOT_ON_CUDA["suite"], *programs.OTHER_PARTS)}
        for program, names in left_out.items():
            known = list(tests_of(program))
            for name, _ in names:
                self.assertTrue(any(test.startswith(name) for test in known), f"{program} has no test {name}")

    def test_kernels_that_a_step_must_have_are_kilns(self):
        header = (HOME / "crates" / "trial" / "src" / "engine" / "shim" / "kernel_names.h").read_text()
        known = re.findall(r"each\((\w+)\)", header)
        for name in (*programs.KERNELS_OF_BLOCKS, *programs.KERNELS_OF_BATCH_NORMS, "loss_forward"):
            self.assertIn(name, known)


if __name__ == "__main__":
    unittest.main()
