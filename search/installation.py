"""How this bitfront was installed, so that a message can say what installs the rest.

No package index has bitfront: it comes from a folder with its source or from a wheel.
"""

from __future__ import annotations

import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

_ROOT = Path(__file__).resolve().parent.parent


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation: `pip install -e '/home/me/bitfront[cpu]'`.

    Where neither the source nor the wheel that it came from is there any more, the command names the packages of the
    extra themselves.

    Args:
        extra: of pyproject.toml: `cpu`, `gpu`, `tensorrt`, `dashboard`, ….
    """
    found = _distribution()
    if found is None:  # run from its source without being installed
        return f"pip install {shlex.quote(f'{_ROOT}[{extra}]')}"
    url, editable = _origin(found)
    path = Path(url2pathname(urlsplit(url).path)) if url.startswith("file:") else None
    if path is not None and path.exists():
        return f"pip install {'-e ' if editable else ''}{shlex.quote(f'{path}[{extra}]')}"
    if url and path is None:
        return f"pip install {shlex.quote(f'bitfront[{extra}] @ {url}')}"
    return f"pip install {' '.join(map(shlex.quote, _packages(found, extra)))}"


def _distribution() -> metadata.Distribution | None:
    try:
        return metadata.distribution("bitfront")
    except metadata.PackageNotFoundError:
        return None


def _origin(found: metadata.Distribution) -> tuple[str, bool]:
    """Where pip took it from, and whether it is editable; an empty text where pip did not write that down."""
    text = found.read_text("direct_url.json")
    if text is None:
        return "", False
    facts = json.loads(text)
    vcs = facts.get("vcs_info", {})
    url = f"{vcs['vcs']}+{facts['url']}@{vcs['commit_id']}" if vcs else facts["url"]
    return url, bool(facts.get("dir_info", {}).get("editable"))


def _packages(found: metadata.Distribution, extra: str) -> list[str]:
    """What an extra consists of, with versions."""
    rows = [row.partition(";") for row in found.requires or ()]
    marked = re.compile(rf"""extra\s*==\s*['"]{re.escape(extra)}['"]""")
    return [name.strip() for name, _, condition in rows if marked.search(condition)]
