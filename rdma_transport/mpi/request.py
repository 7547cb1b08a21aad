"""Requests and statuses."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from rdma_transport.collectives.requests import Request as NativeRequest
from rdma_transport.mpi import datatypes
from rdma_transport.mpi.constants import (
    ANY_SOURCE,
    ANY_TAG,
    ERR_IN_STATUS,
    ERR_PENDING,
    ERR_REQUEST,
    PROC_NULL,
    PUBLIC,
    SUCCESS,
    UNDEFINED,
    Exception,
    Named,
    Partial,
    translated,
)

_POLL = 0.0005  # seconds
EMPTY = (ANY_SOURCE, ANY_TAG, 0)
NOBODY = (PROC_NULL, ANY_TAG, 0)
_BYTE = datatypes.type_of("B")

# Makes the result of a lower-case call, and source, tag and bytes, from the native result.
Finish = Callable[[Any], tuple[Any, tuple[int, int, int]]]


class Status(Partial):
    """Source, tag and size of a message."""

    __module__ = PUBLIC

    def __init__(self, status: "Status | None" = None) -> None:
        self.source, self.tag, self.error, self._nbytes = ANY_SOURCE, ANY_TAG, SUCCESS, 0
        if status is not None:
            if not isinstance(status, Status):
                raise TypeError(f"{status!r} is no status")
            self.error = status.error
            self._set((status.source, status.tag, status._nbytes))

    def _set(self, received: tuple[int, int, int]) -> None:
        self.source, self.tag, self._nbytes = received

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Status) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]

    def Get_source(self) -> int:
        """Return the rank of the sender."""
        return self.source

    def Get_tag(self) -> int:
        """Return the tag."""
        return self.tag

    def Get_count(self, datatype: datatypes.Datatype = _BYTE) -> int:
        """Return the number of elements; UNDEFINED if their bytes are not whole elements."""
        count, rest = divmod(self._nbytes, datatype.Get_size())
        return UNDEFINED if rest else count

    def Get_elements(self, datatype: datatypes.Datatype) -> int:
        """Return what ``Get_count()`` does: datatypes of several elements are missing."""
        return self.Get_count(datatype)

    count = property(Get_count)

    def Get_error(self) -> int:
        """Return the class of the error."""
        return self.error

    def Is_cancelled(self) -> bool:
        """Return False."""
        return False


class Request(Named):
    """A non-blocking call. Is REQUEST_NULL once it has been waited for."""

    __module__ = PUBLIC
    _native: NativeRequest | None
    _finish: Finish | None

    def __new__(cls, request: "Request | None" = None) -> "Request":
        """Return another object for the same call, or for none."""
        made = object.__new__(cls)
        made._native, made._finish = None, None
        if request is not None:
            made._native, made._finish = request._native, request._finish
        return made

    @classmethod
    def _of(cls, native: NativeRequest, finish: Finish | None = None) -> "Request":
        made = Request()
        made._native, made._finish = native, finish
        return made

    @classmethod
    def _to_nobody(cls) -> "Request":
        """Return a request that concerns PROC_NULL."""
        return cls._of(NativeRequest(None), lambda _: (None, NOBODY))

    def __bool__(self) -> bool:
        return self._native is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and other._native is self._native

    __hash__ = None  # type: ignore[assignment]

    def _done(self) -> bool:
        """Whether waiting returns at once."""
        with translated():
            return self._native is None or self._native.test()

    def wait(self, status: Status | None = None) -> Any:
        """Wait, and return the result of a lower-case call."""
        native, self._native = self._native, None
        value, received = None, EMPTY
        if native is not None:
            try:
                with translated():
                    result = native.wait()
            except KeyboardInterrupt:
                self._native = native  # the call continues
                raise
            if self._finish is not None:
                value, received = self._finish(result)
        if status is not None:
            status._set(received)
        return value

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Return whether it is done, and the result of a lower-case call."""
        return (True, self.wait(status)) if self._done() else (False, None)

    def Wait(self, status: Status | None = None) -> bool:
        """Wait; return True."""
        self.wait(status)
        return True

    def Test(self, status: Status | None = None) -> bool:
        """Return whether it is done."""
        return self.test(status)[0]

    def Free(self) -> None:
        """Forget the request; the call continues."""
        if self._native is None:
            raise Exception(ERR_REQUEST, "this is REQUEST_NULL")
        self._native = None

    @classmethod
    def waitall(
        cls, requests: "Sequence[Request]", statuses: list[Status] | None = None
    ) -> list[Any]:
        """Wait for all, and return the results.

        If one fails, do not wait for those behind it. The error then has the class ERR_IN_STATUS
        and the message of the first one, and `statuses` have the class of each.
        """
        filled = [Status() for _ in requests]
        values, failed = [], None
        for request, status in zip(requests, filled, strict=True):
            if failed is not None and not request._done():
                status.error = ERR_PENDING
                continue
            try:
                values.append(request.wait(status))
            except Exception as error:
                status.error = error.Get_error_class()
                failed = failed or error
        _give(filled, statuses)
        if failed is not None:
            raise Exception(ERR_IN_STATUS, str(failed)) from failed
        return values

    @classmethod
    def Waitall(cls, requests: "Sequence[Request]", statuses: list[Status] | None = None) -> bool:
        """Wait for all; return True. Raise like ``waitall()``."""
        cls.waitall(requests, statuses)
        return True

    @classmethod
    def testall(
        cls, requests: "Sequence[Request]", statuses: list[Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        """Return whether all are done, and the results if so."""
        if not all(request._done() for request in requests):
            return False, None
        return True, cls.waitall(requests, statuses)

    @classmethod
    def Testall(cls, requests: "Sequence[Request]", statuses: list[Status] | None = None) -> bool:
        """Return whether all are done."""
        return cls.testall(requests, statuses)[0]

    @classmethod
    def Waitany(cls, requests: "Sequence[Request]", status: Status | None = None) -> int:
        """Wait for one, and return its index; UNDEFINED if all are REQUEST_NULL."""
        done = _done_of(requests)
        if done:
            requests[done[0]].Wait(status)
            return done[0]
        if status is not None:
            status._set(EMPTY)
        return UNDEFINED

    @classmethod
    def Waitsome(
        cls, requests: "Sequence[Request]", statuses: list[Status] | None = None
    ) -> list[int] | None:
        """Wait for at least one, and return the indices of all that are done.

        None if all are REQUEST_NULL. `statuses` are those of these indices.
        """
        done = _done_of(requests)
        cls.waitall([requests[index] for index in done], statuses)
        return done or None


def _done_of(requests: Sequence[Request]) -> list[int]:
    """Wait until some requests are done, and return their indices; none if all are null."""
    while True:
        active = [index for index, request in enumerate(requests) if request]
        done = [index for index in active if requests[index]._done()]
        if done or not active:
            return done
        time.sleep(_POLL)


def _give(filled: list[Status], statuses: list[Status] | None) -> None:
    """Fill the statuses of a caller, whose list grows if it is too short."""
    if statuses is None:
        return
    if isinstance(statuses, list):
        statuses += [Status() for _ in filled[len(statuses) :]]
    for status, found in zip(statuses, filled, strict=False):
        status.error = found.error
        status._set((found.source, found.tag, found._nbytes))


REQUEST_NULL = Request()
