"""The job's secret: checks its file, and signs messages with it."""

import shlex

from rdma_transport import _native
from rdma_transport.doctor.context import Context
from rdma_transport.doctor.result import FAIL, PASS, SKIP, WARN, Result
from rdma_transport.settings import read

SERVICE_OF_TASKS = "task"  # kTaskService of native/protocol/handshake.h
SERVICE_OF_DOCTORS = "doctor"
_BY_NAME = "RDMA_TRANSPORT_SECRET_FILE"


def secret_fixes(path: str = "") -> dict[str, str]:
    """Return the lines that give a task the secret of its job; ``path`` is its file, if it has one.

    None of them replaces a file that other tasks may have.
    """
    path = path or "/etc/job.secret"
    return {
        "shell": f"export {_BY_NAME}={path}    # the same file as on the other tasks: copy it; "
        "or make the job's first: " + _make(path),
        "systemd": f"LoadCredential=job.secret:{path}, "
        f"Environment={_BY_NAME}=%d/job.secret    # readable only by the unit's user",
        "docker": f"docker run -v {path}:{path}:ro -e {_BY_NAME}={path} ...    # chmod 600 {path}",
        "kubernetes": "volumes: [{name: secret, secret: {secretName: job, defaultMode: 0400}}]    "
        "# kubectl create secret generic job --from-file=secret",
        "slurm": f"chmod 600 {path}    # on a file system that all nodes share; "
        f"srun --export=ALL,{_BY_NAME}={path} ...",
    }


def _make(path: str) -> str:
    return f"(umask 077; openssl rand -hex 32 > {path})"


def _file_fixes(path: str, problem: str) -> dict[str, str]:
    """Return the lines that put the file right."""
    quoted = shlex.quote(path)
    if "group can read" in problem or "other users" in problem:
        shell = f"chmod 600 {quoted}"
    elif "No such file" in problem or "characters" in problem or "it is empty" in problem:
        shell = f"{_make(quoted)}    # once; copy the file to every task"
    else:
        shell = f"ls -l {quoted}    # it must be a short file that this user can read"
    return secret_fixes(path) | {"shell": shell}


def check_secret(context: Context) -> Result:
    """The file that RDMA_TRANSPORT_SECRET_FILE names is valid. Its contents are not shown."""
    path = context.given.value("SECRET_FILE")
    if not path:
        why = "tasks accept any client that reaches their ports; a secret authenticates peers"
        return Result("secret", SKIP, "RDMA_TRANSPORT_SECRET_FILE is not set", why)
    try:
        count, warning = _native.read_secrets(path)
    except ValueError as error:
        why = "a server with protocol='rdma' does not start with this file"
        return Result("secret", FAIL, str(error), why, _file_fixes(path, str(error)))
    if warning:
        why = "any user who can read the file can join the job"
        return Result("secret", WARN, warning, why, _file_fixes(path, warning))
    found = f"{path}: signs with the first line" + (f", accepts {count}" if count > 1 else "")
    return Result("secret", PASS, found)


def asking(service: str) -> _native.AskingBootstrap:
    """Return the client side of a bootstrap with this environment's secret."""
    return _native.AskingBootstrap(service, read().value("SECRET_FILE"))


def answering(service: str) -> _native.AnsweringBootstrap:
    """Return the server side of a bootstrap with this environment's secret."""
    return _native.AnsweringBootstrap(service, read().value("SECRET_FILE"))


CHECKS = (check_secret,)
