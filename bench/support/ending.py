"""How a program that started clusters ends: always, and with an exit code that says how."""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from bench.support.cluster import Cluster

INTERRUPTED = 130
GRACE_SECONDS = 5.0  # for the error that the dead task causes by itself


def leave(main: Callable[[], Any]) -> None:
    """Run `main` and leave with its exit code; 130 after Ctrl-C, 1 after an error, which is shown.

    By `os._exit`, because the destructor of a session waits for ever for a task that is gone. What
    must happen at the end belongs into `finally` within `main`.
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


def watched(cluster: Cluster) -> Callable[[], None]:
    """End this program with code 1 if a task dies; call what is returned before ending the cluster.

    TensorFlow waits for ever for a task that dies while a session is being made. The other tasks
    are killed by the kernel when this process ends.
    """
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(0.5):
            dead = [task.name for task in cluster.tasks.values() if task.process.poll() is not None]
            if dead and not stopped.wait(GRACE_SECONDS):
                print(f"{', '.join(dead)} died", file=sys.stderr, flush=True)
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    return stopped.set
