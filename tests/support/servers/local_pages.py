"""Pages of servers on this machine, whatever proxy its environment names."""

from __future__ import annotations

from urllib.request import ProxyHandler, build_opener

_OPENER = build_opener(ProxyHandler({}))


def read_page(url: str, timeout_s: float = 60) -> bytes:
    """The content of a page; raises OSError, also for an answer that is no success."""
    with _OPENER.open(url, timeout=timeout_s) as answer:
        content: bytes = answer.read()
        return content
