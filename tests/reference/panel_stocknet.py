"""The panel LSTM on StockNet's prices in PyTorch, from kiln's initial weights, on kiln's batches: what `model.kind: panel-lstm` does.

python tests/reference/panel_stocknet.py DATA return|direction SEED EPOCHS [THREADS]   (DATA or DATA/stocknet-88 holds price-raw.tar.xz)

Prints the target, the seed, the epochs, the mean loss of the last 10 steps, the validation loss, the validation mean absolute error of
log returns (empty for direction) and the validation hit rate; then, of the same samples, the mean absolute error and the hit rate of "it
persists", and the hit rate of the more common direction. Two layers of 64, no dropout, so two programs agree step by step.
"""

import csv
import io
import math
import pathlib
import sys
import tarfile

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

COLUMNS, PRICE = ("Open", "High", "Low", "Close", "Adj Close", "Volume"), 4
HIDDEN, LAYERS, WIDTH, TIME, ROWS, RATE, DECAY = 64, 2, 16, 20, 256, 1e-3, 0.01
VALID_FRACTION, SMALLEST_DEVIATION, LOGGED = 0.1, 1e-12, 10
BLOCK = 1 << 16


# Random numbers ------------------------------------------------------------------------------------------------------------------

GAMMA = np.uint64(0x9E3779B97F4A7C15)


def mixed(z):
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def fractions(seed, name, count):
    """crates/trial/src/model/init.rs: SplitMix64, one stream per block of 65,536 values; in [0, 1)."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = ((key ^ byte) * 0x100000001B3) % 2**64
    with np.errstate(over="ignore"):
        stream = mixed(np.uint64(seed) + GAMMA) ^ np.uint64(key)
        at = np.arange(count, dtype=np.uint64)
        start = stream + at // np.uint64(BLOCK) * np.uint64(0xD6E8FEB86659FD93)
        numbers = mixed(start + (at % np.uint64(BLOCK) + np.uint64(1)) * GAMMA)
    return (numbers >> np.uint64(11)).astype(np.float64) / 2.0**53


def uniform(seed, name, shape, bound):
    values = (fractions(seed, name, math.prod(shape)) * 2.0 - 1.0) * bound
    return torch.from_numpy(values.astype(np.float32).reshape(shape))


def normal(seed, name, shape):
    """Box and Muller's transform of each pair; an even number of values."""
    first, second = fractions(seed, name, math.prod(shape)).reshape(-1, 2).T
    radius, angle = np.sqrt(-2.0 * np.log(1.0 - first)), math.tau * second
    values = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return torch.from_numpy(values.astype(np.float32).reshape(shape))


def permutation(seed, epoch, count):
    """crates/trial/src/data/order.rs: Fisher-Yates from the end; each draw is the high half of a number times its bound."""
    with np.errstate(over="ignore"):
        start = mixed(mixed(np.uint64(seed) + GAMMA) ^ np.uint64(epoch) * GAMMA)
        bounds = np.arange(1, count + 1, dtype=np.uint64)
        bits = mixed(start + bounds * GAMMA)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    drawn = ((bits >> half) * bounds + ((bits & low) * bounds >> half) >> half).tolist()
    order = list(range(count))
    for last in range(count - 1, 0, -1):
        order[last], order[drawn[last]] = order[drawn[last]], order[last]
    return torch.tensor(order)


# The panel -----------------------------------------------------------------------------------------------------------------------

def prices(folder):
    """Of each symbol, in order of their names: the dates, and the numbers [rows, columns]; rows of null are left out."""
    places = [pathlib.Path(folder) / "price-raw.tar.xz", pathlib.Path(folder) / "stocknet-88" / "price-raw.tar.xz"]
    found = next((place for place in places if place.exists()), None) or sys.exit(f"{folder} has no price-raw.tar.xz")
    with tarfile.open(found) as archive:
        files = {pathlib.PurePath(name).stem: archive.extractfile(name).read() for name in archive.getnames() if name.endswith(".csv")}
    for symbol in sorted(files):
        rows = csv.DictReader(io.StringIO(files[symbol].decode()))
        rows = [row for row in rows if "null" not in (row[column] for column in COLUMNS)]
        yield [row["Date"] for row in rows], np.array([[float(row[column]) for column in COLUMNS] for row in rows])


class Panel:
    """The returns of all symbols, one after the other, and where the samples' targets are among them."""

    def __init__(self, folder, direction):
        dates, values = zip(*prices(folder))
        distinct = sorted(set().union(*dates))
        first_valid = distinct[int(len(distinct) * (1.0 - VALID_FRACTION))]
        # A column that is 0 on some days counts from 1.
        added = (np.concatenate(values).min(axis=0) <= 0.0).astype(np.float64)
        returns = np.concatenate([np.diff(np.log(rows + added), axis=0) for rows in values])
        trains = np.concatenate([np.array(days[1:]) < first_valid for days in dates])
        mean, deviation = returns[trains].mean(axis=0), returns[trains].std(axis=0)
        deviation[deviation < SMALLEST_DEVIATION] = 1.0

        counts = [len(days) - 1 for days in dates]
        place = np.concatenate([np.arange(count) for count in counts])
        self.symbols = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
        self.features = torch.from_numpy(((returns - mean) / deviation).astype(np.float32))
        self.returns = returns[:, PRICE].astype(np.float32)
        self.mean, self.deviation = mean[PRICE], deviation[PRICE]
        if direction:
            self.targets = torch.from_numpy((self.returns > 0.0).astype(np.float32))
        else:
            self.targets = torch.from_numpy(((self.returns.astype(np.float64) - self.mean) / self.deviation).astype(np.float32))
        self.train = torch.from_numpy(np.flatnonzero(trains & (place >= TIME)))
        self.valid = torch.from_numpy(np.flatnonzero(~trains & (place >= TIME)))
        self.mostly_rises = 2 * (self.returns[trains] > 0.0).sum() >= trains.sum()

    def batch(self, targets):
        """Of samples with these targets: the windows before them, the symbols, and what is to be foretold."""
        return self.features[targets[:, None] + torch.arange(-TIME, 0)], self.symbols[targets], self.targets[targets]

    def baselines(self):
        """Mean absolute error of a return of 0; hit rates of the last direction seen and of the more common one."""
        last, found = self.returns[self.valid.numpy() - 1], self.returns[self.valid.numpy()]
        error = np.abs(found.astype(np.float64)).mean()
        return error, ((last > 0.0) == (found > 0.0)).mean(), ((found > 0.0) == self.mostly_rises).mean()


# The model and its training ------------------------------------------------------------------------------------------------------

class Model(nn.Module):
    def __init__(self, features, symbols, seed):
        super().__init__()
        bound = 1.0 / math.sqrt(HIDDEN)
        self.symbol_table = nn.Parameter(normal(seed, "symbol_table", (symbols, WIDTH)))
        self.lstm = nn.LSTM(features + WIDTH, HIDDEN, LAYERS, batch_first=True)
        for layer in range(LAYERS):
            for part, ours, shape in (
                ("weight_ih", "input_weight", (4 * HIDDEN, HIDDEN if layer else features + WIDTH)),
                ("weight_hh", "state_weight", (4 * HIDDEN, HIDDEN)),
                ("bias_ih", "bias_input", (4 * HIDDEN,)),
                ("bias_hh", "bias_state", (4 * HIDDEN,)),
            ):
                getattr(self.lstm, f"{part}_l{layer}").data = uniform(seed, f"layers.{layer}.{ours}", shape, bound)
        self.head = nn.Parameter(uniform(seed, "head", (1, HIDDEN), bound))
        self.head_bias = nn.Parameter(uniform(seed, "head.bias", (1,), bound))

    def forward(self, features, symbols):
        symbol = F.embedding(symbols, self.symbol_table)
        x = torch.cat([features, symbol.unsqueeze(1).expand(-1, features.shape[1], -1)], dim=2)
        return F.linear(self.lstm(x)[0][:, -1], self.head, self.head_bias).squeeze(1)


def train(model, panel, loss_of, seed, epochs):
    """The loss of each step; what fills no batch at an epoch's end is left out."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    for epoch in range(epochs):
        order = permutation(seed, epoch, len(panel.train))
        for samples in order[: len(order) // ROWS * ROWS].split(ROWS):
            features, symbols, targets = panel.batch(panel.train[samples])
            loss = loss_of(model(features, symbols), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield loss.item()


def evaluate(model, panel, loss_of, direction):
    """Mean loss, mean absolute error of log returns, and hit rate over all validation samples."""
    batches = [panel.batch(samples) for samples in panel.valid.split(ROWS)]
    with torch.no_grad():
        outputs = torch.cat([model(features, symbols) for features, symbols, _ in batches])
    loss = loss_of(outputs.double(), panel.targets[panel.valid].double()).item()
    found, returns = outputs.double().numpy(), panel.returns[panel.valid.numpy()]
    if not direction:
        found = found * panel.deviation + panel.mean
    error = None if direction else np.abs(found - returns).mean()
    return loss, error, ((found > 0.0) == (returns > 0.0)).mean()


def main():
    folder, target, seed, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(int(sys.argv[5]) if len(sys.argv) > 5 else torch.get_num_threads())
    if target not in ("return", "direction"):
        sys.exit(f"TARGET is `{target}`; it must be return or direction")
    direction = target == "direction"
    panel = Panel(folder, direction)
    model = Model(len(COLUMNS), int(panel.symbols[-1]) + 1, seed)
    loss_of = F.binary_cross_entropy_with_logits if direction else F.mse_loss
    losses = list(train(model, panel, loss_of, seed, epochs))[-LOGGED:]
    scores = (sum(losses) / len(losses), *evaluate(model, panel, loss_of, direction), *panel.baselines())
    print(target, seed, epochs, *("" if score is None else f"{score:.9g}" for score in scores), sep=",")


if __name__ == "__main__":
    main()
