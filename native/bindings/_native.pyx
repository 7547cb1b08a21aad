# cython: language_level=3
"""The core's reports as JSON texts, and the bootstrap. Thin: `rdma_transport` wraps them."""

from libc.string cimport memset
from libcpp.memory cimport unique_ptr
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.vector cimport vector

from bootstrap cimport (
    AnsweringHandshake,
    AskingHandshake,
    BootstrapReply,
    BootstrapRequest,
    ControlMessage,
    MessageType,
    ReadSecrets,
    SecretFile,
    Status,
    TypeOf,
    kProtocolVersion,
)
from report cimport (
    CountersJson,
    LibfabricSurveyJson,
    ProcessStatsJson,
    SettingsJson,
    SurveyJson,
    kSlots,
)

cdef extern from *:
    const char* RDMA_TRANSPORT_TF_VERSION

TENSORFLOW_VERSION = RDMA_TRANSPORT_TF_VERSION.decode()
PROTOCOL_VERSION = kProtocolVersion
SLOTS_PER_EDGE = kSlots


def stats_json() -> str:
    """Return the counters of this process as a JSON object."""
    return ProcessStatsJson().decode()


def counters_json() -> str:
    """Return the table of counters as a JSON object."""
    return CountersJson().decode()


def settings_json() -> str:
    """Return every setting with its source and value as a JSON object."""
    return SettingsJson().decode()


def survey_json() -> str:
    """Return what the verbs fabric finds on this host and would use, as a JSON object."""
    return SurveyJson().decode()


def libfabric_survey_json() -> str:
    """What libfabric offers on this host, and what would be used, as a JSON object."""
    return LibfabricSurveyJson().decode()


def read_secrets(path: str) -> tuple[int, str]:
    """Return the number of secrets in a file, and a warning or ""; raise ValueError."""
    cdef vector[string] secrets
    cdef string warning
    require_ok(ReadSecrets(path.encode(), &secrets, &warning), ValueError)
    return secrets.size(), warning.decode(errors="replace")


cdef string_view view(const string& text) noexcept:
    return string_view(text.data(), text.size())


cdef int require_ok(const Status& status, error: type) except -1:
    """Raises `error` if the status is not OK."""
    if not status.ok():
        raise error(status.message().decode(errors="replace"))
    return 0


cdef class _Bootstrap:
    """`service` is the service to reach ("task"), `secret_file` the path of the secrets or ""."""

    cdef string service
    cdef unique_ptr[SecretFile] file

    def __init__(self, service: str, secret_file: str) -> None:
        self.service = service.encode()
        self.file.reset(new SecretFile(secret_file.encode()))


cdef class AskingBootstrap(_Bootstrap):
    """The connecting side of one bootstrap. Call request(), then reply(), once each."""

    cdef unique_ptr[AskingHandshake] handshake

    def __init__(self, service: str, secret_file: str) -> None:
        super().__init__(service, secret_file)
        self.handshake.reset(new AskingHandshake(self.file.get(), view(self.service)))

    def request(self, task: str, incarnation: int, channel: bytes) -> bytes:
        """Return the request; `channel` is the address of this side's channel."""
        cdef BootstrapRequest request
        request.version = kProtocolVersion
        request.sender.task = task.encode()
        request.sender.incarnation = incarnation
        request.channel = channel
        require_ok(self.handshake.get().Sign(&request), ValueError)
        return request.Encode()

    def reply(self, reply: bytes) -> dict[str, object]:
        """Return `version`, `task`, `channel` (empty: refused), `refusal`, and the channel's `key`.

        Raise ValueError if it is malformed, and PermissionError if its sender does not prove the
        secret.
        """
        cdef BootstrapReply read
        cdef string data = reply
        require_ok(BootstrapReply.Decode(view(data), &read), ValueError)
        require_ok(self.handshake.get().Check(read), PermissionError)
        return {
            "version": read.version,
            "task": read.sender.task.decode(errors="replace"),
            "channel": read.channel,
            "refusal": read.refusal.decode(errors="replace"),
            "key": self.handshake.get().channel_key(),
        }


cdef class AnsweringBootstrap(_Bootstrap):
    """The accepting side of one bootstrap. Call check(), then reply()."""

    cdef unique_ptr[AnsweringHandshake] handshake

    def __init__(self, service: str, secret_file: str) -> None:
        super().__init__(service, secret_file)
        self.handshake.reset(new AnsweringHandshake(self.file.get(), view(self.service)))

    def check(self, request: bytes) -> dict[str, object]:
        """Return `version`, `channel` (the sender's), and the channel's `key`.

        Raise ValueError if it is malformed, and PermissionError, with a message for the sender, if
        the sender does not prove the secret.
        """
        cdef BootstrapRequest read
        cdef string data = request
        require_ok(BootstrapRequest.Decode(view(data), &read), ValueError)
        require_ok(self.handshake.get().Check(read), PermissionError)
        return {
            "version": read.version,
            "channel": read.channel,
            "key": self.handshake.get().channel_key(),
        }

    def reply(self, channel: bytes, refusal: str) -> bytes:
        """Return the reply: the address of this side's channel, or the reason for a refusal."""
        cdef BootstrapReply reply
        reply.version = kProtocolVersion
        reply.channel = channel
        reply.refusal = refusal.encode()
        self.handshake.get().Sign(&reply)
        return reply.Encode()


def ping() -> bytes:
    """Return the notification that a task answers with a pong."""
    cdef ControlMessage message
    memset(&message, 0, sizeof(message))
    message.type = MessageType.kPing
    return (<char*>&message)[:sizeof(message)]


def is_pong(notification: bytes) -> bool:
    """Return whether this is the answer of a task to ping()."""
    return TypeOf(notification, len(notification)) == MessageType.kPong
