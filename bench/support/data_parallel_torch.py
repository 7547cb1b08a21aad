"""The models of `bench.data_parallel` in PyTorch, trained by DistributedDataParallel over gloo."""

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as Parallel

from ..data_parallel_cases import CASES, FLOATS, VARIABLES
from ..models import recurrent, vgg16
from .data_parallel_steps import RATE, Alone, Kinds, timed


class Variables(nn.Module):
    """The case of many variables, and hardly any arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        made = (nn.Parameter(torch.randn(FLOATS)) for _ in range(VARIABLES))
        self.weights = nn.ParameterList(made)

    def forward(self, x: Any) -> Any:
        """Return the loss, which does not depend on features."""
        return sum((each * each).sum() for each in self.weights) / 2


class Recurrent(nn.Module):
    """An unrolled cell, and a softmax of its last output."""

    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.cell = cell(recurrent.HIDDEN, recurrent.HIDDEN)
        self.softmax = nn.Linear(recurrent.HIDDEN, recurrent.CLASSES)

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        state = None
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.softmax(state[0] if isinstance(state, tuple) else state)


def _dense(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for convolutions, filters in vgg16.BLOCKS:
        for _ in range(convolutions):
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU()]
            channels = filters
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), _dense(7 * 7 * channels, 4096, 4096, 10))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "fcn5": lambda: _dense(784, *[4096] * 4, 10),
    "vgg16": _vgg16,
    "lstm": lambda: Recurrent(nn.LSTMCell),
    "gru": lambda: Recurrent(nn.GRUCell),
    "dense-4096": lambda: _dense(*[4096] * 5),
    "dense-64": lambda: _dense(*[64] * 101),
    "dense-1024-2": lambda: _dense(*[1024] * 3),
    "dense-4096-2": lambda: _dense(*[4096] * 3),
    "variables": Variables,
}


class DistributedDataParallel(Alone):
    """The ranks of torchrun's variables."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        torch.distributed.init_process_group("gloo")

    def trained(self, case: str, batch: int) -> Kinds:
        """Return the steps of a model with reductions, and without any."""
        if case not in MODULES:
            raise NotImplementedError(f"there is no {case} in PyTorch here")
        torch.manual_seed(7)
        model = Parallel(MODULES[case]())
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        shape = CASES[case].features_shape(batch)
        torch.manual_seed(8 + self.rank)
        if case in ("vgg16",):
            shape = [shape[0], shape[3], *shape[1:3]]
        features = torch.randn(shape) * CASES[case].deviation
        labels = torch.randint(CASES[case].classes, shape[:1])

        def step() -> None:
            optimizer.zero_grad()
            output = model(features)
            loss = output if case == "variables" else functional.cross_entropy(output, labels)
            loss.backward()
            optimizer.step()

        def alone() -> None:
            with model.no_sync():
                step()

        return {"reduced": timed(step), "alone": timed(alone)}
