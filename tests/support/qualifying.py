"""The command `rdma-transport qualify` on two hosts, or as two processes of one."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.support.ports import free_port
from tests.support.command import ROOT, clean_environment, valid, words
from tests.support.deadlines import patient

FEW = ["--seconds", "2", "--largest", "2MiB", "--memory", "80MiB"]


def start(rank: int, place: str, *more: str, settings: Mapping[str, str]) -> subprocess.Popen[str]:
    host, _, port = place.rpartition(":")
    job = ["--node-rank", rank, "--master-addr", host, "--master-port", port]
    return subprocess.Popen(
        words("qualify", *job, *more),
        cwd=ROOT,
        env=clean_environment(settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(started: Sequence[subprocess.Popen[str]], seconds: float) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each."""
    try:
        texts = [each.communicate(timeout=patient(seconds)) for each in started]
    finally:
        for each in started:
            each.kill()
            each.wait()
    return [(each.returncode, *text) for each, text in zip(started, texts, strict=True)]


def qualified(
    *more: str,
    settings: Sequence[Mapping[str, str]] | Mapping[str, str],
    seconds: float = 80,
    host: str = "127.0.0.1",
    places: Sequence[Callable[[Callable[[], Any]], Any]] = (lambda call: call(),) * 2,
) -> tuple[int, dict[str, dict[str, Any]], dict[str, Any]]:
    """Run it with FEW on both; return the exit code, the claims by name, and the document.

    `places` call a function on each host.
    """
    each_settings = [settings] * 2 if isinstance(settings, Mapping) else settings
    place = f"{host}:{free_port()}"
    started = [
        places[rank](
            lambda rank=rank: start(
                rank,
                place,
                *FEW,
                *more,
                *(["--json"] if rank == 0 else []),
                settings=each_settings[rank],
            )
        )
        for rank in range(2)
    ]
    (code, output, errors), (other_code, _, other_errors) = ended(started, seconds)
    assert output, errors + other_errors
    document = valid(output, "qualify")
    assert document["exit_code"] == code == other_code, errors + other_errors
    claims = {claim["name"]: claim for claim in document["claims"]}
    for claim in claims.values():
        if claim["status"] in ("WARN", "FAIL"):
            assert claim["why"], claim
            assert claim["fix"], claim
    return code, claims, document
