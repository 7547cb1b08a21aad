"""The processes that benchmarks and tests talk to."""

from pathlib import Path

import pytest

from bench.support.child import Child

pytestmark = pytest.mark.timeout(60)


def test_answers_that_arrive_together_are_read_one_by_one(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "for line in open(0):\n    print('1\\n2\\n3', flush=True)\n    if 'end' in line: break\n"
    )
    child = Child("child", [str(program)])
    try:
        child.say("go")
        assert [child.read(10) for _ in range(3)] == [1, 2, 3]
        child.say("end")
        assert [child.read(10) for _ in range(3)] == [1, 2, 3]
        with pytest.raises(EOFError, match="child ended"):
            child.read(10)
    finally:
        child.end()
