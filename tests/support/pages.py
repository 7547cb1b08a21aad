"""The pages of the documentation, and the shell commands that they show."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md"),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
)
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LANGUAGES = ("sh", "bash", "python", "text", "json", "yaml", "dockerfile", "mermaid")
"""Of these, `sh` has commands to type, and `bash` a script."""

# What begins a command in running text, if arguments follow.
PROGRAMS = (
    *("rdma-transport", "python", ".venv/bin/python", "build/", "make", "pip", "apt-get", "dnf"),
    *("cmake", "ctest", "srun", "scancel", "docker", "kubectl", "systemctl", "ulimit", "openssl"),
    *("fi_info", "fi_pingpong", "ib_write_bw", "ibv_devinfo", "rdma link", "modprobe", "ip link"),
    *("firewall-cmd", "dcb", "(umask", "tools/", "tensorboard"),
)


@dataclass(frozen=True)
class Command:
    """One command line as a page shows it, without its comment.

    It begins with the variables that lines before it in the same block exported.
    """

    page: str
    text: str


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str, *languages: str) -> list[str]:
    """What is in the fenced blocks of these languages."""
    return [body for _, language, body in FENCE.findall(text_of(page)) if language in languages]


def is_form(text: str) -> bool:
    """Whether it stands for many command lines: `status [PID...]`, `plan GRAPH --cluster …`."""
    return bool(re.search(r"…|\.\.\.|\[[A-Z]", text))


def is_name(text: str) -> bool:
    """Whether it names a command instead of showing one: `rdma-transport run`, `ulimit -l`."""
    return bool(
        re.fullmatch(r"rdma-transport [a-z]+( --(peer|listen))?|ulimit -\w|rdma link", text)
    )


def in_block(page: str, block: str) -> list[Command]:
    commands: list[Command] = []
    variables = ""
    for line in re.sub(r"\\\n *", "", block).splitlines():
        text = re.sub(r"(^|\s+)# .*", "", line).strip()
        if exported := re.fullmatch(r"export (\w+=\S+)", text):
            variables += f"{exported[1]} "
        elif text:
            commands.append(Command(page, variables + text))
    return commands


def in_text(page: str) -> list[Command]:
    spans = re.findall(r"`([^`]+)`", FENCE.sub("", text_of(page)))
    texts = [" ".join(span.split()) for span in spans]
    return [
        Command(page, text)
        for text in texts
        if text.startswith(PROGRAMS) and " " in text and not is_form(text) and not is_name(text)
    ]


def commands() -> list[Command]:
    """All of all pages, each once."""
    found: dict[str, Command] = {}
    for page in PAGES:
        for command in (
            *(each for block in blocks(page, "sh") for each in in_block(page, block)),
            *in_text(page),
        ):
            found.setdefault(command.text, command)
    return list(found.values())
