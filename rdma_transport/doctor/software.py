"""Checks of TensorFlow, the plugin and the settings: can a protocol='rdma' server start here?"""

import json
import os
import re
import site
import subprocess
import sys
from pathlib import Path

from rdma_transport import wheels
from rdma_transport.doctor.context import Context
from rdma_transport.doctor.fixes import install
from rdma_transport.doctor.keras import check_keras
from rdma_transport.doctor.result import FAIL, PASS, SKIP, WARN, Result

STEM = "librdma_transport"
START_SECONDS = 300.0  # a shared file system that many tasks read at once is slow
_FIRST_LINES = 3
_REINSTALL = install(f"--force-reinstall --no-deps {wheels.WHEEL}")

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


def check_tensorflow(context: Context) -> Result:
    """The version of TensorFlow matches the binary interface of the plugin."""
    found = wheels.installed()
    if not found:
        why = f"{sys.executable} finds none: NumPy needs none, a server with protocol='rdma' does"
        return Result("tensorflow", WARN, "not installed", why, install(wheels.requirement()))
    name, version = found[0]
    text = ", ".join(f"{name} {version}" for name, version in found)
    if not wheels.fits(version):
        why = f"the plugin was built for {wheels.BUILT_FOR}: the C++ ABI changes with the minor "
        why += "version, so there is no protocol 'rdma'"
        fix = install(wheels.requirement(name))
        return Result("tensorflow", FAIL, text, why, fix)
    if len(found) > 1:
        why = "they contain the same files, so it is unknown which of them runs"
        names = " ".join(name for name, _ in found)
        again = f"{sys.executable} -m pip uninstall -y {names} && "
        fix = install(wheels.requirement(name))
        return Result("tensorflow", WARN, text, why, fix | {"shell": again + fix["shell"]})
    return Result("tensorflow", PASS, f"{text}; the plugin is for {wheels.MINOR}")


def plugin_file() -> Path | None:
    """Return the file of the plugin that TensorFlow loads, if TensorFlow finds one."""
    places = [path for path in sys.path if "site-packages" in path]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    for place in places:
        for file in sorted(Path(place, "tensorflow-plugins").glob(f"{STEM}_shim*.so")):
            return file
    return None


def check_plugin(context: Context) -> Result:
    """The plugin's files are where TensorFlow and the version guard look for them."""
    if os.environ.get("RDMA_TRANSPORT_DISABLE") in ("1", "true"):
        why = "TensorFlow does not load the plugin, so there is no protocol 'rdma'"
        off = {
            "shell": "unset RDMA_TRANSPORT_DISABLE",
            "systemd": "remove Environment=RDMA_TRANSPORT_DISABLE=1 from the unit",
            "docker": "remove -e RDMA_TRANSPORT_DISABLE=1 from docker run",
            "kubernetes": "remove RDMA_TRANSPORT_DISABLE from the container's env",
            "slurm": "unset RDMA_TRANSPORT_DISABLE before sbatch or srun",
        }
        return Result("plugin", FAIL, "RDMA_TRANSPORT_DISABLE is set", why, off)
    guard = plugin_file()
    if guard is None:
        why = "site-packages/tensorflow-plugins, where TensorFlow looks for plugins, has none"
        return Result("plugin", FAIL, "not installed for this Python", why, _REINSTALL)
    library = guard.parent.parent / "rdma_transport" / "lib" / f"{STEM}_tensorflow.so"
    if not library.exists():
        return Result(
            "plugin", FAIL, f"{library} is missing", "the installation is incomplete", _REINSTALL
        )
    return Result("plugin", PASS, f"{guard}, for TensorFlow {wheels.BUILT_FOR}")


def check_settings(context: Context) -> Result:
    """Every RDMA_TRANSPORT_* variable names a setting and has a valid value."""
    environment = context.given
    error = environment.error or context.malformed_devices or context.malformed_libfabric
    named = " ".join(
        re.findall(r"RDMA_TRANSPORT_\w+(?=[:=]| is not)", error or " ".join(environment.warnings))
    )
    fix = {"shell": f"unset {named}    # `rdma-transport config` shows each setting, with its type"}
    if error:
        why = "with this value a server with protocol='rdma' does not start, or without this fabric"
        why += "; the other checks use the default" if environment.error else ""
        return Result("settings", FAIL, error, why, fix)
    if environment.warnings:
        why = "an unknown variable has no effect"
        return Result("settings", WARN, "; ".join(environment.warnings), why, fix)
    given = [f"{s.name}={s.value}" for s in environment.settings if s.source != "default"]
    return Result("settings", PASS, ", ".join(given) or "all settings have their defaults")


def check_autoload(context: Context) -> Result:
    """TensorFlow, in a separate process, can create a server with protocol='rdma'."""
    if context.quick:
        return Result("autoload", SKIP, "not tried: --quick does not start TensorFlow")
    if not wheels.installed():
        return Result("autoload", SKIP, "not tried: TensorFlow is not installed")
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
        why = "importing TensorFlow and creating a server took too long"
        fix = {"shell": f"{sys.executable} -X importtime -c 'import tensorflow'"}
        return Result("autoload", FAIL, f"no answer within {START_SECONDS:.0f} s", why, fix)
    return _judge(ran)


def _judge(ran: "subprocess.CompletedProcess[str]") -> Result:
    said = [line for line in ran.stderr.splitlines() if line.startswith("rdma_transport:")]
    lines = ran.stdout.strip().splitlines()
    answer = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None
    if answer is None:
        last = " | ".join(ran.stderr.strip().splitlines()[-_FIRST_LINES:])
        why = f"python exited with code {ran.returncode} during the import of TensorFlow"
        fix = {"shell": f"{sys.executable} -c 'import tensorflow'"}
        return Result("autoload", FAIL, last or "no output", why, fix)
    if said:
        why = "TensorFlow was imported, but the version guard did not load the plugin"
        other = wheels.installed() if "built for TensorFlow" in said[0] else []
        fix = install(wheels.requirement(other[0][0])) if other else _REINSTALL
        return Result("autoload", FAIL, said[0], why, fix)
    if "error" in answer:
        why = f"TensorFlow {answer['version']} could not create a server with protocol='rdma'"
        fix = _REINSTALL if "server factory" in answer["error"] else {}
        return Result("autoload", FAIL, answer["error"], why, fix)
    return Result(
        "autoload",
        PASS,
        f"TensorFlow {answer['version']}, imported in {answer['seconds']:.1f} s, "
        "created a server with protocol='rdma'",
    )


CHECKS = (check_tensorflow, check_keras, check_plugin, check_settings, check_autoload)
