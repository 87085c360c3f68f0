"""Time of one optimizer step of the same small GPT in eager PyTorch: fused AdamW, SDPA, autocast for amp-bf16.

pytorch_gpt.py <precision> <vocabulary> <batch size> <steps> <threads> [ignored] [tie_head]; prints the median milliseconds per
step, the mean milliseconds of CPU time per step, and the last loss. Counterpart of trial/examples/step-speed.rs.
"""

import contextlib
import math
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

WIDTH, LAYERS, HEADS, SEQ_LEN, WARMUP = 256, 2, 4, 128, 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.attention_projection = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.widening = nn.Linear(WIDTH, 4 * WIDTH)
        self.mlp_projection = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        parts = self.queries_keys_values(self.attention_norm(x)).split(WIDTH, dim=2)
        q, k, v = (part.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_projection(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp_projection(F.gelu(self.widening(self.mlp_norm(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary, tied):
        super().__init__()
        self.token_table = nn.Embedding(vocabulary, WIDTH)
        self.position_table = nn.Embedding(SEQ_LEN, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.final_norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0.0, 0.02 / math.sqrt(2 * LAYERS) if "projection" in name else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if tied:
            self.head.weight = self.token_table.weight

    def forward(self, tokens, targets):
        positions = torch.arange(tokens.shape[1])
        x = self.token_table(tokens) + self.position_table(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.final_norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def batch(step, rows, vocabulary):
    both = [[(step * 7919 + row * 104_729 + at * 31) % vocabulary for at in range(SEQ_LEN + 1)] for row in range(rows)]
    both = torch.tensor(both)
    return both[:, :-1].contiguous(), both[:, 1:].contiguous()


def main():
    precision, vocabulary, rows, steps, threads = sys.argv[1], *map(int, sys.argv[2:6])
    tied = (sys.argv[7] if len(sys.argv) > 7 else "true") == "true"
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = Gpt(vocabulary, tied)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01, fused=True)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16) if precision == "amp-bf16" else contextlib.nullcontext()
    seconds = []
    for step in range(WARMUP + steps):
        tokens, targets = batch(step, rows, vocabulary)
        if step == WARMUP:
            cpu_started = time.process_time()
        started = time.perf_counter()
        with autocast:
            loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= WARMUP:
            seconds.append(time.perf_counter() - started)
    cpu = (time.process_time() - cpu_started) / steps
    print(f"{statistics.median(seconds) * 1e3:.3f} {cpu * 1e3:.3f} {loss.item():.4f}")


main()
