"""Ends programs that started clusters: without waiting for them, and with an exit code."""

import errno
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from rdma_transport._fabric import FabricError
from rdma_transport.command_line import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    NO_PEER,
    NOT_AVAILABLE,
    invoke,
    single,
)

from .agent import LostError
from .cluster import Cluster, NotStartedError
from .meeting import NobodyCameError

GRACE_SECONDS = 5.0  # for the error that the dead task causes by itself
LOG_LINES = 10


class NotAvailableError(Exception):
    """The requested transport is not available; the message says why."""


class UnwritableError(Exception):
    """The results cannot be written."""

    def __init__(self, cause: OSError, what: str = "the answer") -> None:
        super().__init__(f"cannot write {what}: {cause.strerror or cause}")
        self.cause = cause


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
    """Run `main` as a command line with one command, and `leave`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    leave(lambda: guarded(lambda: invoke(single(main))))


def guarded(work: Callable[[], int | None]) -> int:
    """Return the exit code of `work`; print errors to standard error."""
    try:
        return work() or 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except UnwritableError as error:
        if error.cause.errno == errno.EPIPE:  # the reader closed the pipe
            return FAILED
        return _failed(BAD_INPUT, str(error))
    except NotAvailableError as error:
        return _failed(NOT_AVAILABLE, f"not available: {error}")
    except (NobodyCameError, TimeoutError) as error:
        return _failed(NO_PEER, str(error))
    except NotStartedError as error:
        return _not_started(error)
    except (FabricError, OSError, EOFError, RuntimeError, LostError) as error:
        return _failed(FAILED, str(error))
    except Exception as error:
        if type(error).__module__.startswith("tensorflow"):
            return _failed(FAILED, " ".join(f"{type(error).__name__}: {error}".split())[:600])
        traceback.print_exc()
        return FAILED


def _not_started(error: NotStartedError) -> int:
    if "No server factory registered" in error.message:
        why = "install rdma_transport there, and unset RDMA_TRANSPORT_DISABLE"
        return _failed(NOT_AVAILABLE, f"{error.task} runs without the plugin: {why}")
    port_in_use = error.error == "UnknownError"
    return _failed(FAILED if port_in_use else NOT_AVAILABLE, str(error))


def _failed(code: int, text: str) -> int:
    """Print the first line, and the last lines of a log below it."""
    first, *log = text.splitlines() or ["no reason was given"]
    log = [line for line in log if not re.match(r"I\d{4} |WARNING: All log messages", line)]
    say("\n".join([f"error: {first}", *log[-LOG_LINES:]]))
    return code


def say(text: str) -> None:
    """Print to standard error."""
    print(text, file=sys.stderr, flush=True)


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
