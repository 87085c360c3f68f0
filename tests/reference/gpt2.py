"""The validation loss of a GPT-2 as Hugging Face has it, for crates/trial/tests/alone/gpt2.rs. Nothing in kiln's build or tests runs this.

python tests/reference/gpt2.py   (needs torch 2.11, transformers 4 or 5)

Writes, beside this file, gpt2-pretrained.safetensors, a GPT-2 as `save_pretrained` writes it, in f16, and gpt2-pretrained.csv: its loss on
the last quarter of a text of bytes, in windows of as many tokens.
"""

import shutil
import tempfile

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from reference import HERE, write

POSITIONS = 16


def text():
    return "".join(f"{n * n % 97} the kiln {n}\n" for n in range(200)).encode()


def loss_of(model, seq_len):
    tokens = torch.tensor(list(text()))
    valid = tokens[int(len(tokens) * 0.75):]
    total = 0.0
    for first in range(0, len(valid) - 1, seq_len):
        window = valid[first:first + seq_len + 1]
        logits = model(window[None, :-1]).logits[0]
        total += F.cross_entropy(logits, window[1:], reduction="sum").item()
    return total / (len(valid) - 1)


def main():
    torch.manual_seed(4)
    built = GPT2LMHeadModel(GPT2Config(
        vocab_size=256, n_positions=POSITIONS, n_embd=16, n_layer=2, n_head=4, activation_function="gelu", initializer_range=0.4,
        bos_token_id=0, eos_token_id=0,
    )).eval()
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    built = built.half()
    with tempfile.TemporaryDirectory() as folder:
        built.save_pretrained(folder)
        shutil.copy(f"{folder}/model.safetensors", HERE / "gpt2-pretrained.safetensors")
    built = built.float()
    with torch.no_grad():
        rows = [(seq_len, f"{loss_of(built, seq_len):.9g}") for seq_len in (POSITIONS, 12)]
    write("gpt2-pretrained.csv", ("seq_len", "valid_loss"), rows)


if __name__ == "__main__":
    main()
