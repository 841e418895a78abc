"""Make the pictures of docs/pictures again: `python docs/development/pictures.py FOLDER`, from the repository's root.

Everything is real: the shipped example is searched in a terminal of 100 columns, and what it shows, its report, its
dashboard, a notebook and the documentation are photographed in a Chromium. See docs/development/pictures.md.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import hashlib
import io
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from tests.support.browser import Page


COLUMNS, TRIALS, PORT = 100, 24, 8711
LONGEST_WAIT_S = 120
# The command is shown as users type it, where it is on the path.
BITFRONT = ("bitfront",) if shutil.which("bitfront") else (sys.executable, "-m", "bitfront")
_REDRAWN = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")  # a live display takes back what it drew
_COUNT = re.compile(rf"(\d+) of {TRIALS} evaluations")
_TABLE = re.compile(r"^(?:\x1b\[[\d;]*m)*pick\b", re.MULTILINE)
_TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; padding: 20px; width: max-content; background: #fff }}
pre {{ margin: 0; padding: 16px 20px; border: 1px solid #d0d7de; border-radius: 8px; background: #fdfdfd;
      color: #1f2328; font: 15px/1.35 "DejaVu Sans Mono", monospace }}
</style><pre>{text}</pre>"""
NOTEBOOK = (
    "import bitfront as bf\n\nstudy = bf.load('exposures', storage='sqlite:///demo/bitfront.db')\nstudy",
    "study.best",
    "study.plot_front()",
)


def main() -> None:
    """Write the pictures that are asked for, or all."""
    pictures = {"terminal": terminal, "report": report, "dashboard": dashboard, "notebook": notebook, "site": site}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the search is kept; one that is there is not run again")
    parser.add_argument("--only", choices=pictures, help="this picture alone")
    parser.add_argument("--search", action="store_true", help="search and photograph nothing; needs no browser")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    search(asked.folder)
    if asked.search:
        return
    from tests.support.browser import run_browser

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, run_browser(Path(profile)) as page:
        for name, take in pictures.items():
            if asked.only in (None, name):
                take(page, asked.folder.resolve(), ROOT / "docs" / "pictures")
    for picture in (ROOT / "docs" / "pictures").glob("*.png"):
        _reduce_colours(picture)
    if asked.only is None:
        (ROOT / "docs/pictures/made_from.json").write_text(json.dumps(origin(), indent=1) + "\n", encoding="utf-8")


def origin() -> dict[str, str]:
    """What pictures are made from: the program's version, and a digest of the example. A test holds it against both."""
    from studies import __version__

    example = ROOT / "examples/exposures"
    inputs = b"".join((example / name).read_bytes() for name in ("exposures.onnx", "samples.py"))
    return {"version": __version__, "inputs": hashlib.sha256(inputs).hexdigest()}


def search(folder: Path) -> None:
    """Run the demo in a terminal; what it wrote there is kept in `terminal.raw`."""
    if (folder / "terminal.raw").exists():
        return
    words = [*BITFRONT, "demo", "--trials", str(TRIALS), "--out", "demo"]
    child, terminal_end = pty.fork()
    if child == 0:
        os.chdir(folder)
        sys.stdin.readline()  # until the terminal has its width
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        os.environ.update(TERM="xterm-256color", PYTHONPATH=paths)
        os.execvp(words[0], words)
    fcntl.ioctl(terminal_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    os.write(terminal_end, b"\n")
    written = b""
    while more := _read(terminal_end):
        written += more
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(written.decode())
    (folder / "terminal.raw").write_bytes(written)


def _read(terminal_end: int) -> bytes:
    try:
        return os.read(terminal_end, 1 << 16)
    except OSError:  # how Linux says that the other end is closed
        return b""


def _reduce_colours(picture: Path) -> None:
    """Keep 256 colours, which makes the file a third as large."""
    from PIL import Image

    with Image.open(picture) as image:
        if image.mode != "P":
            image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
                picture, optimize=True
            )


# -- pictures ----------------------------------------------------------------------------------------------------------


def terminal(page: Page, folder: Path, pictures: Path) -> None:
    """The progress in the middle of the search, and the table at its end; it may have ended by itself."""
    raw = (folder / "terminal.raw").read_bytes().decode().replace("\r\n", "\n")
    drawn = _REDRAWN.split(raw)
    counts = [int(found[1]) if (found := _COUNT.search(text)) else 0 for text in drawn]
    middle = drawn[counts.index(max(count for count in counts if count <= max(counts) / 2))]
    middle = "━" + middle.partition("━")[2] if "━" not in middle.splitlines()[0] else middle
    end = drawn[-1][_TABLE.search(drawn[-1]).start() :]  # type: ignore[union-attr]
    for name, text in (("terminal-progress", middle), ("terminal-front", end)):
        _photograph_text(page, f"$ bitfront demo\n{text}", folder / f"{name}.html", pictures / f"{name}.png")


def _photograph_text(page: Page, text: str, path: Path, picture: Path) -> None:
    console = Console(record=True, width=200, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(re.sub(r"\x1b\[\?25[lh]", "", text.strip())), soft_wrap=True)
    page_text = console.export_html(inline_styles=True, code_format="{code}", theme=DEFAULT_TERMINAL_THEME)
    path.write_text(_TERMINAL.format(text=page_text.rstrip()), encoding="utf-8")
    page.open(path, 1200, "light")
    page.open(path, int(page.run("document.body.offsetWidth")), "light")
    page.photograph(picture, int(page.run("document.body.offsetHeight")))


def report(page: Page, folder: Path, pictures: Path) -> None:
    """The beginning of the report, its figure alone, and in the dark theme what follows."""
    parts = {
        "report-light": ("light", ["summary", "front"]),
        "front": ("light", ["front"]),
        "report-dark": ("dark", ["rescue", "precisions", "reasons"]),
    }
    for name, (theme, sections) in parts.items():
        page.open(folder / "demo" / "report.html", 1000, theme)
        hidden = "section" if "summary" in sections else "section, header"
        page.run(f"document.querySelectorAll('{hidden}').forEach(each => each.hidden = !{sections}.includes(each.id))")
        time.sleep(1)  # until the figure has its size
        end = page.run(f"document.getElementById('{sections[-1]}').getBoundingClientRect().bottom")
        page.photograph(pictures / f"{name}.png", int(end) + 20)


def dashboard(page: Page, folder: Path, pictures: Path) -> None:
    """The study in optuna-dashboard, and one of its trials."""
    with _serving(folder / "demo" / "bitfront.db") as url:
        page.open(f"{url}dashboard/studies/1", 1400, "light")
        _wait(page, "document.querySelectorAll('.plotly .main-svg').length > 2")
        page.photograph(pictures / "dashboard-study.png", 660)
        best = json.loads(_bitfront("front", "exposures", "--json", storage=folder / "demo" / "bitfront.db"))["best"]
        page.open(f"{url}dashboard/studies/1/trials?numbers={best['trial']}", 1400, "light")
        _wait(page, "document.body.innerText.includes('layers')")
        page.photograph(pictures / "dashboard-trial.png", 640)
        page.run("[...document.querySelectorAll('p')].pop().scrollIntoView({block: 'end'})")
        page.photograph(pictures / "dashboard-attributes.png", 900)


@contextmanager
def _serving(database: Path) -> Iterator[str]:
    """The address of a dashboard."""
    words = [*BITFRONT, "dashboard", "--storage", f"sqlite:///{database}", "--port", str(PORT), "--json"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            yield str(json.loads(server.stdout.readline())["url"])
        finally:
            server.terminate()


def _wait(page: Page, condition: str) -> None:
    end = time.monotonic() + LONGEST_WAIT_S
    while not page.run(condition):
        if time.monotonic() > end:
            raise SystemExit(f"not seen within {LONGEST_WAIT_S} s: {condition}")
        time.sleep(0.2)
    for _ in range(3):  # only what is photographed is drawn, and moves to its place
        page.photograph(Path(os.devnull))
        time.sleep(0.7)


def _bitfront(*words: str, storage: Path) -> str:
    command = [*BITFRONT, *words, "--storage", f"sqlite:///{storage}"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def notebook(page: Page, folder: Path, pictures: Path) -> None:
    """A notebook that Jupyter has run; `jupyter` with nbconvert and ipykernel has to be on the path."""
    if shutil.which("jupyter") is None:
        raise SystemExit("jupyter is not on the path: pip install nbconvert ipykernel, in an environment of its own")
    cells = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "id": str(place), "source": text}
        for place, text in enumerate(NOTEBOOK)
    ]
    (folder / "search.ipynb").write_text(
        json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8"
    )
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{packages}",
        "PLOTLY_RENDERER": "notebook",  # with its script in the page, which needs no network
    }
    words = ["jupyter", "nbconvert", "--execute", "--to", "html", "search.ipynb"]
    subprocess.run(words, cwd=folder, env=environment, check=True)
    page.open(folder / "search.html", 1200, "light")
    _wait(page, "document.querySelectorAll('.plotly .main-svg').length > 0")
    page.photograph(pictures / "notebook.png")


def site(page: Page, folder: Path, pictures: Path) -> None:
    """The front page of the documentation, and a page of the Python API."""
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder / "site")]
    subprocess.run(words, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    handler = functools.partial(SilentHandler, directory=folder / "site")
    with ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, picture in (("index", "site"), ("api", "site-api")):
            page.open(f"http://localhost:{server.server_port}/{name}.html", 1400, "light")
            _wait(page, "document.querySelector('.md-search') !== null")
            page.photograph(pictures / f"{picture}.png", 900)
        server.shutdown()


class SilentHandler(SimpleHTTPRequestHandler):
    """Serves a folder and tells of no request."""

    def log_request(self, code: object = "-", size: object = "-") -> None: ...


if __name__ == "__main__":
    main()
