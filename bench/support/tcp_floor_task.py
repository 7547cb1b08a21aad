"""One of two processes that compute in turns on what they send each other over one TCP connection.

usage: tcp_floor_task.py INDEX HOST PORT BYTES

Task 1 listens on HOST:PORT, says so with a line, and sends back `x + 1` for each tensor `x` of
BYTES that arrives. Task 0 connects. For each line of standard input, [HOPS, CHECK] as JSON, it
sends its tensor for every second hop, and halves what comes back. It answers with the seconds that
this took, or if CHECK, whether the tensor has other bits than if one process had computed it.
"""

import ctypes
import json
import signal
import socket
import sys
import time

import numpy as np

SECONDS = 30.0  # for the other task to connect, or to answer
ONE, HALF = np.float32(1), np.float32(0.5)


def receive(connection: socket.socket, tensor: np.ndarray) -> bool:
    """Fill it; return False if the other task has ended."""
    into = tensor.data.cast("B")
    got = 0
    while got < len(into):
        more = connection.recv_into(into[got:])
        if more == 0:
            return False
        got += more
    return True


def answer(connection: socket.socket, arrived: np.ndarray, tensor: np.ndarray) -> None:
    """Send `x + 1` for each tensor that arrives, until the other task ends."""
    while receive(connection, arrived):
        np.add(arrived, ONE, out=tensor)
        connection.sendall(tensor.data)


def first(elements: int) -> np.ndarray:
    """Return the tensor before the first hop."""
    return np.linspace(-(2.0**30), 2.0**30, elements, dtype=np.float32)


def take_turns(
    connection: socket.socket, arrived: np.ndarray, tensor: np.ndarray, turns: int
) -> float:
    """Send the tensor for each turn, and halve what comes back; return the seconds."""
    tensor[:] = first(tensor.size)
    start = time.perf_counter()
    for _ in range(turns):
        connection.sendall(tensor.data)
        if not receive(connection, arrived):
            raise EOFError("the other task has ended")
        np.multiply(arrived, HALF, out=tensor)
    return time.perf_counter() - start


def is_wrong(tensor: np.ndarray, turns: int) -> bool:
    """Whether it has other bits than if this process had computed it."""
    alone = first(tensor.size)
    for _ in range(turns):
        alone = (alone + ONE) * HALF
    return tensor.tobytes() != alone.tobytes()


def main() -> None:
    """Compute in turns with the other process."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the parent
    index, host, port, size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    arrived, tensor = (np.zeros(size // 4, np.float32) for _ in range(2))
    if index == 0:
        connection = socket.create_connection((host, port), SECONDS)
    else:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family) as server:
            server.settimeout(SECONDS)
            print(json.dumps("listening"), flush=True)
            connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if index == 1:
            connection.settimeout(None)
            return answer(connection, arrived, tensor)
        connection.settimeout(SECONDS)
        for line in sys.stdin:
            hops, check = json.loads(line)
            seconds = take_turns(connection, arrived, tensor, hops // 2)
            print(json.dumps(is_wrong(tensor, hops // 2) if check else seconds), flush=True)


if __name__ == "__main__":
    main()
