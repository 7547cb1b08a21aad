"""A hook of mkdocs: adds pages from the top of the repository, and corrects their links.

The files stay where people and other programs look for them. Their links name paths from the top,
such as `docs/operations.md#settings`; on the site all pages are in one folder.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
# The address of [text](address), up to its anchor; a reference to another host has a colon.
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    top = Path(config.config_file_path).parent
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(top / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links relative to the site's folder."""
    folder = "" if page.file.src_uri in PAGES.values() else "docs/"

    def on_site(link: re.Match[str]) -> str:
        path = (folder + link[1]).replace("docs/../", "")
        return PAGES.get(path, path.removeprefix("docs/"))

    return LINK.sub(on_site, markdown)
