"""Print requirements of pyproject.toml, one a line.

usage: requirements.py GROUP...

A GROUP is one of the dependency groups, or `package`: what it takes to build and run the package,
`plots`: its extra, or `lowest`: the lowest versions that it runs with.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
groups = project["dependency-groups"] | {
    "package": project["build-system"]["requires"]
    + project["project"]["dependencies"]
    + project["dependency-groups"]["tensorflow"],
    "lowest": [each.replace(">=", "==") for each in project["project"]["dependencies"]],
    "plots": project["project"]["optional-dependencies"]["plots"],
}
print("\n".join(requirement for name in sys.argv[1:] for requirement in groups[name]))
