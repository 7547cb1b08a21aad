"""Which kinds of Keras the program has imported."""

import sys
from typing import Any


def keras3() -> Any:
    """Return Keras 3 if it is imported, else None."""
    found = sys.modules.get("keras")
    return found if str(getattr(found, "__version__", "")).startswith("3") else None


def keras2() -> Any:
    """Return tf-keras if it is imported, else None."""
    return sys.modules.get("tf_keras")
