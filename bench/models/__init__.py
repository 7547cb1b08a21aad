"""The six models of "RPC Considered Harmful" as plain TensorFlow graphs, by name in `MODELS`.

Importing this does not import TensorFlow. Dropout and weight decay are left out: a run must be
comparable bit for bit with a run over another transport. `python -m bench.models` lists the sizes.
"""

from . import alexnet, fcn5, gru, inception_v3, lstm, vgg16
from .model import Model

MODELS: dict[str, Model] = {
    module.MODEL.name: module.MODEL for module in (alexnet, inception_v3, vgg16, lstm, gru, fcn5)
}

__all__ = ["MODELS", "Model"]
