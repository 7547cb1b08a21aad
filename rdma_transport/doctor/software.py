"""TensorFlow, the plugin, the settings: whether a server with protocol='rdma' can begin here."""

import importlib.metadata
import importlib.util
import json
import os
import site
import subprocess
import sys
from pathlib import Path

from rdma_transport import _native
from rdma_transport.doctor.case import Case
from rdma_transport.doctor.result import FAIL, PASS, SKIP, WARN, Result

DISTRIBUTIONS = (
    *("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu", "intel-tensorflow"),
    *("tensorflow-rocm", "tensorflow-aarch64"),
)
BUILT_FOR = _native.TENSORFLOW_VERSION
STEM = "librdma_transport"
START_SECONDS = 120.0
_FIRST_LINES = 3

# As TensorFlow loads it: by itself, while it is imported.
_START = """
import json, os, sys, time
began = time.perf_counter()
import tensorflow as tf
seconds = time.perf_counter() - began
try:
    server = tf.distribute.Server({"doctor": ["127.0.0.1:0"]}, "doctor", 0, protocol="rdma")
    answer = {"target": server.target}
except Exception as error:
    answer = {"error": getattr(error, "message", None) or str(error)}
answer |= {"version": tf.__version__, "seconds": seconds}
print("\\n" + json.dumps(answer), flush=True)
os._exit(0)
"""


def installed_tensorflow() -> tuple[str, str] | None:
    """Return name and version of the installed distribution, without importing it."""
    for name in DISTRIBUTIONS:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def check_tensorflow(case: Case) -> Result:
    """The version is the one that the plugin's binary interface is of."""
    minor = ".".join(BUILT_FOR.split(".")[:2])
    mend = _install(f'"tensorflow=={minor}.*"')
    found = installed_tensorflow()
    if found is None or importlib.util.find_spec("tensorflow") is None:
        return Result("tensorflow", FAIL, "it is not installed", f"{sys.executable} has none", mend)
    name, version = found
    text = f"{name} {version}"
    if version.split(".")[:2] != minor.split("."):
        why = f"the plugin was built for {BUILT_FOR}: C++ classes change with the minor version"
        return Result("tensorflow", FAIL, text, why, mend)
    if name != "tensorflow":
        why = f"the plugin was built for, and tested with, the wheel 'tensorflow' {BUILT_FOR}"
        return Result("tensorflow", WARN, text, why, mend)
    return Result("tensorflow", PASS, f"{text}; the plugin is for {minor}")


def _install(package: str) -> dict[str, str]:
    return {
        "shell": f"{sys.executable} -m pip install {package}",
        "docker": f"RUN pip install {package}",
    }


def plugin_file() -> Path | None:
    """Return the file that TensorFlow loads, where TensorFlow looks for it."""
    places = [path for path in sys.path if "site-packages" in path]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    for place in places:
        for file in sorted(Path(place, "tensorflow-plugins").glob(f"{STEM}_shim*.so")):
            return file
    return None


def check_plugin(case: Case) -> Result:
    """The plugin's files are where TensorFlow and the guard look for them."""
    again = _install("--force-reinstall --no-deps rdma_transport")
    if os.environ.get("RDMA_TRANSPORT_DISABLE") in ("1", "true"):
        why = "TensorFlow does not load the plugin, and knows no protocol 'rdma'"
        off = {
            "shell": "unset RDMA_TRANSPORT_DISABLE",
            "systemd": "take Environment=RDMA_TRANSPORT_DISABLE=1 out of the unit",
            "docker": "take -e RDMA_TRANSPORT_DISABLE=1 out of docker run",
            "kubernetes": "take RDMA_TRANSPORT_DISABLE out of the container's env",
            "slurm": "unset RDMA_TRANSPORT_DISABLE before sbatch or srun",
        }
        return Result("plugin", FAIL, "RDMA_TRANSPORT_DISABLE is set", why, off)
    guard = plugin_file()
    if guard is None:
        why = "TensorFlow loads what lies in site-packages/tensorflow-plugins: not there"
        return Result("plugin", FAIL, "not installed for this Python", why, again)
    library = guard.parent.parent / "rdma_transport" / "lib" / f"{STEM}_tensorflow.so"
    if not library.exists():
        return Result(
            "plugin", FAIL, f"{library} is missing", "the installation is incomplete", again
        )
    return Result("plugin", PASS, f"{guard}, for TensorFlow {BUILT_FOR}")


def check_settings(case: Case) -> Result:
    """Every RDMA_TRANSPORT_* variable is a setting with a value that makes sense."""
    environment = case.given
    mend = {"shell": "rdma-transport config    # every setting, its type and its default"}
    error = environment.error or case.malformed_devices
    if error:
        why = "a server with protocol='rdma' does not start, or not with verbs, with this value"
        why += "; what follows is about the default" if environment.error else ""
        return Result("settings", FAIL, error, why, mend)
    if environment.warnings:
        why = "such a variable has no effect"
        return Result("settings", WARN, "; ".join(environment.warnings), why, mend)
    given = [f"{s.name}={s.value}" for s in environment.settings if s.source != "default"]
    return Result("settings", PASS, ", ".join(given) or "all are at their defaults")


def check_autoload(case: Case) -> Result:
    """TensorFlow, in a process of its own, really makes a server with protocol='rdma'."""
    if case.quick:
        return Result("autoload", SKIP, "not tried: --quick starts no TensorFlow")
    if importlib.util.find_spec("tensorflow") is None:
        return Result("autoload", SKIP, "not tried: there is no TensorFlow")
    try:
        ran = subprocess.run(
            [sys.executable, "-c", _START],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=START_SECONDS,
        )
    except subprocess.TimeoutExpired:
        why = "importing TensorFlow and making a server took too long"
        mend = {"shell": f"{sys.executable} -X importtime -c 'import tensorflow'"}
        return Result("autoload", FAIL, f"no answer within {START_SECONDS:.0f} s", why, mend)
    return _judge(ran)


def _judge(ran: "subprocess.CompletedProcess[str]") -> Result:
    said = [line for line in ran.stderr.splitlines() if line.startswith("rdma_transport:")]
    lines = ran.stdout.strip().splitlines()
    answer = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None
    again = _install("--force-reinstall --no-deps rdma_transport")
    if answer is None:
        last = " | ".join(ran.stderr.strip().splitlines()[-_FIRST_LINES:])
        why = f"python ended with code {ran.returncode} while TensorFlow was imported"
        mend = {"shell": f"{sys.executable} -c 'import tensorflow'"}
        return Result("autoload", FAIL, last or "it said nothing", why, mend)
    if said:
        why = "TensorFlow was imported, and the guard of the plugin left it out"
        return Result("autoload", FAIL, said[0], why, again)
    if "error" in answer:
        why = f"TensorFlow {answer['version']} could not make a server with protocol='rdma'"
        mend = again if "server factory" in answer["error"] else {}
        return Result("autoload", FAIL, answer["error"], why, mend)
    return Result(
        "autoload",
        PASS,
        f"TensorFlow {answer['version']}, imported in {answer['seconds']:.1f} s, "
        "made a server with protocol='rdma'",
    )


CHECKS = (check_tensorflow, check_plugin, check_settings, check_autoload)
