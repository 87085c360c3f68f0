"""Losses, gradients and responses of T5 as Hugging Face has it, for crates/trial/tests/parity.rs. Nothing in kiln's build or tests runs this.

python tests/reference/seq2seq_t5.py   (needs torch 2.11, transformers 5 and numpy)

Writes, beside this file, seq2seq-steps.csv and seq2seq-gradients.csv (AdamW) and the same for seq2seq-adafactor (Adafactor with
scale_parameter and relative_step off), as reference.py does for the other models, and seq2seq-responses.csv: what the model answers to 20
prompts, greedily and with 4 beams, its weights being those of the counter generator. Parameters have kiln's names.

seq2seq-pretrained.safetensors is a T5 as `save_pretrained` writes it, in f16, and seq2seq-pretrained.csv its validation loss on the rows
of crates/trial/tests/common (`write_pairs`).
"""

import shutil
import tempfile

import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor

from reference import HERE, STEPS, classes, norm_of, weights, write

ROWS, PROMPT, RESPONSE, VOCABULARY = 4, 40, 24, 50
PAD, END = 0, 1
ENCODER, DECODER = 2, 3
# What is done to the weights before the model answers: the blocks outweigh the token before, so that answers do not just repeat it.
OF_TABLE, OF_BRANCHES = 2.0, 8.0


def config():
    return T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=ENCODER, num_decoder_layers=DECODER, num_heads=4,
        relative_attention_num_buckets=16, relative_attention_max_distance=30, dropout_rate=0.0, feed_forward_proj="relu",
        tie_word_embeddings=True, decoder_start_token_id=PAD, pad_token_id=PAD, eos_token_id=END,
    )


def names():
    """kiln's name and T5's of each parameter."""
    yield "token_table", "shared.weight"
    for stack, layers in (("encoder", ENCODER), ("decoder", DECODER)):
        for layer in range(layers):
            parts = [("attention", "SelfAttention")] + ([("cross_attention", "EncDecAttention")] if stack == "decoder" else [])
            for at, (part, theirs) in enumerate(parts):
                here, there = f"{stack}.blocks.{layer}.{part}", f"{stack}.block.{layer}.layer.{at}"
                yield f"{here}.norm", f"{there}.layer_norm.weight"
                for name, letter in (("queries", "q"), ("keys", "k"), ("values", "v"), ("output.weight", "o")):
                    yield f"{here}.{name}", f"{there}.{theirs}.{letter}.weight"
            here, there = f"{stack}.blocks.{layer}.feed_forward", f"{stack}.block.{layer}.layer.{len(parts)}"
            yield f"{here}.norm", f"{there}.layer_norm.weight"
            yield f"{here}.widening.weight", f"{there}.DenseReluDense.wi.weight"
            yield f"{here}.projection.weight", f"{there}.DenseReluDense.wo.weight"
        yield f"{stack}.positions.table", f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield f"{stack}.final_norm", f"{stack}.final_layer_norm.weight"


def model():
    built = T5ForConditionalGeneration(config())
    theirs = dict(built.named_parameters())
    parameters = {}
    with torch.no_grad():
        for name, their_name in names():
            parameters[name] = theirs.pop(their_name)
            parameters[name].copy_(weights(name, tuple(parameters[name].shape)))
    assert not theirs, theirs.keys()
    return built, parameters


def prompts(number, rows):
    """Tokens and which of them count."""
    tokens = 2 + classes(f"prompts.{number}", rows * PROMPT, VOCABULARY - 2).view(rows, PROMPT)
    lengths = 3 + classes(f"prompt_lengths.{number}", rows, PROMPT - 2)
    counted = torch.arange(PROMPT) < lengths.unsqueeze(1)
    return tokens * counted, counted


def labels(number):
    tokens = 1 + classes(f"responses.{number}", ROWS * RESPONSE, VOCABULARY - 1).view(ROWS, RESPONSE)
    lengths = 2 + classes(f"response_lengths.{number}", ROWS, RESPONSE - 1)
    return torch.where(torch.arange(RESPONSE) < lengths.unsqueeze(1), tokens, -100)


def training(name, optimizer):
    built, parameters = model()
    built.train()
    rule = optimizer(parameters.values())
    steps = []
    for step in range(1, STEPS + 1):
        number = (step - 1) % 4
        tokens, counted = prompts(number, ROWS)
        loss = built(input_ids=tokens, attention_mask=counted.long(), labels=labels(number)).loss
        loss.backward()
        gradients = {path: parameter.grad for path, parameter in parameters.items()}
        if step == 1:
            first = [(path, f"{norm_of([gradient]):.9g}") for path, gradient in gradients.items()]
        steps.append((step, f"{loss.item():.9g}", f"{norm_of(gradients.values()):.9g}"))
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        rule.step()
        rule.zero_grad()
    write(f"{name}-steps.csv", ("step", "loss", "gradient_norm"), steps)
    write(f"{name}-gradients.csv", ("parameter", "gradient_norm"), first)


def responses():
    built, parameters = model()
    built.eval()
    with torch.no_grad():
        parameters["token_table"].mul_(OF_TABLE)
        for name, parameter in parameters.items():
            if name.endswith(("values", "output.weight", "projection.weight", "positions.table")):
                parameter.mul_(OF_BRANCHES)
    tokens, counted = prompts("asked", 20)
    rows = []
    for beams in (1, 4):
        found = built.generate(
            input_ids=tokens, attention_mask=counted.long(), num_beams=beams, do_sample=False, max_new_tokens=RESPONSE, early_stopping=False,
            length_penalty=1.0, use_cache=False,
        )
        for number, response in enumerate(found.tolist()):
            ended = response[1 : response.index(END, 1)] if END in response[1:] else response[1:]
            rows.append((number, beams, " ".join(map(str, ended))))
    write("seq2seq-responses.csv", ("prompt", "beams", "tokens"), rows)


def pretrained():
    torch.manual_seed(1)
    built = T5ForConditionalGeneration(T5Config(
        vocab_size=23, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_decoder_layers=2, num_heads=2, relative_attention_num_buckets=8,
        relative_attention_max_distance=20, dropout_rate=0.0, feed_forward_proj="relu", tie_word_embeddings=True,
        decoder_start_token_id=PAD, pad_token_id=PAD, eos_token_id=END,
    ))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    with tempfile.TemporaryDirectory() as folder:
        built.half().save_pretrained(folder)
        shutil.copy(f"{folder}/model.safetensors", HERE / "seq2seq-pretrained.safetensors")
    built.float().eval()

    def ids(number, salt):
        return [3 + (number + at * salt) % 20 for at in range(1 + number * salt % 12)] + [END]

    loss, targets = 0.0, 0
    for number in range(90, 100):
        response = torch.tensor([ids(number, 7)])
        with torch.no_grad():
            loss += built(input_ids=torch.tensor([ids(number, 5)]), labels=response).loss.item() * response.numel()
        targets += response.numel()
    write("seq2seq-pretrained.csv", ("valid_loss",), [(f"{loss / targets:.9g}",)])


if __name__ == "__main__":
    torch.set_num_threads(1)
    pretrained()
    training("seq2seq", lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01))
    training("seq2seq-adafactor", lambda parameters: Adafactor(parameters, lr=1e-3, scale_parameter=False, relative_step=False, warmup_init=False))
    responses()
