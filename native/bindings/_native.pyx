# cython: language_level=3
"""The core's reports, as JSON texts. Thin: `rdma_transport` gives them their Python shape."""

from libc.string cimport memset
from libcpp.string cimport string
from libcpp.string_view cimport string_view

from bootstrap cimport (
    BootstrapReply,
    BootstrapRequest,
    ControlMessage,
    MessageType,
    Status,
    TypeOf,
    kProtocolVersion,
)
from report cimport SettingsJson, StatsJson, SurveyJson

cdef extern from *:
    const char* RDMA_TRANSPORT_TF_VERSION

TENSORFLOW_VERSION = RDMA_TRANSPORT_TF_VERSION.decode()
PROTOCOL_VERSION = kProtocolVersion


def stats_json() -> str:
    """What the transport of this process did, as a JSON object."""
    return StatsJson().decode()


def settings_json() -> str:
    """Every setting with its source and value, as a JSON object."""
    return SettingsJson().decode()


def survey_json() -> str:
    """What the verbs fabric finds on this host and would use, as a JSON object."""
    return SurveyJson().decode()


def bootstrap_request(task: str, incarnation: int, channel: bytes) -> bytes:
    """What a task asks another one first; `channel` is the address of the asker's channel."""
    cdef BootstrapRequest request
    request.version = kProtocolVersion
    request.sender.task = task.encode()
    request.sender.incarnation = incarnation
    request.channel = channel
    return request.Encode()


def bootstrap_reply(reply: bytes) -> dict[str, object]:
    """`version`, `task`, `channel` (empty: refused) and `refusal`; ValueError if it is none."""
    cdef BootstrapReply read
    cdef string data = reply
    cdef Status status = BootstrapReply.Decode(string_view(data.data(), data.size()), &read)
    if not status.ok():
        raise ValueError(status.message().decode())
    return {
        "version": read.version,
        "task": read.sender.task.decode(),
        "channel": read.channel,
        "refusal": read.refusal.decode(errors="replace"),
    }


def ping() -> bytes:
    """The notification that a task answers with a pong."""
    cdef ControlMessage message
    memset(&message, 0, sizeof(message))
    message.type = MessageType.kPing
    return (<char*>&message)[:sizeof(message)]


def is_pong(notification: bytes) -> bool:
    """Whether it is what a task answers to ping()."""
    return TypeOf(notification, len(notification)) == MessageType.kPong
