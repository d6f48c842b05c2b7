"""Hooks of the documentation site: pages that show files of the repository's root, and links to files outside docs/."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

# File of the repository -> the page that shows it.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
SHOWN_BY = {page: file for file, page in PAGES.items()}

_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that show files of the root."""
    for file, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / file)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links are written for readers of the repository. Make them lead to pages, or to copies of other files."""
    here = page.file.src_uri
    if here == "index.md":
        page.meta["hide"] = ["navigation"]  # it is alone in its section: the page has the room
    folder = posixpath.dirname(SHOWN_BY.get(here, f"docs/{here}"))

    def to_page(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[0]))
        if (ROOT / target).is_dir():
            target += "/README.md"
        if not (ROOT / target).is_file():
            return link[0]  # mkdocs build --strict refuses it
        uri = PAGES.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else f"files/{target}")
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
        return posixpath.relpath(uri, posixpath.dirname(here) or ".")

    return _LINK.sub(to_page, markdown)
