"""The job's secret: whether its file is as it should be, and how messages are signed with it."""

from rdma_transport import _native
from rdma_transport.doctor.case import Case
from rdma_transport.doctor.result import FAIL, PASS, SKIP, WARN, Result
from rdma_transport.settings import read

SERVICE_OF_TASKS = "task"  # kTaskService of native/protocol/handshake.h
SERVICE_OF_DOCTORS = "doctor"
_BY_NAME = "RDMA_TRANSPORT_SECRET_FILE"


def fixes(path: str = "/etc/job.secret") -> dict[str, str]:
    """Return the lines that give tasks a secret at ``path``."""
    return {
        "shell": f"(umask 077; openssl rand -hex 32 > {path})    "
        f"# once; the same file for every task; export {_BY_NAME}={path}",
        "systemd": f"LoadCredential=job.secret:{path}, "
        f"Environment={_BY_NAME}=%d/job.secret    # readable by the unit's user alone",
        "docker": f"docker run -v {path}:{path}:ro -e {_BY_NAME}={path} ...    # chmod 600 {path}",
        "kubernetes": "volumes: [{name: secret, secret: {secretName: job, defaultMode: 0400}}]    "
        "# kubectl create secret generic job --from-file=secret",
        "slurm": f"chmod 600 {path}    # on a file system of all nodes; "
        f"srun --export=ALL,{_BY_NAME}={path} ...",
    }


def check_secret(case: Case) -> Result:
    """The file that RDMA_TRANSPORT_SECRET_FILE names can be used; nothing of it is shown."""
    path = case.given.value("SECRET_FILE")
    if not path:
        why = "tasks believe whoever reaches their ports; the secret would change that for tensors"
        return Result("secret", SKIP, "RDMA_TRANSPORT_SECRET_FILE is not set", why)
    try:
        count, warning = _native.read_secrets(path)
    except ValueError as error:
        why = "a server with protocol='rdma' does not start with this file"
        return Result("secret", FAIL, str(error), why, fixes(path))
    if warning:
        why = "whoever can read it can join the job"
        return Result("secret", WARN, warning, why, fixes(path))
    found = f"{path}: signs with its first line" + (f", accepts {count}" if count > 1 else "")
    return Result("secret", PASS, found)


def asking(service: str) -> _native.AskingBootstrap:
    """Return the asking side of a bootstrap with this environment's secret."""
    return _native.AskingBootstrap(service, read().value("SECRET_FILE"))


def answering(service: str) -> _native.AnsweringBootstrap:
    """Return the asked side of a bootstrap with this environment's secret."""
    return _native.AnsweringBootstrap(service, read().value("SECRET_FILE"))


CHECKS = (check_secret,)
