"""Print requirements of pyproject.toml, one a line.

usage: requirements.py [GROUP]    (without a group: those to build, run, test and lint)
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
if len(sys.argv) > 1:
    groups = [project["dependency-groups"][sys.argv[1]]]
else:
    groups = [project["build-system"]["requires"], project["project"]["dependencies"]]
    groups += project["project"]["optional-dependencies"].values()
print("\n".join(requirement for group in groups for requirement in group))
