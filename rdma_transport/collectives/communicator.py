"""Communicators: groups of processes that call collectives together."""

import atexit
import contextlib
import hmac
import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rdma_transport import _collectives as native
from rdma_transport._collectives import RawDevice, RawGroup, RawMessage
from rdma_transport._fabric import FabricError, FabricValueError
from rdma_transport.collectives import objects
from rdma_transport.collectives.arrays import (
    ArrayOrBuffer,
    array_of,
    code_of,
    divide,
    exported,
    op_of,
    output_of,
)
from rdma_transport.collectives.membership import (
    is_elastic,
    membership,
    others_wait,
    until_none_is_lost,
)
from rdma_transport.collectives.ranks import Ranks, find_ranks
from rdma_transport.collectives.rendezvous import Rendezvous
from rdma_transport.collectives.requests import ReceiveRequest, Request
from rdma_transport.collectives.wire import Deadline

_BYTES = native.DTYPES["uint8"]

_open: "weakref.WeakSet[Communicator]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for each in list(_open):
        each.close()


class Communicator:
    """A group of processes, on one host or several. Make one with ``connect()`` or ``split()``.

    Arrays are NumPy arrays or any buffers: C-contiguous, of bool, integers, float16, bfloat16,
    float32, float64 or complex numbers in the byte order of the host. Operations are ``"sum"``,
    ``"prod"``, ``"min"``, ``"max"`` and, not of integers, ``"mean"``: the sum, then divided by the
    number of ranks. Shapes may differ between ranks if the numbers of elements do not. Arrays may
    change only after the call, or after ``wait()`` of a non-blocking one.

    ``timeout`` limits each call, in seconds; None means that a call waits as long as all ranks
    live. A rank of another host that does not respond counts as dead after
    ``RDMA_TRANSPORT_PEER_TIMEOUT``. After a timeout, the communicator cannot be used further.

    Thread-safe: collectives of several threads run one after the other, so all ranks must agree on
    their order.
    """

    rank: int
    """The rank of this process, from 0."""
    size: int
    """The number of processes."""
    timeout: float | None

    def __init__(self, device: RawDevice, raw: RawGroup, key: bytes) -> None:
        self._device, self._raw, self._key = device, raw, key
        self.rank, self.size = raw.rank, raw.size
        self.timeout = None
        self._splits = 0
        _open.add(self)

    @classmethod
    def connect(
        cls,
        ranks: Ranks | None = None,
        *,
        fabric: str | None = None,
        timeout: float | Deadline | None = None,
        _device: RawDevice | None = None,
    ) -> "Communicator":
        """Connect to all other ranks, and return the communicator of all.

        Rank, size and address come from the launcher's environment by default (``find_ranks()``);
        without a launcher, this process is alone. In an elastic job, wait until the launcher says
        which ranks there are now, and again if one of them is lost meanwhile. `fabric` is as in
        ``Device.open()``. Raise ``FabricTimeoutError`` if a rank is missing after `timeout`
        seconds, by default ``RDMA_TRANSPORT_START_TIMEOUT``, and ``FabricConnectionError`` if one
        refuses or cannot be reached.
        """
        if timeout is None:
            timeout = native.start_timeout()
        device = _device or RawDevice(fabric or "")
        if ranks is None and is_elastic():
            seconds = timeout.left() if isinstance(timeout, Deadline) else timeout
            return until_none_is_lost(lambda: cls._connect_epoch(device, seconds))
        deadline = timeout if isinstance(timeout, Deadline) else Deadline(timeout)
        return cls._connect(device, ranks or find_ranks(), deadline)

    @classmethod
    def _connect_epoch(cls, device: RawDevice, seconds: float) -> "Communicator":
        chosen = membership().next_ranks()
        return cls._connect(device, chosen, _deadline(seconds))

    @classmethod
    def _connect(cls, device: RawDevice, chosen: Ranks, deadline: Deadline) -> "Communicator":
        raw = RawGroup(device, chosen.rank, chosen.size)
        key = b""
        if chosen.size > 1:
            with Rendezvous(chosen, deadline) as rendezvous:
                addresses, key = rendezvous.exchange(raw.addresses())
                _join(raw, addresses, key, rendezvous.barrier)
                deadline.wait(raw.finish)
                rendezvous.barrier()
        else:
            deadline.wait(raw.finish)
        return cls(device, raw, key)

    # --- Collectives ---

    def all_reduce(
        self, array: ArrayOrBuffer, op: str = "sum", out: ArrayOrBuffer | None = None
    ) -> Any:
        """Combine the arrays of all ranks element by element; return the result on all.

        `out` has as many elements as `array`, and may be `array`; None: a new array.
        """
        return self._run(native.ALL_REDUCE, array, out, _like, op)

    def reduce_scatter(
        self, array: ArrayOrBuffer, op: str = "sum", out: ArrayOrBuffer | None = None
    ) -> Any:
        """Combine arrays of shape ``(size, ...)``; return part ``[rank]`` of the result.

        `out` has the shape of one part, and may be ``array[rank]``; None: a new array.
        """
        return self._run(native.REDUCE_SCATTER, array, out, _part, op)

    def all_gather(self, array: ArrayOrBuffer, out: ArrayOrBuffer | None = None) -> Any:
        """Return the arrays of all ranks in one of shape ``(size, *array.shape)``.

        `array` may be ``out[rank]``; None: a new array.
        """
        return self._run(native.ALL_GATHER, array, out, _whole)

    def broadcast(self, array: ArrayOrBuffer, root: int = 0) -> Any:
        """Overwrite `array` by that of rank `root`; return it."""
        return self._run(native.BROADCAST, None, array, _like, root=root)

    def all_to_all(self, array: ArrayOrBuffer, out: ArrayOrBuffer | None = None) -> Any:
        """Send part ``[i]`` of an array of shape ``(size, ...)`` to rank i, for all i.

        Return an array of the same shape, whose part ``[i]`` comes from rank i. `out` may be
        `array`; None: a new array.
        """
        return self._run(native.ALL_TO_ALL, array, out, _like)

    def gather(self, array: ArrayOrBuffer, root: int = 0, out: ArrayOrBuffer | None = None) -> Any:
        """Return the arrays of all ranks at rank `root`, in one of shape ``(size, *array.shape)``.

        `array` may be ``out[rank]`` there; None: a new array. Other ranks give no `out`, and get
        None.
        """
        return self._run(native.GATHER, array, out, self._only_at(root, _whole), root=root)

    def scatter(self, array: ArrayOrBuffer | None, out: ArrayOrBuffer, root: int = 0) -> Any:
        """Fill `out` with part ``[rank]`` of the root's array of shape ``(size, ...)``; return it.

        `out` may be ``array[rank]``. Other ranks than `root` give None for `array`.
        """
        return self._run(native.SCATTER, array, out, _nothing, root=root)

    def reduce(
        self, array: ArrayOrBuffer, op: str = "sum", root: int = 0, out: ArrayOrBuffer | None = None
    ) -> Any:
        """Combine the arrays of all ranks element by element; return the result at rank `root`.

        `out` may be `array`. Other ranks give no `out`, and get None.
        """
        return self._run(native.REDUCE, array, out, self._only_at(root, _like), op, root)

    def exchange(self, parts: Sequence[ArrayOrBuffer], outs: Sequence[ArrayOrBuffer]) -> None:
        """Send ``parts[i]`` to rank i, and fill ``outs[i]`` with what rank i sends, for all i.

        Arrays may have any sizes, but those of sender and receiver must be equal.
        """
        self._exchange(self._raw.run, parts, outs)

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        self._raw.run(native.BARRIER, _BYTES, 0, 0, None, None, self.timeout)

    def reject(self, waits: bool = True) -> None:
        """Take part in the collective that the other ranks call only to make it fail.

        They raise ``FabricValueError``. For a rank that cannot call it, because it has no array for
        example. `waits`: until they call it. Never raises.
        """
        call = self._raw.run if waits else self._raw.start
        with contextlib.suppress(FabricError):
            call(native.INVALID, _BYTES, 0, 0, None, None, self.timeout)

    # --- The same, without waiting: the result of the request is what the call returns ---

    def start_all_reduce(
        self, array: ArrayOrBuffer, op: str = "sum", out: ArrayOrBuffer | None = None
    ) -> Request:
        """Start ``all_reduce()``. A thread carries out what was started, in that order."""
        return self._start(native.ALL_REDUCE, array, out, _like, op)

    def start_reduce_scatter(
        self, array: ArrayOrBuffer, op: str = "sum", out: ArrayOrBuffer | None = None
    ) -> Request:
        """Start ``reduce_scatter()``."""
        return self._start(native.REDUCE_SCATTER, array, out, _part, op)

    def start_all_gather(self, array: ArrayOrBuffer, out: ArrayOrBuffer | None = None) -> Request:
        """Start ``all_gather()``."""
        return self._start(native.ALL_GATHER, array, out, _whole)

    def start_broadcast(self, array: ArrayOrBuffer, root: int = 0) -> Request:
        """Start ``broadcast()``."""
        return self._start(native.BROADCAST, None, array, _like, root=root)

    def start_all_to_all(self, array: ArrayOrBuffer, out: ArrayOrBuffer | None = None) -> Request:
        """Start ``all_to_all()``."""
        return self._start(native.ALL_TO_ALL, array, out, _like)

    def start_gather(
        self, array: ArrayOrBuffer, root: int = 0, out: ArrayOrBuffer | None = None
    ) -> Request:
        """Start ``gather()``."""
        return self._start(native.GATHER, array, out, self._only_at(root, _whole), root=root)

    def start_scatter(
        self, array: ArrayOrBuffer | None, out: ArrayOrBuffer, root: int = 0
    ) -> Request:
        """Start ``scatter()``."""
        return self._start(native.SCATTER, array, out, _nothing, root=root)

    def start_reduce(
        self, array: ArrayOrBuffer, op: str = "sum", root: int = 0, out: ArrayOrBuffer | None = None
    ) -> Request:
        """Start ``reduce()``."""
        return self._start(native.REDUCE, array, out, self._only_at(root, _like), op, root)

    def start_exchange(
        self, parts: Sequence[ArrayOrBuffer], outs: Sequence[ArrayOrBuffer]
    ) -> Request:
        """Start ``exchange()``."""
        return Request(self._exchange(self._raw.start, parts, outs))

    def start_barrier(self) -> Request:
        """Start ``barrier()``."""
        return Request(self._raw.start(native.BARRIER, _BYTES, 0, 0, None, None, self.timeout))

    # --- Memory ---

    def empty(self, shape: Any, dtype: Any = np.float64) -> Any:
        """Return a new array in registered memory, which the other ranks read where it lies.

        Only if all ranks share memory, the inputs of all are registered (of a broadcast: the
        root's array; of an all-reduce: also the outputs), and from 256 KiB on; not for an
        all-to-all in place. The array is allocated in units of 2 MiB, is zeroed, and is freed with
        the last view of it. Raise ``FabricResourceError`` if there is not enough memory.
        """
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        if count == 0:
            return np.empty(shape, kind)
        memory = self._raw.allocate(count * kind.itemsize)
        return (
            np.frombuffer(memoryview(memory), np.uint8, count * kind.itemsize)
            .view(kind)
            .reshape(shape)
        )

    # --- Messages ---

    def send(self, array: ArrayOrBuffer, destination: int, tag: int = 0) -> None:
        """Send an array, which may change afterwards.

        64 MiB that `destination` has not received are copied without waiting; beyond them, wait
        until it receives. A send that a timeout or Ctrl-C ends goes on: keep the array as it is.
        """
        self._raw.send(destination, tag, exported_bytes(array), self.timeout)

    def start_send(self, array: ArrayOrBuffer, destination: int, tag: int = 0) -> Request:
        """Start ``send()``. The array must not change until it is done.

        Of large messages, 8 MiB that `destination` has not received are copied; the rest may stay
        in the array until it is received.
        """
        return Request(self._raw.start_send(destination, tag, exported_bytes(array)))

    def recv(self, out: ArrayOrBuffer, source: int = -1, tag: int = -1) -> tuple[int, int, int]:
        """Wait for a message, and copy it to `out`; return its source, tag and bytes.

        -1 means any. Messages of equal source and tag arrive in order. Of several receives that
        match a message, the one that was started first gets it. Raise ``MessageTruncatedError`` if
        the message is longer than `out`; it is lost then, as is one that has begun to arrive when
        a timeout ends the call.
        """
        return self._raw.receive(source, tag, target_bytes(out), self.timeout)[1]

    def start_recv(self, out: ArrayOrBuffer, source: int = -1, tag: int = -1) -> Request:
        """Start ``recv()``."""
        raw = self._raw.start_receive(source, tag, target_bytes(out))
        return ReceiveRequest(raw, lambda _, found: found)

    def probe(self, source: int = -1, tag: int = -1) -> tuple[int, int, int] | None:
        """Return source, tag and bytes of the message that ``recv()`` would get, or None.

        Raise ``FabricConnectionError`` if there is none, and none can arrive.
        """
        return self._raw.probe(source, tag)

    def wait_for_message(self, source: int = -1, tag: int = -1) -> tuple[int, int, int]:
        """Wait until ``probe()`` finds a message; return the same."""
        return self._raw.wait_for_message(source, tag, self.timeout)

    # --- Python objects, by pickle: unpickling trusts the sender ---

    def broadcast_object(self, value: Any = None, root: int = 0) -> Any:
        """Return the object of rank `root`."""
        return objects.broadcast(self, value, root)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the objects of all ranks."""
        return objects.all_gather(self, value)

    def gather_object(self, value: Any, root: int = 0) -> list[Any] | None:
        """Return the objects of all ranks at rank `root`, None at the others."""
        return objects.gather(self, value, root)

    def scatter_object(self, values: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Return ``values[rank]`` of rank `root`."""
        return objects.scatter(self, values, root)

    def all_to_all_objects(self, values: Sequence[Any]) -> list[Any]:
        """Send ``values[i]`` to rank i, for all i; return what the ranks send this one."""
        return objects.all_to_all(self, values)

    def send_object(self, value: Any, destination: int, tag: int = 0) -> None:
        """Send an object. Wait as ``send()`` does."""
        self._raw.send(destination, tag, _pickled(value), self.timeout)

    def start_send_object(self, value: Any, destination: int, tag: int = 0) -> Request:
        """Start ``send_object()``. The object may change at once."""
        return Request(self._raw.start_send(destination, tag, _pickled(value)))

    def recv_object(self, source: int = -1, tag: int = -1) -> tuple[Any, int, int]:
        """Wait for an object; return it, its source and its tag. -1 means any."""
        return _unpickled(self.recv_bytes(source, tag))

    def start_recv_object(self, source: int = -1, tag: int = -1) -> Request:
        """Start ``recv_object()``."""
        raw = self._raw.start_receive(source, tag, None)
        return ReceiveRequest(raw, lambda raw, found: _unpickled(_with_bytes(raw, found)))

    def recv_bytes(self, source: int = -1, tag: int = -1) -> tuple[memoryview, int, int]:
        """Wait for a message of any length; return its bytes, source and tag. -1 means any."""
        return _with_bytes(*self._raw.receive(source, tag, None, self.timeout))

    def start_recv_bytes(self, source: int = -1, tag: int = -1) -> Request:
        """Start ``recv_bytes()``."""
        return ReceiveRequest(self._raw.start_receive(source, tag, None), _with_bytes)

    # --- Groups ---

    def split(self, color: int | None, key: int = 0) -> "Communicator | None":
        """Return a communicator of the ranks that give the same `color`; None for None.

        Its ranks are in the order of `key`, then of their ranks here. All ranks must call this.
        """
        self._splits += 1
        choices = self.all_gather_object((color, key))
        members = sorted(
            (choice[1], rank) for rank, choice in enumerate(choices) if choice[0] == color
        )
        ranks = [rank for _, rank in members]
        raw = None
        if color is not None:
            raw = RawGroup(self._device, ranks.index(self.rank), len(ranks))
        rows = self.all_gather_object(raw.addresses() if raw else None)
        own_key = b""
        if self._key:
            own_key = hmac.digest(self._key, f"{self._splits} {color}".encode(), "sha256")
        if raw is None:
            self.barrier()
            return None
        _join(raw, [rows[rank][raw.rank] for rank in ranks], own_key, self.barrier)
        _deadline(native.start_timeout() if self.timeout is None else self.timeout).wait(raw.finish)
        made = Communicator(self._device, raw, own_key)
        made.timeout = self.timeout
        return made

    def shrink(self) -> "Communicator":
        """Leave, after an error; return a communicator of the ranks that live, in their order.

        All of them call this, in a job of ``rdma-transport run --elastic``. Processes that wait to
        take the place of others are taken in, too, behind these ranks. Arrays of ``empty()`` stay
        registered. Raise errors as ``connect()``.
        """
        if not is_elastic():
            raise FabricValueError(
                "the ranks of this job cannot change: start it with 'rdma-transport run --elastic'"
            )
        self.close()
        made = Communicator.connect(_device=self._device)
        made.timeout = self.timeout
        return made

    def grow(self) -> "Communicator":
        """Return a communicator with the processes that wait to take the place of others.

        All ranks call this at the same place. If no process waits, return this communicator.
        """
        waits = np.array([others_wait()], np.uint8)
        return self.shrink() if self.all_reduce(waits, "max")[0] else self

    def close(self) -> None:
        """Leave the group. Calls in progress fail, also those of ranks that wait for this one.

        Wait until the other ranks have copied all messages, unless they take none for
        ``RDMA_TRANSPORT_PEER_TIMEOUT``. Idempotent.
        """
        self._raw.close(f"rank {self.rank} closed the communicator")

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Communicator rank {self.rank} of {self.size}>"

    # --- Internals ---

    def _call(
        self,
        call: Callable[..., Any],
        kind: int,
        array: Any,
        out: Any,
        make: Callable[[Any, int], Any],
        op: str,
        root: int,
    ) -> tuple[Any, Any]:
        """Start or run a call; return its result array and what `call` returned."""
        try:
            source = None if array is None else array_of(array)
            target: Any = make(source, self.size) if out is None else output_of(out)
            either = source if target is None else target
            if either is None:
                raise FabricValueError("this rank must give an array")
            dtype = either.dtype
            code = code_of(dtype)
            if source is not None and source.dtype != dtype:
                raise FabricValueError(f"the input is of {source.dtype} and the output of {dtype}")
            number = op_of(op, dtype)
            given = None if source is None else exported(source, code)
            taken = None if target is None else exported(target, code)
        except Exception:
            self.reject(waits=call == self._raw.run)
            raise
        return target, call(kind, code, number, root, given, taken, self.timeout)

    def _exchange(self, call: Callable[..., Any], parts: Sequence[Any], outs: Sequence[Any]) -> Any:
        try:
            given = [exported_bytes(part) for part in parts]
            taken = [exported_bytes(output_of(out)) for out in outs]
        except Exception:
            self.reject(waits=call == self._raw.run)
            raise
        return call(native.EXCHANGE, _BYTES, 0, 0, given, taken, self.timeout)

    def _only_at(self, root: int, make: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
        return make if root == self.rank else _nothing

    def _run(
        self, kind: int, array: Any, out: Any, make: Any, op: str = "sum", root: int = 0
    ) -> Any:
        result, _ = self._call(self._raw.run, kind, array, out, make, op, root)
        if op == "mean" and result is not None:
            divide(result, self.size)
        return result if out is None else out

    def _start(
        self, kind: int, array: Any, out: Any, make: Any, op: str = "sum", root: int = 0
    ) -> Request:
        result, raw = self._call(self._raw.start, kind, array, out, make, op, root)
        returned = result if out is None else out
        if op == "mean" and result is not None:
            return Request(raw, returned, lambda: divide(result, self.size))
        return Request(raw, returned)


def exported_bytes(array: Any) -> Any:
    """Return the bytes of an array or buffer as an object with the buffer protocol."""
    found = array_of(array)
    if not found.flags.c_contiguous:
        raise FabricValueError("the array is not C-contiguous; pass a copy of it")
    return exported(found, code_of(found.dtype))


def _deadline(seconds: float) -> Deadline:
    """Return a deadline, which in elastic jobs ends as soon as a rank is lost."""
    made = Deadline(seconds)
    if is_elastic():
        membership().end_with_epoch(made)
    return made


def _join(raw: RawGroup, addresses: list[bytes], key: bytes, barrier: Callable[[], None]) -> None:
    """Connect to all other members. Of two, the one of the higher rank comes first."""
    for passive in (True, False):
        for peer in range(raw.size):
            if peer != raw.rank and (peer < raw.rank) == passive:
                pair = f"{min(peer, raw.rank)} {max(peer, raw.rank)}".encode()
                own = hmac.digest(key, pair, "sha256") if key else b""
                raw.connect(peer, addresses[peer], own)
        if passive:
            barrier()


def target_bytes(out: Any) -> Any:
    """Return the bytes of an array or buffer that a receive writes."""
    target = output_of(out)
    if not target.flags.c_contiguous or not target.flags.writeable:
        raise FabricValueError("the array is not C-contiguous or is read-only")
    return target.reshape(-1).view(np.uint8)


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _with_bytes(raw: RawMessage, found: tuple[int, int, int]) -> tuple[memoryview, int, int]:
    source, tag, _ = found
    return memoryview(raw), source, tag


def _unpickled(message: tuple[memoryview, int, int]) -> tuple[Any, int, int]:
    data, source, tag = message
    return pickle.loads(data), source, tag


def _nothing(source: Any, _: int) -> None:
    """Of a rank that gets no result."""


def _like(source: Any, _: int) -> Any:
    return np.empty(source.shape, source.dtype)


def _part(source: Any, size: int) -> Any:
    if source.ndim == 0 or source.shape[0] != size:
        raise FabricValueError(
            f"the array has shape {source.shape}; its first dimension must be {size}, the number "
            "of ranks, unless an output is given"
        )
    return np.empty(source.shape[1:], source.dtype)


def _whole(source: Any, size: int) -> Any:
    return np.empty((size, *source.shape), source.dtype)
