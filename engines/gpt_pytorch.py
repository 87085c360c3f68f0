"""kiln's `model.kind: gpt` in PyTorch, as an engine of kiln's (docs/engines.md): eager, or through torch.compile with --compile.

The same trial as kiln-trial's from the same `model`, `data` and `train` keys: architecture, initial weights, batches and their
order, optimizer, schedule, and the validation loss over every target. In f32 without dropout the losses are kiln's, but for the
order in which sums are taken. Dropout has PyTorch's own random numbers.

    python engines/gpt_pytorch.py [--compile] [trial.yaml]      # by hand, without trial.yaml: a small trial on tiny Shakespeare
"""

import contextlib
import math
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1] / "python")]

HONOURED = """
    model.kind model.d_model model.num_layers model.num_heads model.seq_len model.dropout model.vocabulary model.tie_head model.bias
    data.kind data.path data.tokenizer data.stride data.sampling data.valid_fraction data.pin_memory
    train.batch_size train.grad_accumulation train.precision train.epochs train.steps train.seed train.clip_norm train.label_smoothing
    train.cpu_threads train.evaluate.every train.evaluate.batch_multiple
    train.optimizer.kind train.optimizer.learning_rate train.optimizer.beta1 train.optimizer.beta2 train.optimizer.epsilon
    train.optimizer.weight_decay train.optimizer.weight_decay_on
    train.learning_rate_schedule.kind train.learning_rate_schedule.warmup_steps train.learning_rate_schedule.final_fraction
"""
# A trial by hand: the small character model of experiments/gpt-engines.yaml.
DEFAULT = {
    "model.kind": "gpt", "model.d_model": 128, "model.num_layers": 4, "model.num_heads": 4, "model.seq_len": 64, "model.dropout": 0.0,
    "model.tie_head": True, "model.bias": True, "data.kind": "tinyshakespeare", "data.tokenizer": "character", "data.sampling": "random",
    "train.batch_size": 12, "train.grad_accumulation": 1, "train.precision": "f32", "train.steps": 200, "train.seed": 1,
    "train.label_smoothing": 0.0, "train.evaluate.batch_multiple": 4, "train.optimizer.kind": "adamw",
    "train.optimizer.learning_rate": 1e-3, "train.optimizer.beta1": 0.9, "train.optimizer.beta2": 0.999, "train.optimizer.epsilon": 1e-8,
    "train.optimizer.weight_decay": 0.01, "train.optimizer.weight_decay_on": "all", "train.learning_rate_schedule.kind": "constant",
    "train.learning_rate_schedule.warmup_steps": 0,
}
# Deviation of the initial weights. Source: GPT-2, nanoGPT.
DEVIATION = 0.02


# The model, with kiln's names for its parameters --------------------------------------------------------------------------------

class Attention(nn.Module):
    def __init__(self, width, heads, dropout, bias):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.queries_keys_values, self.projection = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)

    def forward(self, x):
        rows, time, width = x.shape
        parts = self.queries_keys_values(x).split(width, dim=2)
        q, k, v = (part.view(rows, time, self.heads, -1).transpose(1, 2) for part in parts)  # [rows, heads, time, head_dim]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        return self.projection(mixed.transpose(1, 2).reshape(rows, time, width))


class FeedForward(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.widening, self.projection = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)

    def forward(self, x):
        return self.projection(F.gelu(self.widening(x)))


class Block(nn.Module):
    def __init__(self, width, heads, dropout, bias):
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width, bias=bias), Attention(width, heads, dropout, bias)
        self.mlp_norm, self.mlp = nn.LayerNorm(width, bias=bias), FeedForward(width, bias)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x):
        x = x + self.drop(self.attention(self.attention_norm(x)))
        return x + self.drop(self.mlp(self.mlp_norm(x)))


class Gpt(nn.Module):
    """tokens [rows, time], time at most `seq_len`; out: logits [rows, time, vocabulary]."""

    def __init__(self, d_model, num_layers, num_heads, seq_len, vocabulary, tie_head=True, dropout=0.0, bias=True):
        super().__init__()
        self.token_table, self.position_table = nn.Embedding(vocabulary, d_model), nn.Embedding(seq_len, d_model)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        self.final_norm = nn.LayerNorm(d_model, bias=bias)
        self.blocks = nn.ModuleList(Block(d_model, num_heads, dropout, bias) for _ in range(num_layers))
        self.head = nn.Linear(d_model, vocabulary, bias=False)
        if tie_head:
            self.head.weight = self.token_table.weight

    def forward(self, tokens):
        x = self.drop(self.token_table(tokens) + self.position_table(torch.arange(tokens.shape[1], device=tokens.device)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.final_norm(x))

    def draw(self, draw):
        """Initial weights by `draw(name, shape, deviation)`; biases 0, gains 1."""
        into_stream = DEVIATION / math.sqrt(2 * len(self.blocks))
        with torch.no_grad():
            for path, parameter in self.named_parameters():
                name = path.removesuffix(".weight")
                if parameter.dim() > 1:
                    parameter.copy_(draw(name, parameter.shape, into_stream if name.endswith("projection") else DEVIATION))
                else:
                    parameter.fill_(0.0 if path.endswith("bias") else 1.0)
        return self


# Training -----------------------------------------------------------------------------------------------------------------------

def optimizer_of(trial, model, device):
    keys = {name: trial[f"train.optimizer.{name}"] for name in ("learning_rate", "beta1", "beta2", "epsilon", "weight_decay")}
    on_all = trial["train.optimizer.weight_decay_on"] == "all"
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices}, {"params": others, "weight_decay": keys["weight_decay"] if on_all else 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=keys["learning_rate"], betas=(keys["beta1"], keys["beta2"]),
        eps=keys["epsilon"], weight_decay=keys["weight_decay"], fused=True,
    )


def learning_rate(trial, step, total_steps):
    """The rate of a step, from 1, by kiln's schedules."""
    of_schedule = lambda key: trial.get(f"train.learning_rate_schedule.{key}", 0)
    at, warmup, peak = step - 1, of_schedule("warmup_steps"), trial["train.optimizer.learning_rate"]
    if at < warmup:
        return peak * (at + 1) / (warmup + 1)
    left, lowest = total_steps - 1 - warmup, of_schedule("final_fraction")
    progress = (at - warmup) / left if left > 0 else 1.0
    if of_schedule("kind") == "linear":
        return peak * (1.0 - (1.0 - lowest) * progress)
    if of_schedule("kind") == "cosine":
        return peak * (lowest + (1.0 - lowest) * (1.0 + math.cos(math.pi * progress)) / 2.0)
    return peak


class Training:
    """A model with its optimizer on its device."""

    def __init__(self, trial, model, is_compiled):
        self.trial, self.device = trial, trial["device"]
        precision = trial["train.precision"]
        if self.device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        self.model = model.to(self.device, torch.bfloat16 if precision == "bf16" else torch.float32)
        self.autocast = torch.autocast(self.device, torch.bfloat16) if precision == "amp-bf16" else contextlib.nullcontext()
        self.optimizer = optimizer_of(trial, self.model, self.device)
        self.forward = torch.compile(self.model) if is_compiled else self.model
        self.pins = self.device == "cuda" and trial.get("data.pin_memory", "auto") in (True, "auto")
        self.smoothing, self.clip_norm = trial["train.label_smoothing"], trial.get("train.clip_norm")

    def to_device(self, batch):
        if self.device == "cpu":
            return batch
        return [(values.pin_memory() if self.pins else values).to(self.device, non_blocking=True) for values in batch]

    def step(self, batches, rate):
        """One update of the micro-batches of a step; out: their mean loss, on the device."""
        whole = None
        for batch in batches:
            tokens, targets = self.to_device(batch)
            with self.autocast:
                logits = self.forward(tokens)
                loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), label_smoothing=self.smoothing) / len(batches)
            loss.backward()
            whole = loss.detach() if whole is None else whole + loss.detach()
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return whole

    def validate(self, batches):
        """The mean loss over every target."""
        self.model.eval()
        total, count = 0.0, 0
        with torch.no_grad(), self.autocast:
            for number, batch in enumerate(batches, 1):
                tokens, targets = self.to_device(batch)
                logits = self.model(tokens).float().flatten(0, 1)
                total = total + F.cross_entropy(logits, targets.flatten(), reduction="sum").double()
                count += int((batch[1] >= 0).sum())
                self.trial.alive(number, len(batches))
        self.model.train()
        return total / count


def compiled_graphs():
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def check(trial):
    """Refuses by name what this program does not compute as kiln does."""
    trial.honours(HONOURED)
    trial.only("model.kind", "gpt")
    trial.only("data.kind", "tinyshakespeare", "wikitext2", "text")
    trial.only("train.precision", "f32", "bf16", "amp-bf16", *(["tf32"] if trial["device"] == "cuda" else []))
    trial.only("train.optimizer.kind", "adamw")
    trial.only("train.learning_rate_schedule.kind", "constant", "linear", "cosine")
    if trial["model.dropout"] > 0:
        trial.notice("dropout is drawn by PyTorch's generator: losses are of the same family as kiln's, and not equal")


def built(trial, vocabulary):
    from kiln_text import normal

    keys = ("d_model", "num_layers", "num_heads", "seq_len", "tie_head", "dropout", "bias")
    shape = {key: trial[f"model.{key}"] for key in keys}
    model = Gpt(vocabulary=trial.get("model.vocabulary") or vocabulary, **shape)
    return model.draw(lambda *asked: normal(trial["train.seed"], *asked))


def train(trial, is_compiled):
    from kiln_text import Batches

    check(trial)
    torch.manual_seed(trial["train.seed"])
    if trial.get("train.cpu_threads"):
        torch.set_num_threads(trial["train.cpu_threads"])
    data = Batches(trial)
    training = Training(trial, built(trial, data.vocabulary), is_compiled)
    total_steps = trial.get("train.steps") or trial["train.epochs"] * data.steps_per_epoch
    parameters = sum(parameter.numel() for parameter in training.model.parameters())
    trial.ready(parameters, total_steps, data.steps_per_epoch, libraries={"libtorch": torch.__version__})
    is_on_gpu, batches = trial["device"] == "cuda", data.training()
    on_device = {"wait": torch.cuda.synchronize, "event": lambda: torch.cuda.Event(enable_timing=True)} if is_on_gpu else {}
    graphs, validation = [], data.validation(trial["train.batch_size"] * trial["train.evaluate.batch_multiple"])

    def at_window():
        if is_on_gpu:
            torch.cuda.reset_peak_memory_stats()
        graphs.append(compiled_graphs() if is_compiled else 0)

    for step in trial.steps(at_window=at_window, **on_device):
        rate = learning_rate(trial, step.number, total_steps)
        loss = training.step([step.next(batches) for _ in range(data.accumulation)], rate)
        step.done(data.rows_per_step, loss, tokens=data.rows_per_step * data.seq_len, learning_rate=rate)
        if trial.evaluation_is_due(step.number):
            trial.evaluate(lambda: training.validate(validation))
    if is_compiled and graphs and compiled_graphs() != graphs[0]:
        trial.note("samples_per_second", "torch.compile compiled within the measured window; raise `measure.warmup_steps`")
    peaks = {"peak_allocated_bytes": torch.cuda.max_memory_allocated(), "peak_reserved_bytes": torch.cuda.max_memory_reserved()}
    valid_loss = trial.evaluate(lambda: training.validate(validation)) if validation else None
    trial.finish(valid_loss=valid_loss, cpu_threads=torch.get_num_threads(), **(peaks if is_on_gpu else {}))


if __name__ == "__main__":
    import kiln_child

    with kiln_child.trial(default=DEFAULT) as trial:
        train(trial, "--compile" in sys.argv[1:])
