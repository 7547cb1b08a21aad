"""Requests and statuses."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rdma_transport.collectives.requests import Request as NativeRequest
from rdma_transport.mpi.constants import ANY_SOURCE, ANY_TAG, translated
from rdma_transport.mpi.datatypes import Datatype


class Status:
    """Source, tag and size of a message."""

    def __init__(self) -> None:
        self.source, self.tag, self.error, self._nbytes = ANY_SOURCE, ANY_TAG, 0, 0

    def set(self, source: int, tag: int, nbytes: int) -> None:
        """Take over what is known of a message."""
        self.source, self.tag, self._nbytes = source, tag, nbytes

    def Get_source(self) -> int:
        """Return the rank of the sender."""
        return self.source

    def Get_tag(self) -> int:
        """Return the tag."""
        return self.tag

    def Get_count(self, datatype: Datatype | None = None) -> int:
        """Return the number of elements, of bytes by default."""
        return self._nbytes // (datatype.Get_size() if datatype else 1)

    Get_elements = Get_count
    count = property(Get_count)

    def Get_error(self) -> int:
        """Return 0."""
        return self.error

    def Is_cancelled(self) -> bool:
        """Return False."""
        return False


class Request:
    """A non-blocking call. `finish` makes the result of a lower-case call from the native one."""

    def __init__(
        self,
        native: NativeRequest | None = None,
        finish: Callable[[Any, Status | None], Any] | None = None,
    ) -> None:
        self._native, self._finish = native, finish

    def wait(self, status: Status | None = None) -> Any:
        """Wait, and return the result of a lower-case call."""
        native, self._native = self._native, None
        if native is None:
            return None
        with translated():
            result = native.wait()
            return self._finish(result, status) if self._finish else None

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Return whether it is done, and the result of a lower-case call."""
        with translated():
            if self._native is not None and not self._native.test():
                return False, None
        return True, self.wait(status)

    def Wait(self, status: Status | None = None) -> bool:
        """Wait; return True."""
        self.wait(status)
        return True

    def Test(self, status: Status | None = None) -> bool:
        """Return whether it is done."""
        return self.test(status)[0]

    def Free(self) -> None:
        """Forget the request; the call continues."""
        self._native = None

    @classmethod
    def waitall(
        cls, requests: "Sequence[Request]", statuses: list[Status] | None = None
    ) -> list[Any]:
        """Wait for all, and return the results."""
        filled: Iterable[Status | None] = statuses if statuses else [None] * len(requests)
        return [request.wait(status) for request, status in zip(requests, filled, strict=False)]

    @classmethod
    def Waitall(cls, requests: "Sequence[Request]", statuses: list[Status] | None = None) -> bool:
        """Wait for all; return True."""
        cls.waitall(requests, statuses)
        return True

    @classmethod
    def testall(cls, requests: "Sequence[Request]") -> tuple[bool, list[Any] | None]:
        """Return whether all are done, and the results if so."""
        with translated():
            if any(each._native is not None and not each._native.test() for each in requests):
                return False, None
        return True, cls.waitall(requests)

    @classmethod
    def Testall(cls, requests: "Sequence[Request]", statuses: list[Status] | None = None) -> bool:
        """Return whether all are done."""
        return cls.testall(requests)[0]


REQUEST_NULL = Request()
