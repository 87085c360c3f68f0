"""Speed of one optimizer step of kiln's models in PyTorch: fused optimizers and attention, channels last, autocast for mixed precision.

pytorch_models.py eager|compile CASES MODEL PRECISION THREADS DEVICE; MODEL names a case of the file CASES, such as step-speed-models.json,
`compile` puts the model through torch.compile. Prints, for each of five blocks of steps, its number, seconds and CPU seconds of one step, the
loss after it, and the most memory so far. Counterpart of crates/trial/examples/step-speed.rs.
"""

import contextlib
import json
import pathlib
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "engines"))
import gpt_pytorch

WARM_UP_STEPS, BLOCKS = 3, 5
# A model that is still being compiled after so many steps is compiled anew in each, and is measured so.
MOST_WARM_UP_STEPS = 40
# Exit status, for against-pytorch.sh.
NOTHING_COMPILED = 4
PRECISIONS = ("f32", "tf32", "bf16", "amp-bf16", "amp-f16")


# Language models: tokens [rows, time] to logits [rows, time, vocabulary] ---------------------------------------------------------

class Gpt(gpt_pytorch.Gpt):
    SHAPE = ("d_model", "num_layers", "num_heads", "seq_len", "vocabulary", "tie_head")

    def __init__(self, shape, _):
        super().__init__(**{key: shape[key] for key in self.SHAPE})
        self.draw(lambda _, shape, deviation: torch.randn(shape) * deviation)


class Lstm(nn.Module):
    """Its state goes on from step to step."""

    def __init__(self, shape, _):
        super().__init__()
        width, hidden, vocabulary = shape["d_model"], shape["hidden"], shape["vocabulary"]
        self.drop, self.state = nn.Dropout(shape["dropout"]), None
        self.token_table, self.head = nn.Embedding(vocabulary, width), nn.Linear(hidden, vocabulary)
        self.lstm = nn.LSTM(width, hidden, shape["num_layers"], dropout=shape["dropout"], batch_first=True)
        nn.init.uniform_(self.token_table.weight, -0.1, 0.1)
        nn.init.uniform_(self.head.weight, -0.1, 0.1)
        nn.init.zeros_(self.head.bias)
        if shape["tie_head"]:
            self.head.weight = self.token_table.weight

    def forward(self, tokens):
        x, state = self.lstm(self.drop(self.token_table(tokens)), self.state)
        self.state = tuple(part.detach() for part in state)
        return self.head(self.drop(x))


class Mlp(nn.Module):
    """The last tokens up to each position, embedded side by side."""

    def __init__(self, shape, _):
        super().__init__()
        self.context, width = shape["context"], shape["d_model"]
        self.token_table = nn.Embedding(shape["vocabulary"], width)
        self.hidden, self.output = nn.Linear(self.context * width, shape["hidden"]), nn.Linear(shape["hidden"], shape["vocabulary"])

    def forward(self, tokens):
        time = tokens.shape[1]
        padded = F.pad(self.token_table(tokens), (0, 0, self.context - 1, 0))
        seen = torch.cat([padded[:, at : at + time] for at in range(self.context)], dim=2)
        return self.output(F.gelu(self.hidden(seen)))


# Images and panels: one row of outputs for each ----------------------------------------------------------------------------------

class ConvNorm(nn.Sequential):
    def __init__(self, inputs, outputs, kernel, stride):
        super().__init__(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs))
        nn.init.kaiming_normal_(self[0].weight, mode="fan_out", nonlinearity="relu")


class ResnetBlock(nn.Module):
    def __init__(self, layers, shortcut):
        super().__init__()
        self.convolutions = nn.ModuleList(ConvNorm(*layer) for layer in layers)
        self.shortcut = ConvNorm(*shortcut) if shortcut else nn.Identity()

    def forward(self, x):
        around = self.shortcut(x)
        for convolution in self.convolutions[:-1]:
            x = F.relu(convolution(x), inplace=True)
        x = self.convolutions[-1](x)
        x += around
        return F.relu(x, inplace=True)


class Resnet(nn.Module):
    BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}

    def __init__(self, shape, images):
        super().__init__()
        inputs, blocks, is_large = shape["width"], [], shape["stem"] == "imagenet"
        self.stem = ConvNorm(images["channels"], inputs, 7 if is_large else 3, 2 if is_large else 1)
        self.pool = nn.MaxPool2d(3, 2, 1) if is_large else nn.Identity()
        for stage, count in enumerate(self.BLOCKS[shape["depth"]]):
            inner = shape["width"] << stage
            outputs = inner * (1 if shape["depth"] < 50 else 4)
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                if shape["depth"] < 50:
                    layers = [(inputs, outputs, 3, stride), (outputs, outputs, 3, 1)]
                else:
                    layers = [(inputs, inner, 1, 1), (inner, inner, 3, stride), (inner, outputs, 1, 1)]
                shortcut = (inputs, outputs, 1, stride) if inputs != outputs or stride != 1 else None
                blocks.append(ResnetBlock(layers, shortcut))
                inputs = outputs
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inputs, images["classes"])
        self.to(memory_format=torch.channels_last)

    def forward(self, images):
        x = self.pool(F.relu(self.stem(images.to(memory_format=torch.channels_last)), inplace=True))
        return self.head(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))


class PanelLstm(nn.Module):
    def __init__(self, shape, panel):
        super().__init__()
        self.symbol_table = nn.Embedding(panel["symbols"], shape["symbol_width"])
        self.lstm = nn.LSTM(panel["features"] + shape["symbol_width"], shape["hidden"], shape["num_layers"], batch_first=True)
        self.head = nn.Linear(shape["hidden"], 1)

    def forward(self, features, symbols):
        symbol = self.symbol_table(symbols).unsqueeze(1).expand(-1, features.shape[1], -1)
        x, _ = self.lstm(torch.cat([features, symbol], dim=2))
        return self.head(x[:, -1]).squeeze(1)


class Seq2seq(nn.Module):
    """Hugging Face's T5."""

    def __init__(self, shape, _):
        super().__init__()
        from transformers import T5Config, T5ForConditionalGeneration

        self.t5 = T5ForConditionalGeneration(T5Config(
            vocab_size=shape["vocabulary"], d_model=shape["d_model"], d_kv=shape["d_kv"], d_ff=shape["d_ff"], num_heads=shape["num_heads"],
            num_layers=shape["encoder_layers"], num_decoder_layers=shape["decoder_layers"], dropout_rate=0.0, feed_forward_proj="relu",
            tie_word_embeddings=True, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
        ))
        self.t5.train()

    def forward(self, prompts, counted, decoder_inputs):
        return self.t5(input_ids=prompts, attention_mask=counted, decoder_input_ids=decoder_inputs, use_cache=False).logits


MODELS = {"gpt": Gpt, "lstm": Lstm, "mlp": Mlp, "resnet": Resnet, "panel-lstm": PanelLstm, "seq2seq": Seq2seq}


# Batches without meaning, the same in step-speed.rs ------------------------------------------------------------------------------

def counter(step, rows, values, bound):
    row, at = torch.arange(rows).unsqueeze(1), torch.arange(values)
    return (step * 7919 + row * 104_729 + at * 31) % bound


def real(step, rows, values):
    return counter(step, rows, values, 255) / 127.5 - 1.0


def padded(step, rows, longest, vocabulary):
    """Tokens, and which of them count: each row of four is an eighth shorter than the one before."""
    lengths = longest - torch.arange(rows).unsqueeze(1) % 4 * (longest // 8)
    counted = torch.arange(longest) < lengths
    return (2 + counter(step, rows, longest, vocabulary - 2)) * counted, counted


def batch(case, step):
    """What goes into the model, and its targets."""
    rows, shape = case["train"]["batch_size"], case["model"]
    if "images" in case:
        images = case["images"]
        channels, height, width = images["channels"], images["height"], images["width"]
        pixels = real(step, rows, channels * height * width).view(rows, channels, height, width)
        return (pixels,), counter(step, rows, 1, images["classes"]).flatten()
    if "panel" in case:
        features, time = case["panel"]["features"], shape["seq_len"]
        symbols = counter(step, rows, 1, case["panel"]["symbols"]).flatten()
        return (real(step, rows, time * features).view(rows, time, features), symbols), real(step, rows, 1).flatten()
    if "pairs" in case:
        prompts, counted = padded(step, rows, case["pairs"]["prompt_len"], shape["vocabulary"])
        responses, answered = padded(step, rows, case["pairs"]["response_len"], shape["vocabulary"])
        return (prompts, counted.long(), F.pad(responses[:, :-1], (1, 0))), torch.where(answered, responses, -100)
    tokens = counter(step, rows, shape["seq_len"] + 1, shape["vocabulary"])
    return (tokens[:, :-1].contiguous(),), tokens[:, 1:].contiguous()


# Training ------------------------------------------------------------------------------------------------------------------------

def optimizer(parameters, kind, rate, keys):
    if kind == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(parameters, lr=rate, scale_parameter=False, relative_step=False, warmup_init=False)
    rule = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[kind]
    return rule(parameters, lr=rate, fused=True, **keys)


class Training:
    def __init__(self, case, precision, device, is_compiled):
        kind = case["model"]["kind"]
        self.device = device
        self.model = MODELS[kind](case["model"], case.get("images") or case.get("panel"))
        self.format = torch.bfloat16 if precision == "bf16" else torch.float32
        self.model.to(device, self.format)
        if device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            # Asked also where recurrent layers are in bf16, which would otherwise be without tensor cores.
            torch.backends.cudnn.allow_tf32 = precision != "f32"
        narrow = {"amp-bf16": torch.bfloat16, "amp-f16": torch.float16}.get(precision)
        self.autocast = torch.autocast(device, dtype=narrow) if narrow else contextlib.nullcontext()
        # Without it, scaling and unscaling are the identity.
        self.scaler = torch.amp.GradScaler(device, enabled=precision == "amp-f16")
        keys = dict(case["train"]["optimizer"])
        self.optimizer = optimizer(self.model.parameters(), keys.pop("kind"), keys.pop("learning_rate"), keys)
        self.clip_norm = case["train"]["clip_norm"]
        self.forward = torch.compile(self.model) if is_compiled else self.model

    def to_device(self, values):
        values = values.to(self.device, non_blocking=True)
        return values.to(self.format) if values.is_floating_point() else values

    def step(self, inputs, targets):
        inputs, targets = [self.to_device(values) for values in inputs], targets.to(self.device, non_blocking=True)
        with self.autocast:
            loss = self.loss(self.forward(*inputs), targets)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def loss(self, outputs, targets):
        if targets.is_floating_point():
            return F.mse_loss(outputs.float(), targets)
        return F.cross_entropy(outputs.float().flatten(0, -2), targets.flatten())

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def peak_bytes(self):
        """Of the allocator since the warm-up; on the CPU of the whole process, its compiling included."""
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated()
        status = pathlib.Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def compiled_graphs():
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def warm_up(training, case, is_compiled):
    """Steps until three in a row have compiled nothing."""
    quiet = 0
    for step in range(MOST_WARM_UP_STEPS):
        before = compiled_graphs() if is_compiled else 0
        training.step(*on_host(batch(case, step % WARM_UP_STEPS), training.device))
        quiet = quiet + 1 if not is_compiled or compiled_graphs() == before else 0
        if quiet == WARM_UP_STEPS:
            break
    if is_compiled and compiled_graphs() == 0:
        # PyTorch 2.11 takes no nn.LSTM, and falls back to eager for the whole model around one.
        print("torch.compile compiled nothing of this model: its time would be that of eager PyTorch", file=sys.stderr)
        sys.exit(NOTHING_COMPILED)
    training.wait()
    if training.device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def on_host(made, device):
    """Page-locked for a GPU, as a loader with `pin_memory` gives them."""
    inputs, targets = made
    return made if device == "cpu" else (tuple(values.pin_memory() for values in inputs), targets.pin_memory())


def arguments():
    usage = "usage: pytorch_models.py eager|compile|operators CASES MODEL PRECISION THREADS DEVICE"
    if len(sys.argv) != 7 or sys.argv[1] not in ("eager", "compile", "operators"):
        sys.exit(usage)
    program, cases, name, precision, threads, device = sys.argv[1:]
    cases = json.loads(pathlib.Path(cases).read_text())
    if name not in cases:
        sys.exit(f"no model `{name}`; there are {', '.join(cases)}")
    if precision not in PRECISIONS or device not in ("cpu", "cuda"):
        sys.exit(f"{usage}; PRECISION is one of {', '.join(PRECISIONS)}, DEVICE cpu or cuda")
    return program, cases[name], precision, int(threads), device


def print_operators(training, case):
    """Of one step, as `step-speed --operators` reads them: depth and name, each before those that it calls."""
    from torch.profiler import ProfilerActivity, profile

    one = on_host(batch(case, WARM_UP_STEPS), training.device)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        training.step(*one)

    def tell(event, depth):
        is_operator = event.name.startswith("aten::")
        if is_operator:
            print(f"{depth}\t{event.name}")
        for called in sorted(event.cpu_children, key=lambda child: child.time_range.start):
            tell(called, depth + is_operator)

    outermost = [event for event in recorded.events() if event.cpu_parent is None]
    for event in sorted(outermost, key=lambda event: event.time_range.start):
        tell(event, 0)


def main():
    program, case, precision, threads, device = arguments()
    is_compiled = program == "compile"
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    training, steps = Training(case, precision, device, is_compiled), case["block_steps"]
    warm_up(training, case, is_compiled)
    if program == "operators":
        print_operators(training, case)
        return
    for block in range(BLOCKS):
        first = WARM_UP_STEPS + block * steps
        batches = [on_host(batch(case, step), device) for step in range(first, first + steps)]
        training.wait()
        started, cpu_started = time.perf_counter(), time.process_time()
        for one in batches:
            loss = training.step(*one)
        training.wait()
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        print(f"{block + 1},{seconds / steps:.6f},{cpu_seconds / steps:.6f},{loss.item():.4f},{training.peak_bytes()}")


main()
