"""Imports TensorFlow without the lines about this host that no log level suppresses."""

import os
import sys
import tempfile


def import_tensorflow() -> None:
    """Import it, for CPUs only. Its output is shown only if the import fails."""
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
