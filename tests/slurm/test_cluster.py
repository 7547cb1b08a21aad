"""The cluster itself: its nodes are hosts of their own, and reach each other by name."""

import pytest

from tests.slurm.cluster import COMPUTE, Slurm

pytestmark = pytest.mark.timeout(120, func_only=True)


def test_each_node_has_a_network_of_its_own(slurm: Slurm) -> None:
    script = 'echo "$(hostname) $(readlink /proc/self/ns/net)"; getent hosts n1 n2 n3 n4 >/dev/null'
    ran = slurm.run("srun", "--nodes=4", "sh", "-ec", script)
    assert ran.returncode == 0, ran.stderr
    found = dict(line.split() for line in ran.stdout.splitlines())
    assert sorted(found) == sorted(COMPUTE)
    assert len(set(found.values())) == len(COMPUTE)
