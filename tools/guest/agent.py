"""Runs in a guest, on Debian's Python: starts processes as the host asks.

Requests and answers are lines of JSON over a virtio serial port; answers carry the request's id.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time

PORTS = "/sys/class/virtio-ports"
Message = dict  # importing `typing` and the like takes an emulated processor long


class Child:
    """A process with its output in files, so that it never waits for a reader."""

    def __init__(self, request: Message) -> None:
        self.files = os.memfd_create("stdout"), os.memfd_create("stderr")
        uid: int | None = request["uid"]
        given = os.memfd_create("stdin")
        os.write(given, request["input"].encode())
        os.lseek(given, 0, os.SEEK_SET)
        try:
            self.process = subprocess.Popen(
                request["argv"],
                env=os.environ | request["env"],
                cwd=request["cwd"],
                stdin=given,
                stdout=self.files[0],
                stderr=self.files[1],
                user=uid,
                group=uid,
                extra_groups=None if uid is None else [],
                start_new_session=True,
            )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(given)

    def close(self) -> None:
        for file in self.files:
            os.close(file)

    def output(self, offsets: list[int]) -> list[str]:
        """The bytes written to stdout and stderr after these offsets, as characters 0 to 255."""
        return [
            os.pread(file, os.fstat(file).st_size, offset).decode("latin-1")
            for file, offset in zip(self.files, offsets, strict=True)
        ]

    def signal(self, number: int) -> None:
        """Signal the process and those it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class Agent:
    def __init__(self, port: int) -> None:
        self.port = port
        self.writing = threading.Lock()
        self.children: dict[int, Child] = {}

    def serve(self) -> None:
        with open(self.port, "rb", closefd=False) as lines:
            for line in lines:
                request = json.loads(line)
                if request["op"] == "wait":
                    threading.Thread(target=self.answer, args=(request,), daemon=True).start()
                else:
                    self.answer(request)

    def answer(self, request: Message) -> None:
        try:
            message = getattr(self, "do_" + request["op"])(request)
        except Exception as error:
            message = {"error": f"{type(error).__name__}: {error}"}
        line = json.dumps(message | {"id": request["id"]}).encode() + b"\n"
        with self.writing:
            while line:
                line = line[os.write(self.port, line) :]

    def do_hello(self, request: Message) -> Message:
        return {"seconds": time.monotonic()}

    def do_start(self, request: Message) -> Message:
        child = Child(request)
        self.children[child.process.pid] = child
        return {"pid": child.process.pid}

    def do_wait(self, request: Message) -> Message:
        process = self.children[request["pid"]].process
        try:
            return {"returncode": process.wait(request["timeout"])}
        except subprocess.TimeoutExpired:
            return {"returncode": None}

    def do_output(self, request: Message) -> Message:
        return {"output": self.children[request["pid"]].output(request["offsets"])}

    def do_signal(self, request: Message) -> Message:
        self.children[request["pid"]].signal(request["signal"])
        return {}

    def do_end(self, request: Message) -> Message:
        """Kill what still runs, and forget all."""
        for child in self.children.values():
            child.signal(signal.SIGKILL)
            child.process.wait()
            child.close()
        self.children.clear()
        return {}


def open_port() -> int:
    while not (names := os.listdir(PORTS)):
        time.sleep(0.01)
    return os.open(f"/dev/{names[0]}", os.O_RDWR)


if __name__ == "__main__":
    Agent(open_port()).serve()
