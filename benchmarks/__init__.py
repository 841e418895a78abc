"""What makes the published figures again; README.md lists the commands.

Every script is started from the root of the source tree: `python -m benchmarks.figures.run --help`.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
