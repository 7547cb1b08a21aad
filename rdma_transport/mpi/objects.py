"""Collectives of Python objects, by mpi4py's names."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from rdma_transport.mpi.constants import ERR_ROOT, Exception, translated
from rdma_transport.mpi.messages import Messages
from rdma_transport.mpi.operations import SUM


class ObjectCollectives(Messages):
    """The lower-case calls of a communicator that concern all ranks."""

    def barrier(self) -> None:
        """See mpi4py."""
        with translated():
            self._native.barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """See mpi4py."""
        with self._arguments(root):
            pass
        with translated():
            return self._native.broadcast_object(obj, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        """See mpi4py."""
        with translated():
            return self._native.all_gather_object(sendobj)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """See mpi4py."""
        with self._arguments(root):
            pass
        with translated():
            return self._native.gather_object(sendobj, root)

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """See mpi4py."""
        with self._arguments(root):
            given = self._one_each(sendobj) if self._native.rank == root else None
        with translated():
            return self._native.scatter_object(given, root)

    def alltoall(self, sendobj: Sequence[Any] | None) -> list[Any]:
        """See mpi4py."""
        with self._arguments():
            given = self._one_each(sendobj)
        with translated():
            return self._native.all_to_all_objects(given)

    def allreduce(self, sendobj: Any, op: Any = SUM) -> Any:
        """See mpi4py. `op` may be any function of two objects."""
        return functools.reduce(op, self.allgather(sendobj))

    def reduce(self, sendobj: Any, op: Any = SUM, root: int = 0) -> Any:
        """See mpi4py. `op` may be any function of two objects."""
        gathered = self.gather(sendobj, root)
        return None if gathered is None else functools.reduce(op, gathered)

    @contextlib.contextmanager
    def _arguments(self, root: int = 0, waits: bool = True) -> Iterator[None]:
        """Read the arguments of a collective; if that fails, the calls of the others fail, too.

        `waits`: of a blocking call. Raise ``Exception`` if there is no rank `root`.
        """
        native = self._native
        try:
            if not 0 <= root < native.size:
                last = native.size - 1
                raise Exception(ERR_ROOT, f"there is no rank {root}: ranks are 0 to {last}")
            yield
        except BaseException:
            native.reject(waits)
            raise

    def _one_each(self, objects: Sequence[Any] | None) -> list[Any]:
        size = self._native.size
        given = [None] * size if objects is None else list(objects)
        if len(given) != size:
            raise ValueError(f"expecting {size} items, got {len(given)}")
        return given
