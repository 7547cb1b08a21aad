"""A minimal client of TensorFlow's worker service, over gRPC and without TensorFlow."""

import functools
import os
import random
from typing import Any

from rdma_transport.doctor.secret import SERVICE_OF_TASKS, asking

# Of native/tensorflow/bootstrap_call.h.
BOOTSTRAP_KEY = "rdma_transport_bootstrap"
BOOTSTRAP_TYPE = "type.googleapis.com/rdma_transport.Bootstrap"
CLIENT = "/job:rdma_transport_doctor/replica:0/task:0"
_SERVICE = "/tensorflow.WorkerService/"


class NoAnswerError(Exception):
    """The server did not answer in time, or cannot be reached."""


class RefusedError(Exception):
    """The server answered, but is not of this kind; the message is gRPC's."""


@functools.cache
def _messages() -> dict[str, Any]:
    """Message classes with the fields that are used here (TensorFlow's worker.proto)."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="rdma_transport_doctor.proto", package="visit")
    fields: dict[str, list[tuple[str, int, int, str]]] = {
        "Any": [("type_url", 1, kinds.TYPE_STRING, ""), ("value", 2, kinds.TYPE_BYTES, "")],
        "Device": [("name", 1, kinds.TYPE_STRING, "")],
        "GetStatusRequest": [],
        "GetStatusResponse": [("device_attributes", 1, kinds.TYPE_MESSAGE, "Device")],
        "RecvTensorRequest": [
            ("rendezvous_key", 2, kinds.TYPE_STRING, ""),
            ("transport_options", 6, kinds.TYPE_MESSAGE, "Any"),
            ("request_id", 7, kinds.TYPE_INT64, ""),
        ],
        "RecvTensorResponse": [("transport_options", 4, kinds.TYPE_MESSAGE, "Any")],
    }
    for name, members in fields.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of in members:
            label = kinds.LABEL_REPEATED if of == "Device" else kinds.LABEL_OPTIONAL
            made = message.field.add(name=field, number=number, type=kind, label=label)
            if of:
                made.type_name = f".visit.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"visit.{name}"))
        for name in fields
    }


class WorkerService:
    """A connection to one TensorFlow server. Raises ``ImportError`` without grpcio."""

    def __init__(self, target: str) -> None:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are reported here, once
        import grpc

        self._grpc = grpc
        self._channel = grpc.insecure_channel(target, [("grpc.enable_http_proxy", 0)])

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _call(self, method: str, request: Any, seconds: float) -> Any:
        call = self._channel.unary_unary(
            _SERVICE + method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=_messages()[f"{method}Response"].FromString,
        )
        try:
            return call(request, timeout=seconds)
        except self._grpc.RpcError as error:
            code, details = error.code(), error.details()
            gone = (self._grpc.StatusCode.UNAVAILABLE, self._grpc.StatusCode.DEADLINE_EXCEEDED)
            kind = NoAnswerError if code in gone else RefusedError
            raise kind(f"{code.name}: {details}") from None

    def task(self, seconds: float) -> str:
        """Return the name of the task that answers, as ``/job:ps/task:0``."""
        answer = self._call("GetStatus", _messages()["GetStatusRequest"](), seconds)
        for device in answer.device_attributes:
            if "/device:CPU:" in device.name:
                return str(device.name.partition("/device:")[0].replace("/replica:0", ""))
        raise RefusedError("the server reports no CPU device")

    def bootstrap(self, channel: bytes, seconds: float) -> dict[str, Any]:
        """Send the bootstrap request of a task; return the result of ``AskingBootstrap.reply``.

        ``channel`` is the address of a channel of this process. Raises ``RefusedError`` for a task
        without the plugin, ``PermissionError`` if the task does not prove the job's secret, and
        ``ValueError`` if this side's secret cannot be read or the reply is malformed.
        """
        handshake = asking(SERVICE_OF_TASKS)
        request = _messages()["RecvTensorRequest"](rendezvous_key=BOOTSTRAP_KEY)
        request.request_id = random.getrandbits(62)
        request.transport_options.type_url = BOOTSTRAP_TYPE
        request.transport_options.value = handshake.request(CLIENT, random.getrandbits(63), channel)
        reply = self._call("RecvTensor", request, seconds).transport_options
        if reply.type_url != BOOTSTRAP_TYPE:
            raise RefusedError("the reply has no bootstrap")
        return handshake.reply(reply.value)
