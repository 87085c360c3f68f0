"""Data that the checks make themselves: prompts with responses, and prices. They are the same on every machine."""

import json
import math
import random

WORDS = 60


def pairs(folder, rows):
    """Writes `rows.jsonl`, in which each response is its prompt in reverse, and `tokenizer.json` with the words."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(7)
    lines = []
    for _ in range(rows):
        words = [f"w{draw.randrange(WORDS)}" for _ in range(draw.randrange(3, 24))]
        lines.append(json.dumps({"prompt": " ".join(words), "response": " ".join(words[: -9 : -1])}) + "\n")
    (folder / "rows.jsonl").write_text("".join(lines))
    known = ["[PAD]", "[EOS]", "[UNK]"] + [f"w{number}" for number in range(WORDS)]
    model = {"type": "WordLevel", "vocab": {word: at for at, word in enumerate(known)}, "unk_token": "[UNK]"}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None, "model": model,
    }))


def panel(folder, symbols, days):
    """Writes one CSV file per symbol; its price goes up and down, with added noise."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(11)
    for symbol in range(symbols):
        lines = ["Date,Open,Close,Volume\n"]
        before = 50.0
        for day in range(days):
            close = math.exp(4 + 0.3 * math.sin(day * (0.4 + symbol / 30)) + 0.05 * draw.random())
            date = f"{2000 + day // 300}-{day % 300 // 25 + 1:02}-{day % 25 + 1:02}"
            lines.append(f"{date},{before:.4f},{close:.4f},{1000 + draw.randrange(500)}\n")
            before = close
        (folder / f"S{symbol:02}.csv").write_text("".join(lines))
