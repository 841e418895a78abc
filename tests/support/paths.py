"""Folders of the repository, wherever the asking file lies."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
DIGITS = ROOT / "examples" / "digits"  # a network made hard for plain INT8, which equalization undoes
