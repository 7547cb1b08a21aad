"""`import tensorflow` works whatever is wrong with the plugin, and one line says what."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(90)
SITE = Path(sysconfig.get_paths()["platlib"])
SHIM = "tensorflow-plugins/librdma_transport_shim.so"
PLUGIN = "rdma_transport/lib/librdma_transport_tensorflow.so"


def python(code: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        # As users import TensorFlow, with Keras.
        env=os.environ | {"TF_USE_LEGACY_KERAS": "0"} | (environment or {}),
        capture_output=True,
        text=True,
        timeout=patient(80),
        check=False,
    )


def lines_of_ours(result: subprocess.CompletedProcess) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("rdma_transport:")]


def copied(directory: Path) -> Path:
    """A second copy of the guard, beside copies of the libraries that it loads."""
    (directory / SHIM).parent.mkdir()
    shutil.copy(SITE / SHIM, directory / SHIM)
    shutil.copytree((SITE / PLUGIN).parent, (directory / PLUGIN).parent)
    return (directory / PLUGIN).parent


def test_a_plugin_that_cannot_be_loaded(tmp_path: Path) -> None:
    cut(0.3)(copied(tmp_path) / Path(PLUGIN).name)
    result = python(
        "import tensorflow as tf; print(tf.constant(1).numpy())",
        {"TF_PLUGGABLE_DEVICE_LIBRARY_PATH": str(tmp_path / SHIM)},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "1"
    (line,) = lines_of_ours(result)
    assert "pip install" in line


def version_library(directory: Path, version: str) -> Path:
    """Of TensorFlow no more than what says its version."""
    source, library = directory / "version.c", directory / "version.so"
    source.write_text(f'const char* TF_Version(void) {{ return "{version}"; }}')
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def cut(at: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(path.stat().st_size * at))


def overwrite(at: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(int(path.stat().st_size * at))
            file.write(bytes(min(8192, path.stat().st_size - file.tell())))

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte short": (lambda path: os.truncate(path, path.stat().st_size - 1), "instead of"),
    "half": (cut(0.5), "instead of"),
    "empty": (cut(0), "has 0 bytes instead of"),
    "a longer one": (lambda path: os.truncate(path, path.stat().st_size + 1), "instead of"),
    "zeros first": (overwrite(0), "was changed after it was installed"),
    "zeros within": (overwrite(0.4), "was changed after it was installed"),
    "missing": (Path.unlink, "cannot be read"),
    "a directory": (lambda path: (path.unlink(), path.mkdir()), "cannot be read"),
}


@pytest.mark.parametrize(
    ("name", "damage"),
    [("core", damage) for damage in DAMAGES] + [("analyzer", "half"), ("tensorflow", "half")],
)
def test_a_damaged_library_is_not_loaded(tmp_path: Path, name: str, damage: str) -> None:
    libraries = copied(tmp_path)
    change, sentence = DAMAGES[damage]
    change(libraries / f"librdma_transport_{name}.so")
    assert_refused(tmp_path, f"librdma_transport_{name}.so", sentence)


@pytest.mark.parametrize("damage", ["missing", "empty", "half", "zeros first"])
def test_without_the_list_of_libraries_none_is_loaded(tmp_path: Path, damage: str) -> None:
    record = copied(tmp_path) / "libraries.crc32"
    DAMAGES[damage][0](record)
    assert_refused(tmp_path, "libraries.crc32", "")


def assert_refused(directory: Path, name: str, sentence: str) -> None:
    """Loading the guard into a process that claims to be TensorFlow is one line, and no crash."""
    version = version_library(directory, "2.21.0")
    code = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)\n"
        "ctypes.CDLL(sys.argv[2]); print('lives')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, version, directory / SHIM],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "lives\n"), result
    (line,) = lines_of_ours(result)
    assert name in line
    assert sentence in line
    assert line.endswith("full? pip install --force-reinstall --no-deps rdma_transport-*.whl")


def test_another_version_of_tensorflow(tmp_path: Path) -> None:
    library = version_library(tmp_path, "2.99.0")
    result = python(
        "import tensorflow as tf; print(tf.constant(1).numpy())", {"LD_PRELOAD": str(library)}
    )
    assert result.returncode == 0, result.stderr
    (line,) = lines_of_ours(result)
    assert "2.99.0" in line
    assert "pip install tensorflow==2.21" in line


def test_without_an_rdma_server_nothing_changes() -> None:
    """No thread, no memory, no line; the same allocator and the same devices."""
    result = python(
        "import os, tensorflow as tf, rdma_transport\n"
        "tf.distribute.Server.create_local_server()\n"
        "x = tf.random.uniform([1000, 1000]); tf.reduce_sum(x)\n"
        "tasks = os.listdir('/proc/self/task')\n"
        "names = [open(f'/proc/self/task/{task}/comm').read() for task in tasks]\n"
        "assert not [name for name in names if 'rdma' in name], names\n"
        "assert 'rdma_transport_arena' not in open('/proc/self/maps').read()\n"
        "stats = rdma_transport.stats()\n"
        "assert stats['loaded'] is False and stats['sent']['grpc']['tensors'] == 0\n"
        "print('same')\n"
    )
    assert result.stdout.strip() == "same", result.stderr
    assert lines_of_ours(result) == []
    assert "rdma:" not in result.stderr


def test_the_plugin_can_be_disabled() -> None:
    code = (
        "import tensorflow as tf\n"
        "try:\n  tf.distribute.Server({'a': ['localhost:0']}, protocol='rdma')\n"
        "except tf.errors.NotFoundError:\n  print('no such protocol')\n"
    )
    result = python(code, {"RDMA_TRANSPORT_DISABLE": "1"})
    assert "no such protocol" in result.stdout, result.stderr
    assert "not loaded: RDMA_TRANSPORT_DISABLE is set" in result.stderr


def test_the_package_needs_no_tensorflow_to_be_imported() -> None:
    result = python(
        "import sys, rdma_transport\n"
        "assert 'tensorflow' not in sys.modules\n"
        "names = [s.name for s in rdma_transport.settings()]\n"
        "assert 'RDMA_TRANSPORT_FABRIC' in names\n"
        "assert rdma_transport.stats()['loaded'] is False\n"
    )
    assert result.returncode == 0, result.stderr
