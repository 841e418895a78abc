"""What the site shows beside the pages of docs/: files of the repository that those pages link to.

MkDocs knows only files below docs/. A page there links to `../CONTRIBUTING.md` or `../examples/ci/gitlab-ci.yml` as
readers of the repository expect. The functions below are hooks of MkDocs: they add such files to the site under
`repository/` and lead the links there. A link to a folder leads to its README.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)")
PREFIX = "repository/"


def on_files(files: Files, config: Any) -> Files:
    """Add what the pages link to outside docs/, and what those pages link to in turn."""
    waiting = [file.src_uri for file in files.documentation_pages()]
    added: set[str] = set()
    while waiting:
        page = waiting.pop()
        for path in sorted({_linked_path(page, link) for link in LINK.findall(_read(page))} - added):
            if path.startswith("docs/") or not (ROOT / path).is_file():
                continue
            added.add(path)
            files.append(File.generated(config, PREFIX + path, content=(ROOT / path).read_bytes()))
            waiting += [PREFIX + path] if path.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page with its links as they are on the site."""
    here = page.file.src_uri

    def lead(found: re.Match[str]) -> str:
        return posixpath.relpath(_site_path(_linked_path(here, found[1])), posixpath.dirname(here) or ".")

    return LINK.sub(lead, markdown)


def _read(page: str) -> str:
    return (ROOT / _repository_path(page)).read_text(encoding="utf-8")


def _repository_path(page: str) -> str:
    """Where a page of the site lies in the repository."""
    return page.removeprefix(PREFIX) if page.startswith(PREFIX) else f"docs/{page}"


def _linked_path(page: str, link: str) -> str:
    """The file of the repository that a link of a page leads to."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(_repository_path(page)), link))
    return f"{path}/README.md" if (ROOT / path / "README.md").is_file() else path


def _site_path(path: str) -> str:
    """Where a file of the repository lies on the site, from its root."""
    return path.removeprefix("docs/") if path.startswith("docs/") else PREFIX + path
