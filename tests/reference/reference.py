"""Losses and gradients of kiln's models in PyTorch, for crates/trial/tests/parity.rs. Nothing in kiln's build or tests runs this.

python tests/reference/reference.py [MODEL…]   (needs torch 2.11 and numpy)

Writes, beside this file, for each model MODEL-steps.csv (20 steps in f32, dropout 0: the loss and the norm of the whole gradient
before it is clipped) and MODEL-gradients.csv (the norm of each parameter's gradient at step 1); of gpt also gpt-noise.csv and
gpt-layers.csv, steps of four micro-batches. Weights and batches come from a
counter generator that crates/trial/tests/parity.rs has too, so no weights are stored. Parameters have kiln's names.
"""

import csv
import itertools
import math
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

STEPS = 20
MICRO = 4
HERE = pathlib.Path(__file__).parent


# The counter generator -------------------------------------------------------------------------------------------------------

def numbers(name, count):
    """The first `count` numbers of SplitMix64 whose state starts as FNV-1a of the name."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = ((key ^ byte) * 0x100000001B3) % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(name, count):
    """Between -1 and 1, f64."""
    return (numbers(name, count) >> np.uint64(11)).astype(np.float64) / 2.0**53 * 2.0 - 1.0


def weights(name, shape):
    """Variance 1 / (inputs per output) for two axes or more; biases within 0.1, gains within 0.1 of 1."""
    values = uniform(name, math.prod(shape))
    if len(shape) > 1:
        values = values * math.sqrt(3.0 / math.prod(shape[1:]))
    elif name.split(".")[-1].startswith("bias"):
        values = values * 0.1
    else:
        values = values * 0.1 + 1.0
    return torch.from_numpy(values.reshape(shape).astype(np.float32))


def classes(name, count, bound):
    return torch.from_numpy((numbers(name, count) % np.uint64(bound)).astype(np.int64))


# The models, with kiln's names for each parameter ------------------------------------------------------------------------------

class Gpt:
    """Pre-norm GPT, tied head; tokens [4, 16], vocabulary 50."""

    rows, time, vocabulary, width, layers, heads = 4, 16, 50, 32, 2, 4
    optimizer, rate, clip = "adamw", 1e-3, 1.0

    def shapes(self):
        width = self.width
        yield "token_table", (self.vocabulary, width)
        yield "position_table", (self.time, width)
        for layer in range(self.layers):
            for norm in ("attention_norm", "mlp_norm"):
                yield f"blocks.{layer}.{norm}.weight", (width,)
                yield f"blocks.{layer}.{norm}.bias", (width,)
            for name, outputs, inputs in (
                ("attention.queries_keys_values", 3 * width, width),
                ("attention.projection", width, width),
                ("mlp.widening", 4 * width, width),
                ("mlp.projection", width, 4 * width),
            ):
                yield f"blocks.{layer}.{name}.weight", (outputs, inputs)
                yield f"blocks.{layer}.{name}.bias", (outputs,)
        yield "final_norm.weight", (width,)
        yield "final_norm.bias", (width,)

    def loss(self, p, step):
        tokens = classes(f"tokens.{(step - 1) % 4}", self.rows * (self.time + 1), self.vocabulary).view(self.rows, self.time + 1)
        norm = lambda x, name: F.layer_norm(x, (self.width,), p[f"{name}.weight"], p[f"{name}.bias"])
        linear = lambda x, name: F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])
        x = F.embedding(tokens[:, :-1], p["token_table"]) + p["position_table"]
        for layer in range(self.layers):
            at = f"blocks.{layer}"
            qkv = linear(norm(x, f"{at}.attention_norm"), f"{at}.attention.queries_keys_values")
            q, k, v = (part.view(self.rows, self.time, self.heads, -1).transpose(1, 2) for part in qkv.split(self.width, dim=2))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(self.rows, self.time, self.width)
            x = x + linear(mixed, f"{at}.attention.projection")
            x = x + linear(F.gelu(linear(norm(x, f"{at}.mlp_norm"), f"{at}.mlp.widening")), f"{at}.mlp.projection")
        logits = F.linear(norm(x, "final_norm"), p["token_table"])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Lstm:
    """Two layers, head of its own; the state goes on from step to step; tokens [4, 16], vocabulary 50."""

    rows, time, vocabulary, width, hidden, layers = 4, 16, 50, 12, 20, 2
    optimizer, rate, momentum, clip = "sgd", 1.0, 0.0, 0.25

    def __init__(self):
        self.state = [torch.zeros(self.layers, self.rows, self.hidden) for _ in range(2)]

    def shapes(self):
        yield "token_table", (self.vocabulary, self.width)
        for layer in range(self.layers):
            yield f"layers.{layer}.input_weight", (4 * self.hidden, self.width if layer == 0 else self.hidden)
            yield f"layers.{layer}.state_weight", (4 * self.hidden, self.hidden)
            yield f"layers.{layer}.bias_input", (4 * self.hidden,)
            yield f"layers.{layer}.bias_state", (4 * self.hidden,)
        yield "head", (self.vocabulary, self.hidden)
        yield "head_bias", (self.vocabulary,)

    def loss(self, p, step):
        tokens = classes(f"tokens.{(step - 1) % 4}", self.rows * (self.time + 1), self.vocabulary).view(self.rows, self.time + 1)
        parts = ("input_weight", "state_weight", "bias_input", "bias_state")
        flat = [p[f"layers.{layer}.{part}"] for layer in range(self.layers) for part in parts]
        x = F.embedding(tokens[:, :-1], p["token_table"])
        x, *state = torch.lstm(x, self.state, flat, True, self.layers, 0.0, True, False, True)
        self.state = [part.detach() for part in state]
        return F.cross_entropy(F.linear(x, p["head"], p["head_bias"]).flatten(0, 1), tokens[:, 1:].flatten())


class Mlp:
    """The last 4 tokens, embedded side by side, one hidden layer; tokens [4, 16], vocabulary 50."""

    rows, time, vocabulary, width, hidden, context = 4, 16, 50, 8, 32, 4
    optimizer, rate, momentum, clip = "sgd", 0.1, 0.9, None

    def shapes(self):
        yield "token_table", (self.vocabulary, self.width)
        yield "hidden.weight", (self.hidden, self.context * self.width)
        yield "hidden.bias", (self.hidden,)
        yield "output.weight", (self.vocabulary, self.hidden)
        yield "output.bias", (self.vocabulary,)

    def loss(self, p, step):
        tokens = classes(f"tokens.{(step - 1) % 4}", self.rows * (self.time + 1), self.vocabulary).view(self.rows, self.time + 1)
        table = F.embedding(tokens[:, :-1], p["token_table"])
        padded = F.pad(table, (0, 0, self.context - 1, 0))
        seen = torch.cat([padded[:, at : at + self.time] for at in range(self.context)], dim=2)
        hidden = F.gelu(F.linear(seen, p["hidden.weight"], p["hidden.bias"]))
        logits = F.linear(hidden, p["output.weight"], p["output.bias"])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Resnet:
    """Basic blocks, small stem, smoothed labels; images [8, 3, 16, 16], 10 classes."""

    rows, classes, side, width, blocks, bottleneck, imagenet = 8, 10, 16, 4, (2, 2, 2, 2), False, False
    optimizer, rate, momentum, clip, nesterov, decay, smoothing = "sgd", 0.05, 0.9, None, True, 5e-4, 0.1

    def plan(self):
        """Of each block: its name, its convolutions (inputs, outputs, kernel, stride), and its shortcut or None."""
        inputs = self.width
        for stage, blocks in enumerate(self.blocks):
            inner = self.width << stage
            outputs = inner * (4 if self.bottleneck else 1)
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                if self.bottleneck:
                    layers = [(inputs, inner, 1, 1), (inner, inner, 3, stride), (inner, outputs, 1, 1)]
                else:
                    layers = [(inputs, outputs, 3, stride), (outputs, outputs, 3, 1)]
                shortcut = (inputs, outputs, 1, stride) if inputs != outputs or stride != 1 else None
                yield f"stages.{stage}.{block}", layers, shortcut
                inputs = outputs

    def convolutions(self):
        yield "stem", (3, self.width, 7 if self.imagenet else 3, 2 if self.imagenet else 1)
        for name, layers, shortcut in self.plan():
            for at, layer in enumerate(layers):
                yield f"{name}.convolutions.{at}", layer
            if shortcut:
                yield f"{name}.shortcut", shortcut

    def shapes(self):
        for name, (inputs, outputs, kernel, _) in self.convolutions():
            yield f"{name}.weight", (outputs, inputs, kernel, kernel)
            yield f"{name}.gain", (outputs,)
            yield f"{name}.shift", (outputs,)
        last = (self.width << 3) * (4 if self.bottleneck else 1)
        yield "head.weight", (self.classes, last)
        yield "head.bias", (self.classes,)

    def loss(self, p, step):
        number, stride = (step - 1) % 4, {name: layer[3] for name, layer in self.convolutions()}

        def convolved(x, name):
            weight = p[f"{name}.weight"]
            x = F.conv2d(x, weight, stride=stride[name], padding=weight.shape[-1] // 2)
            return F.batch_norm(x, None, None, p[f"{name}.gain"], p[f"{name}.shift"], training=True)

        x = uniform(f"pixels.{number}", self.rows * 3 * self.side**2).astype(np.float32)
        x = F.relu(convolved(torch.from_numpy(x).view(self.rows, 3, self.side, self.side), "stem"))
        if self.imagenet:
            x = F.max_pool2d(x, 3, 2, 1)
        for name, layers, shortcut in self.plan():
            around, last = (convolved(x, f"{name}.shortcut") if shortcut else x), len(layers) - 1
            for at in range(last):
                x = F.relu(convolved(x, f"{name}.convolutions.{at}"))
            x = F.relu(convolved(x, f"{name}.convolutions.{last}") + around)
        logits = F.linear(x.mean((2, 3)), p["head.weight"], p["head.bias"])
        return F.cross_entropy(logits, classes(f"labels.{number}", self.rows, self.classes), label_smoothing=self.smoothing)


class Resnet50(Resnet):
    """Bottlenecks, ImageNet stem; images [8, 3, 64, 64], 10 classes."""

    side, width, blocks, bottleneck, imagenet = 64, 2, (3, 4, 6, 3), True, True
    rate, momentum, nesterov, decay, smoothing = 0.001, 0.0, False, 0.0, 0.0


class PanelLstm:
    """Three layers over windows of 12 rows of 6 features beside a symbol's embedding; 8 windows, 9 symbols; returns."""

    rows, time, features, symbols, width, hidden, layers, direction = 8, 12, 6, 9, 5, 16, 3, False
    optimizer, rate, clip = "adamw", 1e-2, None

    def shapes(self):
        yield "symbol_table", (self.symbols, self.width)
        for layer in range(self.layers):
            yield f"layers.{layer}.input_weight", (4 * self.hidden, self.features + self.width if layer == 0 else self.hidden)
            yield f"layers.{layer}.state_weight", (4 * self.hidden, self.hidden)
            yield f"layers.{layer}.bias_input", (4 * self.hidden,)
            yield f"layers.{layer}.bias_state", (4 * self.hidden,)
        yield "head.weight", (1, self.hidden)
        yield "head.bias", (1,)

    def loss(self, p, step):
        number = (step - 1) % 4
        real = lambda name, count: torch.from_numpy(uniform(f"{name}.{number}", count).astype(np.float32))
        features = real("features", self.rows * self.time * self.features).view(self.rows, self.time, self.features)
        symbol = F.embedding(classes(f"symbols.{number}", self.rows, self.symbols), p["symbol_table"])
        x = torch.cat([features, symbol.unsqueeze(1).expand(-1, self.time, -1)], dim=2)
        parts = ("input_weight", "state_weight", "bias_input", "bias_state")
        flat = [p[f"layers.{layer}.{part}"] for layer in range(self.layers) for part in parts]
        state = [torch.zeros(self.layers, self.rows, self.hidden) for _ in range(2)]
        x = torch.lstm(x, state, flat, True, self.layers, 0.0, True, False, True)[0]
        found, targets = F.linear(x[:, -1], p["head.weight"], p["head.bias"]).squeeze(1), real("targets", self.rows)
        if self.direction:
            return F.binary_cross_entropy_with_logits(found, (targets > 0).float())
        return F.mse_loss(found, targets)


class PanelDirection(PanelLstm):
    """The same, for the direction of returns."""

    direction = True


class Transposed:
    """One layer on images whose weight [classes, pixels] is used transposed: its gradient lies in memory the other way round."""

    rows, classes, side = 8, 10, 16
    optimizer, rate, clip = "adamw", 1e-2, None

    def shapes(self):
        yield "weight", (self.classes, 3 * self.side**2)

    def loss(self, p, step):
        number = (step - 1) % 4
        pixels = uniform(f"pixels.{number}", self.rows * 3 * self.side**2).astype(np.float32)
        labels = classes(f"labels.{number}", self.rows, self.classes)
        return F.cross_entropy(torch.from_numpy(pixels).view(self.rows, -1) @ p["weight"].t(), labels)


class TransposedSgd(Transposed):
    optimizer, rate, momentum, decay = "sgd", 0.1, 0.9, 5e-4


MODELS = {
    "transposed": Transposed,
    "transposed-sgd": TransposedSgd,
    "gpt": Gpt,
    "lstm": Lstm,
    "mlp": Mlp,
    "resnet18": Resnet,
    "resnet50": Resnet50,
    "panel-lstm": PanelLstm,
    "panel-lstm-direction": PanelDirection,
}


# Training ----------------------------------------------------------------------------------------------------------------------

def norm_of(gradients):
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))


def reference(name):
    model = MODELS[name]()
    parameters = {path: weights(path, shape).requires_grad_() for path, shape in model.shapes()}
    if model.optimizer == "adamw":
        optimizer = torch.optim.AdamW(parameters.values(), lr=model.rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    else:
        more = {"nesterov": getattr(model, "nesterov", False), "weight_decay": getattr(model, "decay", 0.0)}
        optimizer = torch.optim.SGD(parameters.values(), lr=model.rate, momentum=model.momentum, **more)
    steps = []
    for step in range(1, STEPS + 1):
        loss = model.loss(parameters, step)
        loss.backward()
        gradients = {path: parameter.grad for path, parameter in parameters.items()}
        if step == 1:
            first = [(path, f"{norm_of([gradient]):.9g}") for path, gradient in gradients.items()]
        steps.append((step, f"{loss.item():.9g}", f"{norm_of(gradients.values()):.9g}"))
        if model.clip:
            nn.utils.clip_grad_norm_(parameters.values(), model.clip)
        optimizer.step()
        optimizer.zero_grad()
    write(f"{name}-steps.csv", ("step", "loss", "gradient_norm"), steps)
    write(f"{name}-gradients.csv", ("parameter", "gradient_norm"), first)


def noise(name):
    """Steps of MICRO micro-batches: the norms of their gradients, and what they say of the gradient's noise (McCandlish et al., 2018, A.1)."""
    model = MODELS[name]()
    parameters = {path: weights(path, shape).requires_grad_() for path, shape in model.shapes()}
    optimizer = torch.optim.AdamW(parameters.values(), lr=model.rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    names = list(parameters)
    groups = {}
    for at, path in enumerate(names):
        groups.setdefault(group_of(path), []).append(at)
    steps, layers = [], []
    for step in range(1, STEPS + 1):
        alone = []
        for micro in range(MICRO):
            loss = model.loss(parameters, MICRO * (step - 1) + micro + 1)
            alone.append(torch.autograd.grad(loss, list(parameters.values())))
        for at, parameter in enumerate(parameters.values()):
            parameter.grad = sum(gradients[at] for gradients in alone) / MICRO

        def cells(places):
            small, large = model.rows, model.rows * MICRO
            of_small = sum(norm_of(gradients[at] for at in places) ** 2 for gradients in alone) / MICRO
            of_large = norm_of(parameters[names[at]].grad for at in places) ** 2
            signal = (large * of_large - small * of_small) / (large - small)
            spread = (of_small - of_large) / (1 / small - 1 / large)
            return (f"{value:.9g}" for value in (of_large, of_small, signal, spread))

        steps.append((step, *cells(range(len(names)))))
        for group, places in groups.items():
            layers.append((step, group, sum(parameters[names[at]].numel() for at in places), *cells(places)))
        nn.utils.clip_grad_norm_(parameters.values(), model.clip)
        optimizer.step()
        optimizer.zero_grad()
    columns = ("gradient_norm_squared", "micro_gradient_norm_squared", "gradient_signal", "gradient_noise")
    write(f"{name}-noise.csv", ("step", *columns), steps)
    write(f"{name}-layers.csv", ("step", "layer_group", "parameters", *columns), layers)


def group_of(path):
    """The layer group of a parameter: its path up to its first numbers, else its first word."""
    words = path.split(".")
    first = next((at for at, word in enumerate(words) if word.isdigit()), None)
    if first is None:
        return words[0]
    numbers = itertools.takewhile(str.isdigit, words[first:])
    return ".".join([*words[:first], *numbers])


def write(name, head, rows):
    with open(HERE / name, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(head)
        table.writerows(rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for wanted in sys.argv[1:] or MODELS:
        reference(wanted)
    if "gpt" in (sys.argv[1:] or MODELS):
        noise("gpt")
