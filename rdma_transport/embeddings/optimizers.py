"""Optimizers of tables. Defaults and formulas are those of Keras."""

from dataclasses import asdict, dataclass
from typing import Any

from rdma_transport import _embeddings as native
from rdma_transport._fabric import FabricValueError


@dataclass(frozen=True)
class SGD:
    """Gradient descent."""

    learning_rate: float = 0.01


@dataclass(frozen=True)
class Adagrad:
    """A learning rate for each weight, which falls with the sum of its squared gradients."""

    learning_rate: float = 0.001
    initial_accumulator: float = 0.1
    epsilon: float = 1e-7


@dataclass(frozen=True)
class Adam:
    """Lazy Adam: moments decay only in steps in which their row has a gradient."""

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7


@dataclass(frozen=True)
class FTRL:
    """Follow the regularized leader, with penalties `l1` and `l2`."""

    learning_rate: float = 0.001
    initial_accumulator: float = 0.1
    l1: float = 0.0
    l2: float = 0.0


Optimizer = SGD | Adagrad | Adam | FTRL

_KINDS: dict[type, int] = {
    SGD: native.SGD,
    Adagrad: native.ADAGRAD,
    Adam: native.ADAM,
    FTRL: native.FTRL,
}
_BY_NAME: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "adam": Adam,
    "ftrl": FTRL,
}
_UNUSED = {"epsilon": 0.0, "initial_accumulator": 0.0, "beta_1": 0.0, "beta_2": 0.0}


def optimizer_of(given: Any) -> Optimizer:
    """Return an optimizer, which may be given by its name; raise ``FabricValueError``."""
    if isinstance(given, str) and given in _BY_NAME:
        return _BY_NAME[given]()
    if type(given) not in _KINDS:
        raise FabricValueError(
            f"{given!r} is no optimizer; give one of {', '.join(_BY_NAME)}, or an object of "
            "rdma_transport.embeddings.optimizers"
        )
    for name, value in asdict(given).items():
        if not value >= 0 or (name == "learning_rate" and value == float("inf")):
            raise FabricValueError(f"{type(given).__name__}: {name} cannot be {value}")
    return given


def described(optimizer: Optimizer) -> dict[str, Any]:
    """Return what the native code needs."""
    penalties = {"l1": 0.0, "l2": 0.0}
    return {**_UNUSED, **penalties, **asdict(optimizer), "kind": _KINDS[type(optimizer)]}
