"""The parts, the most important first, because a GPU may be lent for minutes: whether kiln runs, what no GPU has run yet, whether it is right, how fast
it is."""

import dataclasses
from collections.abc import Callable

from check_gpu import disturbances, machine, programs, trials
from check_gpu.setting import Setting


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    # Time limit on a GPU; that of the rehearsal is `rehearsal_seconds`.
    seconds: int
    about: str
    run: Callable[[Setting], None]
    rehearsal_seconds: int = 90
    # As long as it takes on an H200, seen or estimated, where that is more than some seconds: with less time left it is not begun.
    usual_seconds: int = 0


def gpt(precision):
    return trials.trial_part("gpt", f"gpt-{precision}", f"train.precision={precision}")


ALL = [
    # Whether it runs: some twenty seconds.
    Part("versions", 60, "versions of everything, for whoever reads the results", machine.versions),
    Part("examine", 120, "kiln-trial --examine: CUDA and cuDNN as loaded", machine.examine),
    Part("doctor", 120, "kiln doctor: no problem, every product right", machine.doctor),
    Part("snapshot", 90, "kiln snapshot beside nvidia-smi -q, -q -x, --query-gpu at one moment", machine.snapshot),
    Part("gpt-f32", 120, "30 steps of a GPT", gpt("f32")),
    Part("gpt-amp-bf16", 120, "the same in mixed precision", gpt("amp-bf16")),
    # What no GPU has run yet, or not as it is now: first while a GPU is lent for minutes.
    Part("tests-operations", 240, "each operation against one composed on engine flex, in each precision", programs.test_part("suite", "operations", ["operations::"]), usual_seconds=30),
    Part("tests-alone", 300, "the tests that draw random numbers", programs.test_part("alone", "alone", []), usual_seconds=30),
    Part("kernels-gpt2-124m", 90, "how long each kernel of a step of GPT-2 124M takes", programs.kernels_part("gpt2-124m", "tiny-gpt", programs.KERNELS_OF_BLOCKS), usual_seconds=20),
    Part("kernels-resnet50-224", 90, "how long each kernel of a step of ResNet-50 takes", programs.kernels_part("resnet50-224", "tiny-resnet", programs.KERNELS_OF_BATCH_NORMS), usual_seconds=20),
    # Whether every model trains.
    Part("lstm-dropout", 120, "an LSTM with dropout 0.2, in f32 and amp-bf16", trials.trial_part("lstm-dropout")),
    Part("resnet50", 150, "a ResNet-50 in amp-bf16", trials.trial_part("resnet50")),
    Part("seq2seq", 150, "a T5 in amp-bf16 with Adafactor, answering prompts greedily and by beams", trials.trial_part("seq2seq")),
    Part("gpt-amp-f16", 120, "the GPT with gradient scaling", gpt("amp-f16")),
    Part("tests-parity", 180, "losses and gradients of PyTorch on the CPU, in f32", programs.test_part("suite", "parity", ["parity::"])),
    # Whether it is right, and what it survives: some five minutes.
    Part("calibrate", 120, "kiln calibrate: the peak of matrix products", trials.calibrate, usual_seconds=26),
    Part("mfu", 180, "GPT-2 124M, batch 12: the share of that peak", trials.mfu, usual_seconds=7),
    Part("graphs-gpt", 120, "a GPT of batch 4: steps replayed from CUDA graphs, their losses and their speed", trials.trial_part("graphs-gpt")),
    Part("graphs-resnet50", 150, "a ResNet-50, whose steps are replayed from CUDA graphs", trials.trial_part("graphs-resnet50")),
    Part("graphs-lstm", 120, "an LSTM with dropout, whose steps are replayed from CUDA graphs", trials.trial_part("graphs-lstm")),
    Part("graphs-seq2seq", 150, "a T5 with Adafactor, whose steps are replayed from CUDA graphs", trials.trial_part("graphs-seq2seq")),
    Part("copies", 120, "pageable and page-locked copies: the same losses", trials.trial_part("copies")),
    Part("tests-precision", 180, "precisions against f32, gradient scaling", programs.test_part("suite", "precision", ["amp::", "engine::"])),
    Part("tests-checkpoint", 240, "killed trials go on from their checkpoints", programs.test_part("suite", "checkpoint", ["checkpoint::"])),
    Part("oom-ladder", 240, "batch sizes up to out of memory, and a trial after it", disturbances.oom_ladder, usual_seconds=17),
    Part("kill-and-resume", 240, "a killed child, a killed runner, and the rest of the sweep", disturbances.kill_and_resume, usual_seconds=27),
    Part("measured", 180, "energy, power and GPM over long windows, with and without checkpoints", trials.trial_part("measured"), usual_seconds=80),
    Part("tests-suite", 300, "the other tests of whole trials", programs.test_part("suite", "suite", [], programs.OTHER_PARTS), usual_seconds=40),
    # How fast it is: more than a call of ten minutes holds.
    Part("speed-gpt-28m", 240, "the 28 M GPT, batch 4", programs.speed_part("gpt-28m", "tiny-gpt"), 150, usual_seconds=90),
    Part("speed-resnet50-224", 300, "ResNet-50 at 224 × 224, batch 64", programs.speed_part("resnet50-224", "tiny-resnet"), 150, usual_seconds=138),
    Part("speed-gpt2-124m", 300, "GPT-2 124M, batch 12 × 1,024: kiln, its graphs, PyTorch, torch.compile", programs.speed_part("gpt2-124m", "tiny-gpt", f"{programs.OWN_PROGRAMS} eager compile"), 240, usual_seconds=140),
    Part("speed-lstm-650", 240, "an LSTM of 650, batch 20 × 35", programs.speed_part("lstm-650", "tiny-lstm"), 150, usual_seconds=90),
    Part("speed-t5-small", 300, "T5-small, batch 16 × 256, Adafactor", programs.speed_part("t5-small", "tiny-t5"), 150, usual_seconds=120),
    # The rest.
    Part("gpt-tf32", 120, "the GPT in TF32", trials.tf32),
    Part("gpt-bf16", 120, "the GPT in bf16", gpt("bf16")),
    Part("resnet18", 120, "a ResNet-18 in f32", trials.trial_part("resnet18")),
    Part("panel-lstm", 120, "an LSTM of price panels in amp-bf16", trials.trial_part("panel-lstm")),
    Part("mlp", 120, "an MLP over text, which writes one", trials.trial_part("mlp")),
    Part("shakespeare", 120, "a character GPT on tiny Shakespeare", trials.trial_part("shakespeare")),
    Part("wikitext2", 150, "the 28 M GPT on WikiText-2", trials.trial_part("wikitext2")),
    Part("chatlm", 150, "a T5 on real prompts", trials.trial_part("chatlm")),
    *(Part(f"precisions-{name}", 240, f"what {name} trains, in every precision", trials.trial_part(f"precisions-{name}")) for name in trials.MODELS),
    Part("products", 120, "matrix products of 8,192", trials.trial_part("products"), usual_seconds=12),
    Part("memory-limit", 120, "run.memory_limit", disturbances.memory_limit),
    Part("watch", 150, "kiln watch beside a running trial", machine.watch, usual_seconds=9),
]

BY_NAME = {part.name: part for part in ALL}
