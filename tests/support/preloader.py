"""A process that imports modules, then forks itself for each request; `forked.py` is its client.

usage: preloader.py CONTROL_FD MODULE...

A request is one packet: JSON, and the descriptors of stdin, stdout, stderr and a pipe. Into the
pipe goes the child's process id, and once it has ended its exit code as `subprocess` has it, each
as a C int.
The preloader and all of its children end with the other end of its control socket.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import mmap
import os
import random
import resource
import runpy
import select
import signal
import socket
import struct
import sys
from typing import Any

REQUEST_BYTES = 2**18  # more than a packet may have by default
INT = struct.Struct("i")
PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000
HOLE_PAGES = 2**20


def serve(control: socket.socket) -> dict[str, Any]:
    """Fork for each request; returns only in the children, each with its own request."""
    parent = os.getpid()
    running: dict[int, tuple[int, int]] = {}  # process id and pipe, by pidfd
    events = select.poll()
    events.register(control, select.POLLIN)
    while True:
        for fd, _ in events.poll():
            if fd in running:
                events.unregister(fd)
                child, pipe = running.pop(fd)
                _, status = os.waitpid(child, 0)
                tell(pipe, os.waitstatus_to_exitcode(status))
                os.close(pipe)
                os.close(fd)
                continue
            message, received, _, _ = socket.recv_fds(control, REQUEST_BYTES, 4)
            if not message:
                os._exit(0)
            child = os.fork()
            if child == 0:
                end_with(parent)
                for standard, opened in enumerate(received[:3]):
                    os.dup2(opened, standard)
                pipes = (pipe for _, pipe in running.values())
                for opened in (control.detach(), *received, *running, *pipes):
                    os.close(opened)
                request: dict[str, Any] = json.loads(message)
                return request
            *inputs, pipe = received
            for opened in inputs:
                os.close(opened)
            tell(pipe, child)
            pidfd = os.pidfd_open(child)
            running[pidfd] = (child, pipe)
            events.register(pidfd, select.POLLIN)


def tell(pipe: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(pipe, INT.pack(number))


def end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def become(request: dict[str, Any]) -> None:
    """Give this child what a new process would have: the surroundings asked for, and chance."""
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    if request["network"] is not None:
        enter_network(request["network"])
    limit = request["file_size_limit"]
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # the standard library's generator does it by itself
    # Without it all children would map the same at the same addresses, and an address that is
    # good only in another task would not be noticed.
    global hole
    hole = mmap.mmap(
        -1,
        mmap.PAGESIZE * (1 + random.randrange(HOLE_PAGES)),
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
        prot=0,
    )


def enter_network(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if ctypes.CDLL(None).setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(f"cannot enter the network namespace {path}")
    os.close(descriptor)


def run(arguments: list[str]) -> None:
    """Run what the interpreter would run if it were given these arguments."""
    match arguments:
        case ["-c", code, *words]:
            sys.argv[:] = ["-c", *words]
            sys.path[0] = ""
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case ["-m", module, *words]:
            sys.argv[:] = [module, *words]
            sys.path[0] = os.getcwd()
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [path, *words]:
            sys.argv[:] = [path, *words]
            sys.path[0] = os.path.dirname(os.path.abspath(path))
            runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    gc.disable()  # looking for garbage takes a quarter of the time of an import
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.enable()
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"{threads} threads after importing {sys.argv[2:]}: a fork loses them")
    gc.freeze()  # what the children only read stays shared
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    become(asked)
    run(asked["arguments"])
