"""`import tensorflow` works whatever is wrong with the plugin, and one line says what."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

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
        timeout=80,
        check=False,
    )


def lines_of_ours(result: subprocess.CompletedProcess) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("rdma_transport:")]


@pytest.mark.parametrize("plugin", ["broken", "missing"])
def test_a_plugin_that_cannot_be_loaded(tmp_path: Path, plugin: str) -> None:
    """A second copy of the guard, beside a plugin that cannot be loaded."""
    (tmp_path / SHIM).parent.mkdir()
    (tmp_path / PLUGIN).parent.mkdir(parents=True)
    shutil.copy(SITE / SHIM, tmp_path / SHIM)
    if plugin == "broken":
        (tmp_path / PLUGIN).write_text("this is no library")
    result = python(
        "import tensorflow as tf; print(tf.constant(1).numpy())",
        {"TF_PLUGGABLE_DEVICE_LIBRARY_PATH": str(tmp_path / SHIM)},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "1"
    (line,) = lines_of_ours(result)
    assert "pip install" in line


def test_another_version_of_tensorflow(tmp_path: Path) -> None:
    source = tmp_path / "version.c"
    source.write_text('const char* TF_Version(void) { return "2.99.0"; }')
    library = tmp_path / "version.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
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


def test_the_package_needs_no_tensorflow_to_be_imported() -> None:
    result = python(
        "import sys, rdma_transport\n"
        "assert 'tensorflow' not in sys.modules\n"
        "names = [s.name for s in rdma_transport.settings()]\n"
        "assert 'RDMA_TRANSPORT_FABRIC' in names\n"
        "assert rdma_transport.stats()['loaded'] is False\n"
    )
    assert result.returncode == 0, result.stderr
