"""kiln's texts, batches and random numbers in PyTorch: the same tokens, the same order of samples and the same initial weights
for the same trial. Counterparts: crates/data/src/{text,tokenizer}.rs, crates/trial/src/data/{order,schedule,text}.rs,
crates/trial/src/model/init.rs, crates/core/src/kinds/random.rs.
"""

import gzip
import lzma
import math
import os
import pathlib

import torch

GAMMA, BLOCK = 0x9E3779B97F4A7C15, 1 << 16
STREAM_OF_BLOCK = 0xD6E8FEB86659FD93
MASK = (1 << 64) - 1
IGNORED = -100


# Random numbers: SplitMix64, whose state is a counter -------------------------------------------------------------------------

def mix(state):
    """Its output for a state."""
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def signed(value):
    return value - (1 << 64) if value >> 63 else value


def shifted(values, bits):
    """Unsigned, of int64."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def mixed(states):
    """`mix` of int64 tensors, which wrap."""
    z = (states ^ shifted(states, 30)) * signed(0xBF58476D1CE4E5B9)
    z = (z ^ shifted(z, 27)) * signed(0x94D049BB133111EB)
    return z ^ shifted(z, 31)


def stream_of(seed, name):
    """The stream of a parameter's initial values: FNV-1a over its name, mixed with the seed."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = ((key ^ byte) * 0x100000001B3) & MASK
    return mix((seed + GAMMA) & MASK) ^ key


def normal(seed, name, shape, deviation):
    """Normal values by Box and Muller's transform, from the seed and the parameter's name. f32."""
    count, parts = math.prod(shape), []
    for number, start in enumerate(range(0, count, BLOCK)):
        stream = (stream_of(seed, name) + number * STREAM_OF_BLOCK) & MASK
        draws = torch.arange(1, 2 * ((min(BLOCK, count - start) + 1) // 2) + 1, dtype=torch.int64)
        fractions = shifted(mixed(signed(stream) + draws * signed(GAMMA)), 11).double() / 2.0**53
        radius, angle = (-2.0 * (1.0 - fractions[0::2]).log()).sqrt(), 2.0 * math.pi * fractions[1::2]
        parts.append(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1).flatten() * deviation)
    return torch.cat(parts)[:count].float().view(shape)


class Order:
    """The order of samples of one epoch (from 0) under one seed."""

    def __init__(self, seed, epoch):
        self.start = mix(mix((seed + GAMMA) & MASK) ^ (epoch * GAMMA & MASK))

    def below(self, counter, bound):
        return mix((self.start + (counter + 1) * GAMMA) & MASK) * bound >> 64

    def permutation(self, count):
        order = list(range(count))
        for last in range(count - 1, 0, -1):
            other = self.below(last, last + 1)
            order[last], order[other] = order[other], order[last]
        return order


# Texts ------------------------------------------------------------------------------------------------------------------------

def words(text):
    return [word for line in text.removesuffix("\n").split("\n") for word in (*line.split(), "<eos>")] if text else []


def tokenized(tokenizer, train, valid):
    """Token ids of both parts, and the size of the vocabulary."""
    if tokenizer == "byte":
        return [torch.tensor(list(part.encode()), dtype=torch.int64) for part in (train, valid)], 256
    train, valid = (words(train), words(valid)) if tokenizer == "word" else (train, valid)
    # Words in the order in which they occur first, characters by code point.
    ids = {token: at for at, token in enumerate(dict.fromkeys(train) if tokenizer == "word" else sorted(set(train)))}
    if "<unk>" not in ids and any(token not in ids for token in valid):
        ids["<unk>"] = len(ids)
    unknown = ids.get("<unk>")
    return [torch.tensor([ids.get(token, unknown) for token in part], dtype=torch.int64) for part in (train, valid)], len(ids)


def read(path):
    """The text of a file, plain, .gz or .xz."""
    for suffix, opened in (("", open), (".gz", gzip.open), (".xz", lzma.open)):
        if path.with_name(path.name + suffix).is_file():
            with opened(path.with_name(path.name + suffix), "rb") as file:
                return file.read().decode()
    raise FileNotFoundError(f"there is no {path}, nor {path.name}.gz or .xz; `data.path` names its folder, or $KILN_DATA the one above")


def parts_of(trial):
    """The training and the validation text."""
    kind, path = trial["data.kind"], trial.get("data.path")
    if kind == "text":
        opened = {".gz": gzip.open, ".xz": lzma.open}.get(pathlib.Path(path).suffix, open)
        with opened(path, "rb") as file:
            text = file.read().decode()
        return split(text, 1.0 - trial.get("data.valid_fraction", 0.1), trial["data.tokenizer"])
    above = pathlib.Path(trial.get("data_folder") or os.environ.get("KILN_DATA") or "data")
    if kind == "wikitext2":
        folder = pathlib.Path(path or above / "wikitext-2")
        return read(folder / "train.txt"), read(folder / "valid.txt")
    return split(read(pathlib.Path(path or above / "tinyshakespeare") / "input.txt"), 0.9, trial["data.tokenizer"])


def split(text, share, tokenizer):
    """After this share of the characters, for words at the start of a line."""
    cut = int(len(text) * share)
    if tokenizer == "word" and cut > 0 and text[cut - 1] != "\n":
        end = text.find("\n", cut)
        cut = len(text) if end < 0 else end + 1
    return text[:cut], text[cut:]


class Batches:
    """The batches of a trial. Tokens and targets are [rows, time]."""

    def __init__(self, trial):
        (self.train, self.valid), self.vocabulary = tokenized(trial["data.tokenizer"], *parts_of(trial))
        self.seed, self.sampling = trial["train.seed"], trial["data.sampling"]
        self.rows, self.accumulation = trial["train.batch_size"], trial["train.grad_accumulation"]
        self.seq_len, stride = trial["model.seq_len"], trial.get("data.stride") or trial["model.seq_len"]
        samples = lambda stride: (len(self.train) - self.seq_len - 1) // stride + 1
        self.samples, self.source_samples = samples(stride), samples(1)
        self.stride = 1 if self.sampling == "random" else stride
        self.rows_per_step = self.rows * self.accumulation
        self.steps_per_epoch = self.samples // self.rows_per_step
        if len(self.train) <= self.seq_len or self.steps_per_epoch == 0:
            raise ValueError(f"{len(self.train)} tokens have fewer samples than the {self.rows_per_step} of one step")
        self.places = torch.arange(self.seq_len + 1)

    def sample(self, order, place):
        if self.sampling == "random":
            return order.below(place, self.source_samples)
        return place % self.rows_per_step * self.steps_per_epoch + place // self.rows_per_step

    def training(self):
        """Endless: the micro-batches of each step in turn."""
        epoch = 0
        while True:
            order = Order(self.seed, epoch)
            shuffled = order.permutation(self.samples) if self.sampling == "shuffled" else None
            for first in range(0, self.steps_per_epoch * self.rows_per_step, self.rows):
                places = range(first, first + self.rows)
                drawn = [shuffled[place] if shuffled else self.sample(order, place) for place in places]
                window = self.train[torch.tensor(drawn).unsqueeze(1) * self.stride + self.places]
                yield window[:, :-1].contiguous(), window[:, 1:].contiguous()
            epoch += 1

    def validation(self, rows):
        """Every target once; the last window is filled up with ignored targets."""
        windows = -(-(len(self.valid) - 1) // self.seq_len)
        padding = windows * self.seq_len + 1 - len(self.valid)
        tokens = torch.cat([self.valid[:-1], torch.zeros(padding, dtype=torch.int64)]).view(windows, self.seq_len)
        targets = torch.cat([self.valid[1:], torch.full((padding,), IGNORED)]).view(windows, self.seq_len)
        return list(zip(tokens.split(rows), targets.split(rows)))
