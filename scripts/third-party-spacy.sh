#!/usr/bin/env bash
# Prepares experiments/third-party-spacy.yaml: spaCy, installed by pip and unchanged, in a virtual
# environment under target/third-party; generated sentences of three subjects; and a configuration that
# spaCy itself completes. Kept if it is there. KILN_PYTHON names the Python to use (default python3).
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=3.8.18
python=${KILN_PYTHON:-python3}
home=target/third-party/spacy
mkdir -p "$home"
[ -e "$home/venv/bin/python" ] || "$python" -m venv "$home/venv"
spacy=$home/venv/bin/python
"$spacy" -c "import spacy; assert spacy.__version__ == '$VERSION'" 2>/dev/null ||
  "$spacy" -m pip install --quiet --disable-pip-version-check "spacy==$VERSION"

"$spacy" - "$home" <<'PY'
import pathlib, random, sys

import spacy
from spacy.tokens import DocBin

SUBJECTS = {
    "weather": "rain wind storm cloud sun frost fog snow breeze thunder drizzle heat".split(),
    "kitchen": "bread salt oven butter knife soup pan sugar onion flour stew broth".split(),
    "harbor": "ship rope sail anchor tide crew deck mast gull dock net lantern".split(),
}
COMMON = "the a old new small great and near under with after before many some this that it was is had came went left".split()


def sentences(random_numbers, count):
    """Most words are common to all subjects; some are of the sentence's subject, a few of any."""
    nlp, names, made = spacy.blank("en"), list(SUBJECTS), DocBin()
    for number in range(count):
        subject = names[number % len(names)]
        pools = random_numbers.choices([SUBJECTS[subject], SUBJECTS[random_numbers.choice(names)], COMMON], [15, 10, 75], k=random_numbers.randrange(12, 40))
        document = nlp.make_doc(" ".join(random_numbers.choice(pool) for pool in pools))
        document.cats = {name: float(name == subject) for name in names}
        made.add(document)
    return made


folder, random_numbers = pathlib.Path(sys.argv[1]), random.Random(1)
sentences(random_numbers, 3000).to_disk(folder / "train.spacy")
sentences(random_numbers, 600).to_disk(folder / "dev.spacy")
PY

# What differs from spaCy's defaults; `init fill-config` writes the rest.
cat >"$home/base.cfg" <<'CFG'
[paths]
train = "target/third-party/spacy/train.spacy"
dev = "target/third-party/spacy/dev.spacy"

[nlp]
lang = "en"
pipeline = ["tok2vec","textcat"]

[components]

[components.tok2vec]
factory = "tok2vec"

[components.tok2vec.model]
@architectures = "spacy.HashEmbedCNN.v2"
width = 32
depth = 2
embed_size = 500
window_size = 1
maxout_pieces = 2
subword_features = true
pretrained_vectors = null

[components.textcat]
factory = "textcat"

[components.textcat.model]
@architectures = "spacy.TextCatReduce.v1"
exclusive_classes = true
use_reduce_first = false
use_reduce_last = false
use_reduce_max = true
use_reduce_mean = true

[components.textcat.model.tok2vec]
@architectures = "spacy.Tok2VecListener.v1"
width = ${components.tok2vec.model.width}

[corpora]

[corpora.train]
@readers = "spacy.Corpus.v1"
path = ${paths.train}

[corpora.dev]
@readers = "spacy.Corpus.v1"
path = ${paths.dev}

[training]
max_epochs = 2
max_steps = 0
eval_frequency = 40

[training.batcher]
@batchers = "spacy.batch_by_sequence.v1"
size = 32

[training.logger]
@loggers = "spacy.ConsoleLogger.v1"
CFG
"$spacy" -m spacy init fill-config "$home/base.cfg" "$home/config.cfg" >"$home/fill-config.txt" || { cat "$home/fill-config.txt" >&2; exit 1; }
printf 'third-party-spacy: spaCy %s, %s/config.cfg\n' "$VERSION" "$home" >&2
