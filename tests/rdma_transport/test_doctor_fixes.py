"""What the doctor prints as a fix: a shell runs it, and the problem is gone."""

import json
import subprocess
from pathlib import Path

import pytest

from rdma_transport.doctor.context import Context
from rdma_transport.doctor.result import FAIL, PASS, WARN
from rdma_transport.doctor.secret import check_secret
from tests.support.command import NO_LIBRARIES, clean_environment, words
from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(90)
SECRET = "0123456789abcdef" * 4 + "\n"


def shell(script: str, settings: dict[str, str] | None = None) -> str:
    """What a shell prints; the fixes need no more than it and the usual programs."""
    ran = subprocess.run(
        ["bash", "-c", script],
        env=clean_environment(settings),
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    assert ran.stderr == ""
    return ran.stdout


@pytest.mark.parametrize(
    ("text", "mode", "status"),
    [
        (None, 0, FAIL),
        ("", 0o600, FAIL),
        ("short", 0o600, FAIL),
        (SECRET, 0o644, FAIL),
        (SECRET, 0o620, FAIL),
        (SECRET, 0o640, WARN),
    ],
)
def test_a_secret_is_put_right_and_a_good_one_is_kept(
    text: str | None, mode: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a secret"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    monkeypatch.setenv("RDMA_TRANSPORT_SECRET_FILE", str(path))
    found = check_secret(Context())
    assert found.status == status
    shell(found.fix["shell"])
    after = check_secret(Context())
    assert (after.status, path.stat().st_mode & 0o777) == (PASS, 0o600), after
    if text == SECRET:
        assert path.read_text() == SECRET


def test_faults_of_limits_and_of_the_environment_are_put_right(tmp_path: Path) -> None:
    settings = NO_LIBRARIES | {
        "RDMA_TRANSPORT_SPIN": "5",
        "RDMA_TRANSPORT_DISABLE": "1",
        "RDMA_TRANSPORT_ARENA_SIZE": "100TiB",
    }
    faulty = "ulimit -Sn 300; ulimit -Sf 100000"
    doctor = " ".join([*words("doctor", "--quick", "--json")])
    before = json.loads(shell(f"{faulty}; {doctor}", settings))["checks"]
    bad = {one["name"]: one["fix"]["shell"] for one in before if one["status"] in (FAIL, WARN)}
    assert {"settings", "plugin", "open_files", "file_size", "memory"} <= set(bad)
    lines = "\n".join([faulty, *bad.values(), doctor])
    after = json.loads(shell(lines, settings))["checks"]
    assert [one for one in after if one["name"] in bad and one["status"] != PASS] == []


def test_a_misspelt_setting_is_removed() -> None:
    settings = NO_LIBRARIES | {"RDMA_TRANSPORT_SPIM": "5us", "RDMA_TRANSPORT_FABRICK": "shm"}
    doctor = " ".join([*words("doctor", "--quick", "--json")])
    (found,) = [
        one for one in json.loads(shell(doctor, settings))["checks"] if one["name"] == "settings"
    ]
    assert found["status"] == WARN
    assert (
        shell(f"{found['fix']['shell']}\nenv | grep -c 'SPIM\\|FABRICK' || true", settings) == "0\n"
    )
