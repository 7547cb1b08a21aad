"""Ends programs that started clusters: without waiting for them, and with an exit code."""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from .cluster import Cluster

INTERRUPTED = 130
GRACE_SECONDS = 5.0  # for the error that the dead task causes by itself


def leave(main: Callable[[], Any]) -> None:
    """Run `main` and exit with its exit code; 130 after Ctrl-C, 1 after an error, which is printed.

    Exits with `os._exit`, because the destructor of a session waits forever for a dead task.
    Cleanup belongs in a `finally` in `main`.
    """
    code: Any = 1
    try:
        code = main()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def run_command(main: Callable[..., Any]) -> None:
    """Run `main` as a command line with one command, and `leave`. Usage errors exit with 2."""
    from graph_analyzer.cli import invoke, make_app

    app = make_app("")
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    leave(lambda: invoke(app))


def watched(cluster: Cluster) -> Callable[[], None]:
    """Exit with code 1 if a task dies. Call the returned function before you end the cluster.

    TensorFlow waits forever for a task that dies while a session is being created. The kernel kills
    the other tasks when this process ends.
    """
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(0.5):
            dead = [task.name for task in cluster.tasks.values() if task.process.poll() is not None]
            if dead and not stopped.wait(GRACE_SECONDS):
                print(f"error: {', '.join(dead)} died", file=sys.stderr, flush=True)
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    return stopped.set
