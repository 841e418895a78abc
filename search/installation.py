"""How this bitfront was installed, so that messages can say how to add an extra or how to upgrade.

No package index has bitfront: it is installed from a folder with its source, from a wheel or from a repository.
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
    distribution = _distribution()
    if distribution is None:  # run from its source without being installed
        return f"pip install {shlex.quote(f'{_ROOT}[{extra}]')}"
    url, editable = _origin(distribution)
    path = _local_path(url)
    if path is not None and path.exists():
        return f"pip install {'-e ' if editable else ''}{shlex.quote(f'{path}[{extra}]')}"
    if url and path is None:
        return f"pip install {shlex.quote(f'bitfront[{extra}] @ {url}')}"
    return f"pip install {' '.join(map(shlex.quote, _packages(distribution, extra)))}"


def upgrade_advice() -> str:
    """Sentences that say how to upgrade this installation, with a command to copy.

    They differ with the origin: a folder with the source, a repository or a wheel. The advice leaves extras out,
    because what they installed stays.
    """
    distribution = _distribution()
    url, editable = _origin(distribution) if distribution is not None else (_ROOT.as_uri(), False)
    path = _local_path(url)
    if path is not None and path.is_dir():
        shown = shlex.quote(str(path))
        how = f"run `git -C {shown} pull`" if (path / ".git").exists() else f"put the newer source into {shown}"
        return f"To upgrade bitfront, {how}, then run `pip install {'-e ' if editable else ''}{shown}`."
    if url and path is None:
        newest = re.sub("@[0-9a-f]+$", "", url)
        return f"To upgrade bitfront, run `pip install --upgrade {shlex.quote(f'bitfront @ {newest}')}`."
    return (
        "To upgrade bitfront, run `make wheel` in a folder with its newer source, then `pip install` with the wheel "
        "that it writes."
    )


def _local_path(url: str) -> Path | None:
    """The folder or file that a URL names on this machine; None for other URLs."""
    return Path(url2pathname(urlsplit(url).path)) if url.startswith("file:") else None


def _distribution() -> metadata.Distribution | None:
    try:
        return metadata.distribution("bitfront")
    except metadata.PackageNotFoundError:
        return None


def _origin(distribution: metadata.Distribution) -> tuple[str, bool]:
    """Where pip took a distribution from, and whether it is editable; an empty text where pip did not note it."""
    text = distribution.read_text("direct_url.json")
    if text is None:
        return "", False
    facts = json.loads(text)
    vcs = facts.get("vcs_info", {})
    url = f"{vcs['vcs']}+{facts['url']}@{vcs['commit_id']}" if vcs else facts["url"]
    return url, bool(facts.get("dir_info", {}).get("editable"))


def _packages(distribution: metadata.Distribution, extra: str) -> list[str]:
    """The packages of an extra, with their versions."""
    rows = [row.partition(";") for row in distribution.requires or ()]
    marked = re.compile(rf"""extra\s*==\s*['"]{re.escape(extra)}['"]""")
    return [name.strip() for name, _, condition in rows if marked.search(condition)]
