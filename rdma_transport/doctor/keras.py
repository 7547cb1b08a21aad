"""The check of Keras: which version `tf.keras` is, and what that means for `fit`."""

import os

from rdma_transport.doctor.context import Context
from rdma_transport.doctor.fixes import install
from rdma_transport.doctor.result import FAIL, PASS, SKIP, Result
from rdma_transport.wheels import requirement, version_of

LEGACY = "TF_USE_LEGACY_KERAS"


def check_keras(context: Context) -> Result:
    """Keras is there, and `fit` under a strategy needs tf-keras; see docs/compatibility.md."""
    keras, tf_keras = version_of("keras"), version_of("tf-keras")
    # It requires TensorFlow by the name of one of its wheels, and pip would install that as well.
    package = "--no-deps " + requirement("tf-keras")
    if os.environ.get(LEGACY) in ("1", "true", "True"):  # as TensorFlow reads it
        if tf_keras:
            found = f"tf.keras is tf-keras {tf_keras} ({LEGACY}): fit works under strategies"
            return Result("keras", PASS, found)
        why = "tf.keras cannot be imported"
        found = f"{LEGACY} is set, and tf-keras is not installed"
        return Result("keras", FAIL, found, why, install(package))
    if not keras:
        return Result("keras", SKIP, "not installed")
    found = f"tf.keras is Keras {keras}: under strategies, write training loops of your own\n"
    if tf_keras:
        found += f"for fit, import tf_keras ({tf_keras}), or set {LEGACY}=1"
    else:
        found += f"for fit, pip install {package}, and import tf_keras or set {LEGACY}=1"
    return Result("keras", PASS, found)
