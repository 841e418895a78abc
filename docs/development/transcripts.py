"""Make the transcripts of the documentation again: `python docs/development/transcripts.py FOLDER`.

A transcript is a block of a page that begins with a line `$ bitfront …` and goes on with what the command printed. Each
is run for real, as docs/development/transcripts.toml says, and its output replaces the block. See pictures.md.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
RECORD = ROOT / "docs/development/transcripts.json"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
ASKED = tomllib.loads((ROOT / "docs/development/transcripts.toml").read_text(encoding="utf-8"))
EXAMPLES: dict[str, Any] = ASKED["examples"]
COLUMNS, LONGEST = 100, 170  # characters: of the terminal, and of a line on a page
_BLOCK = re.compile(r"^```\w*\n\$ (bitfront [^\n]*)\n(.+?)^```$", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")  # colours and bold text
_SHELL = 'bitfront() {{ "{0}" -m bitfront "$@"; }}\npython() {{ "{0}" "$@"; }}\n{1}'


def main() -> None:
    """Run what was not run in the folder yet, and write the pages and the record of what they are made from."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where outputs are kept; an example that was run is not run again")
    parser.add_argument("--only", choices=EXAMPLES, action="append", help="this example alone; repeatable")
    asked = parser.parse_args()
    for name in asked.only or EXAMPLES:
        write_pages(EXAMPLES[name]["commands"], run_example(name, asked.folder.resolve()))


def describe_pages() -> dict[str, dict[str, dict[str, str]]]:
    """Of each page and command the program's version, and digests of what is run and of what the page shows."""
    from studies import __version__

    inputs = {command: digest_inputs(example) for example in EXAMPLES.values() for command in example["commands"]}
    return {
        page: {
            command: {
                "version": __version__,
                "inputs": inputs.get(command, "none: docs/development/transcripts.toml has no such command"),
                "shown": _digest(shown.encode()),
            }
            for command, shown in blocks
            if command not in ASKED["invented"]
        }
        for page, blocks in find_blocks().items()
    }


def find_blocks() -> dict[str, list[tuple[str, str]]]:
    """By page, the command of every transcript and what the page shows of its output."""
    found = {str(page.relative_to(ROOT)): _BLOCK.findall(page.read_text(encoding="utf-8")) for page in PAGES}
    return {page: blocks for page, blocks in found.items() if blocks}


def digest_inputs(example: dict[str, Any]) -> str:
    """A digest of everything that outputs of an example are made from: its files, and what is run."""
    files = [(ROOT / name).read_bytes() for name in example["files"]]
    blocks = [_first_python(line).encode() for line in example["before"] if line.endswith(".md")]
    lines = [*example["before"], *example["commands"], "in terminal:", *example.get("in_terminal", ())]
    return _digest(*files, *blocks, *(line.encode() for line in lines))


def _digest(*content: bytes) -> str:
    return hashlib.sha256(b"\0".join(content)).hexdigest()[:16]


def _first_python(page: str) -> str:
    return str(_PYTHON.findall((ROOT / page).read_text(encoding="utf-8"))[0])


def run_example(name: str, folder: Path) -> dict[str, str]:
    """The whole output of each command that is shown; what was run in this folder before is not run again."""
    from studies import __version__

    example = EXAMPLES[name]
    place = folder / f"{name}-{__version__}-{digest_inputs(example)}"
    kept = place.with_name(f"{place.name}.json")
    if not kept.exists():
        shutil.rmtree(place, ignore_errors=True)  # of a run that failed
        place.mkdir(parents=True)
        for file in example["files"]:
            (place / Path(file).name).write_bytes((ROOT / file).read_bytes())
        for line in example["before"]:
            if line.endswith(".md"):
                (place / "page.py").write_text(_first_python(line), encoding="utf-8")
            run_line("python page.py" if line.endswith(".md") else line, place, check=True)
        seen = example.get("in_terminal", ())
        outputs = {command: run_line(command, place, in_terminal=command in seen) for command in example["commands"]}
        kept.write_text(json.dumps(outputs, indent=1, ensure_ascii=False), encoding="utf-8")
    return dict(json.loads(kept.read_text(encoding="utf-8")))


def run_line(line: str, place: Path, *, in_terminal: bool = False, check: bool = False) -> str:
    """What a line of the shell writes to its standard output, a pipe or a terminal of `COLUMNS`."""
    sys.stderr.write(f"$ {line}\n")
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "BITFRONT_PROGRAM": "bitfront"}
    ours, theirs = pty.openpty() if in_terminal else os.pipe()
    if in_terminal:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    words = ["bash", "-c", _SHELL.format(sys.executable, line)]
    with subprocess.Popen(words, cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=theirs) as process:
        os.close(theirs)
        written = b""
        while more := _read(ours):
            written += more
    os.close(ours)
    if check and process.returncode:
        raise SystemExit(f"exit code {process.returncode}: {line}\n{written.decode()}")
    return _CODE.sub("", written.decode()).replace("\r\n", "\n").replace(str(place), "/home/me")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # how Linux says that the other end of a terminal is closed
        return b""


def write_pages(parts: dict[str, list[str]], outputs: dict[str, str]) -> None:
    """Replace the blocks of these commands, and record what they are made from."""
    shown = {command: shorten(outputs[command], each, command) for command, each in parts.items()}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(_BLOCK.sub(lambda block: replaced(block, shown), text), encoding="utf-8")
    told = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for name, commands in (described := describe_pages()).items():
        for command in commands.keys() - shown.keys():  # another example's, which may be of earlier inputs
            commands[command] = told.get(name, {}).get(command)
    RECORD.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def replaced(block: re.Match[str], shown: dict[str, str]) -> str:
    """A block with the new output of its command, if there is one."""
    return block[0].replace(block[2], shown.get(block[1], block[2]))


def shorten(output: str, parts: list[str], command: str) -> str:
    """The parts of an output that a page shows. `…` stands for what is left out, also at the end of a long line."""
    text, end = "", 0
    for part in parts:
        found = re.compile(part, re.MULTILINE).search(output, end)
        if found is None:
            raise SystemExit(f"{command}\nFrom here on its output has no {part!r}; change it:\n{output[end:]}")
        between = output[end : found.start()]
        text += ("\n…\n" if between.strip() else between) + found[0].rstrip()
        end = found.start() + len(found[0].rstrip())
    lines = (text + ("\n…" if output[end:].strip() else "")).strip("\n").splitlines()
    cut = [line if len(line) <= LONGEST else line[: line.rindex(" ", 0, LONGEST)] + " …" for line in lines]
    return "".join(f"{line.rstrip()}\n" for line in cut)


if __name__ == "__main__":
    main()
