"""Importing TensorFlow without the lines about this host that no level of logging keeps away."""

import os
import sys
import tempfile


def import_tensorflow() -> None:
    """Import it, for processors only; what it writes meanwhile is shown only if it fails."""
    if "tensorflow" in sys.modules:
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile("w+") as lines:
        os.dup2(lines.fileno(), 2)
        try:
            import tensorflow  # noqa: F401
        except BaseException:
            os.dup2(kept, 2)
            lines.seek(0)
            sys.stderr.write(lines.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
