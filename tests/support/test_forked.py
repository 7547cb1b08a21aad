"""A forked process is what a new one would be, where tests could tell the difference."""

import json
import os

import pytest

from bench.support.cluster import free_port
from tests.support import forked

pytestmark = pytest.mark.timeout(60)

IDENTITY = """
import ctypes, json, os, random, sys, numpy
import tensorflow as tf
server = tf.distribute.Server({"a": [sys.argv[1]]}, job_name="a", task_index=0, protocol="grpc")
session = tf.compat.v1.Session(server.target)
print(json.dumps({
    "own": [
        os.getpid(),
        session.list_devices()[0].incarnation,
        random.random(),
        numpy.random.random(),
        ctypes.addressof(ctypes.create_string_buffer(2**24)),
    ],
    "given": [os.environ.get("ONLY_HERE"), os.getcwd(), os.getpgid(0) == os.getpid(), __name__],
}), flush=True)
os._exit(0)
"""


def test_two_have_nothing_in_common_but_what_both_were_given() -> None:
    answers = []
    for value in "xy":
        ran = forked.run(
            ["-c", IDENTITY, f"127.0.0.1:{free_port()}"],
            os.environ | {"ONLY_HERE": value},
            directory="/",
            timeout=30,
        )
        answers.append(json.loads(ran.stdout))
        assert answers[-1]["given"] == [value, "/", True, "__main__"]
    for one, other in zip(answers[0]["own"], answers[1]["own"], strict=True):
        assert one != other
