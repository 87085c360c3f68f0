"""A model trained by kiln, in PyTorch (torch and safetensors).

    from model import load
    network = load()        # the trained network, in evaluation mode

`python model.py` compares its outputs with those that kiln computed for the inputs in check.safetensors.
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
