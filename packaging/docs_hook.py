"""Hook of MkDocs: the documents link to each other as on a code host, and the site follows those links offline.

Documents outside docs/ (CHANGELOG.md, examples/README.md, …) become pages below `tree/`; any other file that a page
links to is copied there. Links that lead out of docs/ are rewritten to these copies. `make docs` builds the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
TREE = "tree"
"""Folder of the site with what stands outside docs/."""
TEXT = r"!?\[(?:`[^`]*`|\\.|[^\]\\`])*\]"
LINK = re.compile(rf"(?P<text>{TEXT})\((?P<target>[^)\s]+)\)")
LINK_OR_CODE = re.compile(rf"^```.*?^```|{LINK.pattern}|`[^`\n]*`", re.MULTILINE | re.DOTALL)
OUTSIDE = ("https://", "http://", "mailto:", "#")
PAGES = [
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("examples/README.md", "bench/README.md", "monitoring/README.md", "packaging/LICENSES.md"),
]


def on_files(files: Files, config: Any) -> Files:
    """Add the documents outside docs/, and the files that any page links to."""
    for path in PAGES:
        add(path, files, config)
    for file in list(files.documentation_pages()):
        for target in links_of(file.content_string):
            found = in_tree(file.src_uri, target)
            if found is not None and (ROOT / found).is_file():
                add(found, files, config)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return the page with each link as it is in the site."""

    def rewritten(match: re.Match[str]) -> str:
        target = match["target"] or "#"
        name, _, heading = target.partition("#")
        path = None if target.startswith(OUTSIDE) else in_tree(page.file.src_uri, name)
        if path is None:
            return match[0]
        found = posixpath.relpath(uri_of(path), posixpath.dirname(page.file.src_uri) or ".")
        return f"{match['text']}({found}{'#' if heading else ''}{heading})"

    return LINK_OR_CODE.sub(rewritten, markdown)


def add(path: str, files: Files, config: Any) -> None:
    """Make a file of the tree a file of the site."""
    if files.get_file_from_path(uri_of(path)) is None:
        files.append(File.generated(config, uri_of(path), abs_src_path=str(ROOT / path)))


def links_of(markdown: str) -> list[str]:
    """List the targets of links to other files, without their headings."""
    found = [match["target"].partition("#")[0] for match in LINK.finditer(markdown)]
    return [target for target in found if target and not target.startswith(OUTSIDE)]


def in_tree(uri: str, target: str) -> str | None:
    """Return the path from the root of the tree that a link of a page means; None if it stays inside docs/."""
    is_outside = uri.startswith(f"{TREE}/")
    home = uri.removeprefix(f"{TREE}/") if is_outside else f"docs/{uri}"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
    if (ROOT / path).is_dir() and (ROOT / path / "README.md").is_file():
        path = posixpath.join(path, "README.md")
    return path if is_outside or not path.startswith("docs/") else None


def uri_of(path: str) -> str:
    """Return the place in the site of a path of the tree."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{TREE}/{path}"
