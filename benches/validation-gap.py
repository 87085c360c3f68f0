#!/usr/bin/env python3
"""How far the validation loss lies above the training loss, in trainings that overfit and in ones that do not.

    KILN_DATA=FOLDER benches/validation-gap.py KILN WORK_FOLDER results/validation-gap.csv

Trains small models on parts of tiny Shakespeare, WikiText-2 and Fashion-MNIST, with few data and with more, with and
without dropout or flips, and reads `epochs.csv` of every trial. One row per evaluation. An evaluation is `overfit` if it comes
after the lowest validation loss of its trial and lies 5 % or more above that, `not` if it comes before that or is within
1 % of it, and `between` otherwise. Standard library only; twenty minutes on two cores that other processes used too.
"""
import csv
import gzip
import lzma
import os
import pathlib
import struct
import subprocess
import sys
import zlib

OVERFIT, NOT = 1.05, 1.01
COLUMNS = ["case", "regularized", "train_samples", "seed", "step", "train_loss", "valid_loss", "ratio", "difference", "state"]

TEXT = """kiln: 1
name: {name}
model: {{kind: {model}, dropout: {dropout}}}
data: {{kind: text, path: {path}, tokenizer: {tokenizer}, valid_fraction: {valid}}}
train:
  batch_size: 16
  steps: {steps}
  optimizer: {{kind: adamw, learning_rate: {rate}, weight_decay: 0.0}}
  clip_norm: 1.0
  cpu_threads: 1
  evaluate: {{every: {every}}}
sweep: {{grid: {{train.seed: [1, 2]}}}}
"""

IMAGES = """kiln: 1
name: {name}
model: {{kind: resnet, depth: 18, width: 8, stem: small}}
data: {{kind: image-folder, path: {path}, image_size: 28, crop: center, flip: {flip}}}
train:
  batch_size: 32
  steps: {steps}
  optimizer: {{kind: sgd, learning_rate: 0.05, momentum: 0.9, weight_decay: 5.0e-4}}
  cpu_threads: 1
  evaluate: {{every: {every}}}
sweep: {{grid: {{train.seed: [1, 2]}}}}
"""


def texts(data, work):
    """The experiment files of text, with the samples that each trains on."""
    shakespeare = (data / "tinyshakespeare/input.txt").read_text()
    wiki = lzma.open(data / "wikitext-2/train.txt.xz", "rt").read()
    gpt = "gpt, d_model: 64, num_layers: 2, num_heads: 4, seq_len: 64"
    lstm = "lstm, d_model: 96, hidden: 96, num_layers: 1, seq_len: 32"
    cases = [(f"char-gpt-{kb}k", gpt, shakespeare, kb, valid, "character", 1e-3, steps, 64)
             for kb, valid, steps in ((20, 0.5, 1600), (100, 0.2, 1600), (500, 0.04, 1600))]
    cases += [(f"word-lstm-{kb}k", lstm, wiki, kb, valid, "word", 2e-3, 800, 32)
              for kb, valid in ((200, 0.2), (1000, 0.04))]
    for name, model, source, kb, valid, tokenizer, rate, steps, window in cases:
        path = work / f"{name}.txt"
        path.write_text(source[: kb * 1000])
        tokens = kb * 1000 if tokenizer == "character" else len(source[: kb * 1000].split())
        for dropout in (0.0, 0.2):
            yield name, dropout > 0, int(tokens * (1 - valid) / window), TEXT.format(
                name=f"{name}-{'dropout' if dropout else 'plain'}", model=model, dropout=dropout, path=path,
                tokenizer=tokenizer, valid=valid, steps=steps, rate=rate, every=steps // 20)


def png(pixels):
    """A gray image of 28 × 28."""
    rows = b"".join(b"\0" + pixels[28 * row: 28 * row + 28] for row in range(28))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 28, 28, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def images(data, work):
    """The experiment files of images, with the samples that each trains on."""
    def read(name, head):
        return gzip.open(data / "fashion-mnist" / name).read()[head:]

    parts = {"train": (read("train-images-idx3-ubyte.gz", 16), read("train-labels-idx1-ubyte.gz", 8)),
             "valid": (read("t10k-images-idx3-ubyte.gz", 16), read("t10k-labels-idx1-ubyte.gz", 8))}
    for count, steps in ((500, 400), (4000, 1000)):
        name, path = f"resnet-{count}", work / f"images-{count}"
        for part, (pixels, labels) in parts.items():
            for number in range(count if part == "train" else 1000):
                folder = path / part / f"class-{labels[number]}"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{number:05}.png").write_bytes(png(pixels[784 * number: 784 * number + 784]))
        for flip in (False, True):
            yield name, flip, count, IMAGES.format(
                name=f"{name}-{'flip' if flip else 'plain'}", path=path, flip=str(flip).lower(), steps=steps, every=steps // 20)


def evaluations(folder):
    with open(folder / "trials.csv") as file:
        trials = list(csv.DictReader(file))
    for trial in trials:
        assert trial["outcome"] == "completed", trial["reason"]
        with open(folder / "trials" / trial["trial"] / trial["attempt"] / "epochs.csv") as file:
            yield trial["train.seed"], list(csv.DictReader(file))


def states(losses):
    """Whether each evaluation is of an overfit model."""
    lowest, best = min(losses), losses.index(min(losses))
    for place, loss in enumerate(losses):
        if place <= best or loss <= NOT * lowest:
            yield "not"
        else:
            yield "overfit" if loss >= OVERFIT * lowest else "between"


def main():
    kiln, work, out = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    data = pathlib.Path(os.environ["KILN_DATA"])
    work.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, regularized, samples, experiment in [*images(data, work), *texts(data, work)]:
        file = work / "experiment.yaml"
        file.write_text(experiment)
        results = work / f"results-{name}-{int(regularized)}"
        subprocess.run([kiln, "run", file, "--results", results, "--quiet"], check=True)
        folder = next(results.glob("*/latest")).resolve()
        for seed, table in evaluations(folder):
            table = [row for row in table if row["valid_loss"] and row["train_loss"]]
            for row, state in zip(table, states([float(row["valid_loss"]) for row in table])):
                train, valid = float(row["train_loss"]), float(row["valid_loss"])
                rows.append([name, str(regularized).lower(), samples, seed, row["step"], f"{train:.4f}", f"{valid:.4f}",
                             f"{valid / train:.3f}", f"{valid - train:.4f}", state])
    with open(out, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)


main()
