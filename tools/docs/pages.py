"""A hook of mkdocs: adds pages from the top of the repository and one of the example scripts, and
corrects their links. Adds the programs that a browser runs.

The files stay where people and other programs look for them. Their links name paths from the top,
such as `docs/reference.md#settings`; on the site all pages are in one folder.
"""

import re
from pathlib import Path

from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
SCRIPTS = "scripts.md"
SHOWN = (
    "data_parallel/*.py",
    "horovod/*.py",
    "strategies/*.py",
    "sessions/*.py",
    "data_service.py",
    "all_reduce.py",
    "slurm/*.py",
)
PROGRAMS = ("mermaid.min.js", "iframe-worker.js")  # of scripts.sh, in build/scripts
INTRODUCTION = """# Scripts

The scripts of [Getting started](getting_started.md). Each is complete: copy it, or take it from the
folder `examples`.
"""
# The address of [text](address), up to its anchor; a reference to another host has a colon.
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    top = Path(config.config_file_path).parent
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(top / source)))
    files.append(File.generated(config, SCRIPTS, content=scripts(top / "examples")))
    for program in PROGRAMS:
        source = top / "build" / "scripts" / program
        files.append(File.generated(config, f"scripts/{program}", abs_src_path=str(source)))
    return files


def scripts(folder: Path) -> str:
    """Return the page of the scripts."""
    text = INTRODUCTION
    for path in (path for shown in SHOWN for path in sorted(folder.glob(shown))):
        name = str(path.relative_to(folder.parent))
        text += f"\n## {name}\n\n```python\n{path.read_text()}```\n"
    return text


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links relative to the site's folder."""
    if page.file.src_uri.startswith("architecture/"):
        return markdown  # links to other pages of the folder docs only
    folder = "" if page.file.src_uri in PAGES.values() else "docs/"

    def on_site(link: re.Match[str]) -> str:
        path = (folder + link[1]).replace("docs/../", "")
        if path.startswith("examples/"):
            return f"{SCRIPTS}#{slugify(path, '-')}"
        return PAGES.get(path, path.removeprefix("docs/"))

    return LINK.sub(on_site, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Load Mermaid in pages that have diagrams; the theme would take it from another host."""
    if '<pre class="mermaid">' not in html:
        return html
    top = "../" * page.file.src_uri.count("/")
    return f'{html}<script src="{top}scripts/mermaid.min.js"></script>'
