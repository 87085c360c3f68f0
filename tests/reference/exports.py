"""Outputs of exported models in PyTorch and transformers. Nothing in kiln's build or tests runs this.

KILN_EXPORTS=DIR cargo test --release -p kiln-trial --lib exported_models     makes the exports of crates/trial/src/model_use/tests.rs
python tests/reference/exports.py DIR        compares each with kiln's outputs, and writes exports.csv beside this file
python tests/reference/exports.py --check DIR…      compares exports of any trained models, and writes nothing

Needs torch 2.11, safetensors and transformers 5. For each folder model.py builds and loads the network; where there is a folder huggingface,
transformers loads it too. Outputs are those for the inputs in check.safetensors; the largest difference counts relative to the largest output,
which is at least 1.
"""

import csv
import hashlib
import importlib.util
import pathlib
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

HERE = pathlib.Path(__file__).parent
TOLERANCE = 1e-5


def of_pytorch(folder, inputs):
    spec = importlib.util.spec_from_file_location("model", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load(folder)(**inputs)


def of_transformers(folder, inputs):
    """None where there is nothing that transformers loads."""
    if not (folder / "huggingface").is_dir():
        return None
    if "tokens" in inputs:
        network, report = AutoModelForCausalLM.from_pretrained(folder / "huggingface", output_loading_info=True)
        arguments = {"input_ids": inputs["tokens"]}
    else:
        network, report = AutoModelForSeq2SeqLM.from_pretrained(folder / "huggingface", output_loading_info=True)
        places = torch.arange(inputs["prompts"].shape[1])
        mask = (places[None, :] < inputs["prompt_lengths"][:, None]).long()
        arguments = {"input_ids": inputs["prompts"], "attention_mask": mask, "decoder_input_ids": inputs["decoder_inputs"]}
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[what], f"{folder}: {what} {report[what]}"
    return network.eval()(**arguments).logits


def compare(folder):
    """The folder's outputs in PyTorch; complains about those that differ from kiln's."""
    inputs = load_file(folder / "check.safetensors")
    expected = inputs.pop("outputs")
    with torch.no_grad():
        found = {"PyTorch": of_pytorch(folder, inputs), "transformers": of_transformers(folder, inputs)}
    scale = max(1.0, expected.abs().max().item())
    for who, outputs in found.items():
        if outputs is None:
            continue
        apart = (outputs.reshape(expected.shape) - expected).abs().max().item() / scale
        print(f"{folder.name:14} {who:12} {apart:.1e}")
        if not apart <= TOLERANCE:
            sys.exit(f"{folder}: {who} differs from kiln by {apart:.1e}, and at most {TOLERANCE} is rounding")
    return found["PyTorch"].flatten()


def main(arguments):
    if arguments[:1] == ["--check"]:
        for folder in arguments[1:]:
            compare(pathlib.Path(folder))
        return
    rows = []
    for folder in sorted(pathlib.Path(arguments[0]).iterdir()):
        digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:12]
        rows += [(folder.name, digest, f"{output:.9g}") for output in compare(folder).tolist()]
    with open(HERE / "exports.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("model", "model_sha256", "output"))
        table.writerows(rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
