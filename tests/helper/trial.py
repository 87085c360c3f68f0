#!/usr/bin/env python3
"""Starts line.py as `$KILN_TRIAL`: writes trial.asked.json from the maps and scalars of trial.yaml, as kiln does for an engine."""

import json
import os
import pathlib
import sys


def nested(path):
    """Enough YAML for a file of maps."""
    root, above = {}, []
    for line in open(path, encoding="utf-8"):
        key, colon, value = line.strip().partition(":")
        if not colon or line.lstrip().startswith("- "):
            continue
        above[(len(line) - len(line.lstrip())) // 2:] = [key]
        place = root
        for part in above[:-1]:
            place = place.setdefault(part, {})
        if value:
            try:
                place[key] = json.loads(value)
            except ValueError:
                place[key] = value.strip().strip("'\"")
    return root


here, trial = pathlib.Path(__file__).parent, pathlib.Path(sys.argv[1])
asked = {**nested(trial), "differs_from_defaults": os.environ.get("DIFFERS", "model.kind model.rate train.steps").split()}
(trial.parent / "trial.asked.json").write_text(json.dumps(asked), encoding="utf-8")
os.environ["PYTHONPATH"] = str(here.parents[1] / "python")
os.execv(sys.executable, [sys.executable, str(here / "line.py"), str(trial)])
