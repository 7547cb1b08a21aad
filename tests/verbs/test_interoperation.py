"""One-sided operations between the project and pyverbs, in both directions, between two hosts."""

import pytest

from tests.verbs.conftest import Pair
from tools.guest.guest import PYTHON
from tools.guest.image import REPOSITORY

PEER = REPOSITORY / "tests" / "verbs" / "programs" / "pyverbs_peer.py"


@pytest.mark.timeout(180, func_only=True)
def test_pyverbs_reads_and_writes_our_memory_and_we_its(guests: Pair) -> None:
    ours, theirs = guests
    folder = ours.share / "interoperation"
    folder.mkdir(exist_ok=True)
    peer = theirs.start(["/usr/bin/python3", PEER, folder, theirs.address])
    side = ours.start([PYTHON, "-m", "tests.verbs.programs.fabric_side", folder])
    assert '"exchanged": true' in peer.wait(120).check().stdout
    assert "10.7.0.1 -> 10.7.0.2 exchanged" in side.wait(60).check().stdout
