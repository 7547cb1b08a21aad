"""A tf.data service whose workers, and its dispatchers if wanted, are ranks of a job.

The job's rank 0 has a registry, where dispatchers and workers meet. A configuration file, which
all hosts must see, names it.
"""

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import tensorflow as tf

_POLL = 0.05  # seconds


class _Registry:
    """Where dispatchers are, how many workers each has, and whether all shall end."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._dispatchers: dict[int, str] = {}
        self._workers: dict[int, int] = {}
        self._ended = False

    def _wait(self, found: Callable[[], Any], timeout: float) -> Any:
        with self._changed:
            if not self._changed.wait_for(lambda: found() or self._ended, timeout):
                raise TimeoutError(f"nothing has come to the compute service after {timeout} s")
            return found()

    def register_dispatcher(self, number: int, address: str) -> None:
        with self._changed:
            self._dispatchers[number] = address
            self._changed.notify_all()

    def wait_for_dispatcher(self, number: int, timeout: float) -> str | None:
        """Return its address; None if the service ends."""
        found: str | None = self._wait(lambda: self._dispatchers.get(number), timeout)
        return found

    def register_worker(self, dispatcher: int) -> None:
        with self._changed:
            self._workers[dispatcher] = self._workers.get(dispatcher, 0) + 1
            self._changed.notify_all()

    def wait_for_workers(self, dispatcher: int, count: int, timeout: float) -> bool:
        return bool(self._wait(lambda: self._workers.get(dispatcher, 0) >= count, timeout))

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def has_ended(self) -> bool:
        return self._ended


class ComputeClient:
    """A connection to the registry."""

    def __init__(self, address: tuple[str, int], key: bytes) -> None:
        manager: Any = type("Client", (BaseManager,), {})
        manager.register("registry")
        self._manager = manager(address, key)
        self._manager.connect()
        self.registry: Any = self._manager.registry()

    def shutdown(self) -> None:
        """End the service."""
        self.registry.end()


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """How to reach a service. `dispatcher_side` runs dispatchers: "compute" or "training"."""

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    address: str
    port: int
    key: str
    timeout: float = 60

    def write(self, filename: str) -> None:
        """Write the file, at once as a whole."""
        part = Path(f"{filename}.{secrets.token_hex(4)}")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(dataclasses.asdict(self), file)
        part.replace(filename)

    @classmethod
    def read(cls, filename: str, wait_for_file_creation: bool = False) -> "TfDataServiceConfig":
        """Read the file; wait for it if that is wanted."""
        while wait_for_file_creation and not Path(filename).exists():
            time.sleep(_POLL)
        return cls(**json.loads(Path(filename).read_text()))

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """Connect to the registry."""
        return ComputeClient((self.address, self.port), bytes.fromhex(self.key))


def _dispatcher(config: TfDataServiceConfig, number: int) -> tuple[Any, str]:
    """Start a dispatcher, and register it."""
    options = tf.data.experimental.service.DispatcherConfig(port=0)
    server = tf.data.experimental.service.DispatchServer(options)
    port = server.target.rpartition(":")[2]
    address = f"grpc://{_address_towards(config)}:{port}"
    config.compute_client().registry.register_dispatcher(number, address)
    return server, address


def _address_towards(config: TfDataServiceConfig) -> str:
    """Return the address by which other hosts reach this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((config.address, config.port))
        found: str = sock.getsockname()[0]
        return found


def serve(
    rank: int, size: int, dispatchers: int, dispatcher_side: str, filename: str, timeout: float
) -> None:
    """Be one of the ranks of a service; return when it was shut down."""
    if dispatcher_side not in ("compute", "training"):
        raise ValueError(f"the side of dispatchers is compute or training, not {dispatcher_side!r}")
    if not 0 < dispatchers <= size or size % dispatchers:
        raise ValueError(f"{dispatchers} dispatchers cannot share {size} workers evenly")
    manager = None
    if rank == 0:
        registry = _Registry()
        kind: Any = type("Server", (BaseManager,), {})
        kind.register("registry", callable=lambda: registry)
        key = secrets.token_bytes(32)
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        manager = kind((host, 0), key).get_server()
        threading.Thread(target=_serve, args=(manager,), daemon=True).start()
        TfDataServiceConfig(
            *(dispatchers, size // dispatchers, dispatcher_side, host),
            *(manager.address[1], key.hex(), timeout),
        ).write(filename)
    config = TfDataServiceConfig.read(filename, wait_for_file_creation=True)
    client = config.compute_client()
    mine = rank % dispatchers
    server = _dispatcher(config, rank)[0] if _has_dispatcher(config, rank) else None
    address = client.registry.wait_for_dispatcher(mine, timeout)
    worker = None
    if address is not None:
        options = tf.data.experimental.service.WorkerConfig(
            dispatcher_address=address.partition("://")[2],
            worker_address=f"{_address_towards(config)}:%port%",
        )
        worker = tf.data.experimental.service.WorkerServer(options)
        client.registry.register_worker(mine)
    while not _ended(client):
        time.sleep(_POLL)
    del worker, server
    if manager is not None:
        time.sleep(10 * _POLL)  # for the other ranks to see it
        manager.stop_event.set()


def _serve(manager: Any) -> None:
    with contextlib.suppress(SystemExit):  # it ends its process, usually
        manager.serve_forever()


def _has_dispatcher(config: TfDataServiceConfig, rank: int) -> bool:
    return config.dispatcher_side == "compute" and rank < config.dispatchers


def _ended(client: ComputeClient) -> bool:
    try:
        return bool(client.registry.has_ended())
    except (OSError, EOFError):
        return True  # rank 0 has gone


@contextlib.contextmanager
def tf_data_service(config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """Give the address of the dispatcher of a training rank, which runs it if that is its side."""
    registry = config.compute_client().registry
    number = rank % config.dispatchers
    server = None
    if config.dispatcher_side == "training" and rank < config.dispatchers:
        server, address = _dispatcher(config, rank)
    else:
        address = registry.wait_for_dispatcher(number, config.timeout)
        if address is None:
            raise RuntimeError("the compute service was shut down")
    registry.wait_for_workers(number, config.workers_per_dispatcher, config.timeout)
    yield address
    del server


def send_to_data_service(
    dataset: Any,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> Any:
    """Let a service compute a dataset. Its dispatchers run on the side of the service."""
    if compute_config.dispatcher_side != "compute":
        raise RuntimeError("dispatchers run on the training side: use tf_data_service()")
    if round_robin and size is None:
        raise ValueError("round_robin needs size")
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            tf.data.experimental.service.distribute(
                service=address,
                processing_mode=processing_mode,
                job_name="job" if reuse_dataset else None,
                consumer_index=rank if round_robin else None,
                num_consumers=size if round_robin else None,
            )
        )
