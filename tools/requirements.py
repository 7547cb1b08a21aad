"""Print every requirement of pyproject.toml, one a line: build, run, test, lint."""

import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
groups = [project["build-system"]["requires"], project["project"]["dependencies"]]
groups += project["project"]["optional-dependencies"].values()
print("\n".join(requirement for group in groups for requirement in group))
