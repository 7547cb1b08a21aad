"""`pip install .` names what the host lacks in one sentence, before anything is downloaded."""

from importlib import metadata
from pathlib import Path

import pytest
from tensorflow import __version__ as tensorflow_version

from tools import build_backend as backend


def test_a_missing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(SystemExit) as ended:
        backend.get_requires_for_build_wheel()
    assert str(ended.value).startswith(
        "There is no C compiler (cc, gcc, clang). On Debian: apt-get install g++ "
    )
    (tmp_path / "cc").write_text("#!/bin/sh\n")
    (tmp_path / "cc").chmod(0o755)
    with pytest.raises(SystemExit, match=r"There is no C\+\+ compiler \(c\+\+, g\+\+"):
        backend.build_wheel(str(tmp_path))


def test_a_missing_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "HEADERS", ("cstdint", "no/such/header.h"))
    with pytest.raises(SystemExit, match="The header no/such/header"):
        backend.get_requires_for_build_editable()


def test_a_build_needs_a_tensorflow_and_the_wheel_offers_that_one() -> None:
    assert "tensorflow>=2.18,<2.22" in backend.get_requires_for_build_wheel()
    minor = ".".join(tensorflow_version.split(".")[:2])
    installed = metadata.requires("rdma_transport") or []
    assert [each for each in installed if each.startswith("tensorflow")] == [
        f"{name}=={minor}.*; extra == '{name}'".replace("'", '"')
        for name in ("tensorflow", "tensorflow-cpu")
    ]


def test_a_source_distribution_offers_those_that_a_wheel_can_be_built_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    extras = backend.dynamic_metadata({}, {})["optional-dependencies"]
    assert extras["tensorflow-cpu"] == ["tensorflow-cpu>=2.18,<2.22"]
