"""The tied LSTM-200 on WikiText-2 in PyTorch, from kiln's initial weights, on kiln's batches: what experiments/wikitext2-lstm.yaml does.

python tests/reference/lstm_wikitext2.py DATA SEED STEPS [THREADS]   (DATA holds train.txt and valid.txt, plain, .gz or .xz)

Prints the seed, the steps, the validation loss in nats, the perplexity and the median seconds of a step. The generator that
dropout draws from is seeded before each step as kiln seeds it, so on one machine the two drop the same values: losses agree to 7
digits at first, then drift apart as rounding grows at this learning rate.
"""

import gzip
import lzma
import math
import pathlib
import statistics
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

ROWS, TIME, WIDTH, LAYERS, DROPOUT, RATE, CLIP = 20, 35, 200, 2, 0.2, 20.0, 0.25
BLOCK = 1 << 16


def words(folder, name):
    for suffix, opened in (("", open), (".gz", gzip.open), (".xz", lzma.open)):
        path = pathlib.Path(folder) / f"{name}{suffix}"
        if path.exists():
            with opened(path, "rt", encoding="utf-8") as file:
                return [word for line in file for word in [*line.split(), "<eos>"]]
    sys.exit(f"{folder} has no {name}")


def mixed(z):
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


GAMMA = np.uint64(0x9E3779B97F4A7C15)


def uniform(seed, name, shape, bound):
    """crates/trial/src/model/init.rs: SplitMix64, one stream per block of 65,536 values."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = ((key ^ byte) * 0x100000001B3) % 2**64
    with np.errstate(over="ignore"):
        stream = mixed(np.uint64(seed) + GAMMA) ^ np.uint64(key)
        at = np.arange(math.prod(shape), dtype=np.uint64)
        start = stream + at // np.uint64(BLOCK) * np.uint64(0xD6E8FEB86659FD93)
        numbers = mixed(start + (at % np.uint64(BLOCK) + np.uint64(1)) * GAMMA)
    values = ((numbers >> np.uint64(11)).astype(np.float64) / 2.0**53 * 2.0 - 1.0) * bound
    return torch.from_numpy(values.astype(np.float32).reshape(shape))


def dropout_seed(seed, step):
    """crates/trial/src/train/learner.rs: what kiln seeds the engine with before the one micro-batch of a step, counted from 1."""
    for part in (step, 0):
        with np.errstate(over="ignore"):
            seed = int(mixed(np.uint64(seed) + np.uint64(part + 1) * GAMMA))
    return seed


class Model(nn.Module):
    def __init__(self, vocabulary, seed):
        super().__init__()
        self.table = nn.Parameter(uniform(seed, "token_table", (vocabulary, WIDTH), 0.1))
        self.head_bias = nn.Parameter(torch.zeros(vocabulary))
        self.lstm = nn.LSTM(WIDTH, WIDTH, LAYERS, dropout=DROPOUT, batch_first=True)
        bound = 1.0 / math.sqrt(WIDTH)
        for layer in range(LAYERS):
            for part, ours, shape in (
                ("weight_ih", "input_weight", (4 * WIDTH, WIDTH)),
                ("weight_hh", "state_weight", (4 * WIDTH, WIDTH)),
                ("bias_ih", "bias_input", (4 * WIDTH,)),
                ("bias_hh", "bias_state", (4 * WIDTH,)),
            ):
                getattr(self.lstm, f"{part}_l{layer}").data = uniform(seed, f"layers.{layer}.{ours}", shape, bound)

    def forward(self, tokens, state):
        drop = lambda x: F.dropout(x, DROPOUT, self.training)
        x, state = self.lstm(drop(F.embedding(tokens, self.table)), state)
        return F.linear(drop(x), self.table, self.head_bias), tuple(part.detach() for part in state)


def contiguous(tokens, rows):
    """Batches of `rows` samples, each row going on where it ended; what fills no batch is left out."""
    samples = (len(tokens) - TIME - 1) // TIME + 1
    steps = samples // rows
    for step in range(steps):
        starts = [(row * steps + step) * TIME for row in range(rows)]
        both = torch.stack([tokens[start : start + TIME + 1] for start in starts])
        yield both[:, :-1], both[:, 1:]


def evaluation(tokens, rows):
    """Every target once: the first rows have one window more, the last window is padded."""
    count = (len(tokens) - 1 + TIME - 1) // TIME
    base, more = divmod(count, rows)
    for step in range(base + (more > 0)):
        inputs, targets = [], []
        for row in range(rows if step < base else more):
            start = (row * base + min(row, more) + step) * TIME
            window = tokens[start : start + TIME + 1]
            inputs.append(F.pad(window[:-1], (0, TIME - len(window) + 1)))
            targets.append(F.pad(window[1:], (0, TIME - len(window) + 1), value=-100))
        yield torch.stack(inputs), torch.stack(targets)


def main():
    folder, seed, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(int(sys.argv[4]) if len(sys.argv) > 4 else torch.get_num_threads())
    torch.manual_seed(seed)
    ids, train = {}, words(folder, "train.txt")
    train = torch.tensor([ids.setdefault(word, len(ids)) for word in train])
    valid = torch.tensor([ids.get(word, ids["<unk>"]) for word in words(folder, "valid.txt")])
    model = Model(len(ids), seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    state, seconds, batches = None, [], contiguous(train, ROWS)
    for step in range(1, steps + 1):
        tokens, targets = next(batches)
        torch.manual_seed(dropout_seed(seed, step))
        started = time.perf_counter()
        logits, state = model(tokens, state)
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
    model.eval()
    total, count, state = 0.0, 0, None
    with torch.no_grad():
        for tokens, targets in evaluation(valid, ROWS):
            if state is not None:
                state = tuple(part[:, : len(tokens)].contiguous() for part in state)
            logits, state = model(tokens, state)
            total += F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").item()
            count += int((targets != -100).sum())
    assert count == len(valid) - 1
    loss = total / count
    print(f"{seed},{steps},{loss:.6f},{math.exp(loss):.3f},{statistics.median(seconds):.4f}")


main()
