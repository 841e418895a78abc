"""Rows of a made-up network, for tests of the sampler benchmark."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.samplers.simulator import engine_rows

LETTERS = "fhi"


def trained(groups: int = 6, count: int = 60, int8_loss: float = 0.03, scatter: float = 0.0) -> dict[str, Any]:
    """Rows as benchmarks/h200/rows.py writes them, of a chain whose latency and loss are known."""
    rng = np.random.default_rng(0)
    codes = [[p] * groups for p in range(3)] + rng.integers(3, size=(count, groups)).tolist()
    return {
        "network": "chain",
        "groups": [f"/layer{i}/Conv" for i in range(groups)],
        "edges": [[-1, 0, 100], *([i, i + 1, 1000 * (i + 1)] for i in range(groups - 1))],
        "rows": [row(code, int8_loss, scatter * rng.standard_normal()) for code in codes],
    }


def row(codes: list[int], int8_loss: float, extra: float) -> dict[str, Any]:
    times, changes = (4.0, 2.0, 1.0), sum(a != b for a, b in pairwise(codes))
    loss = int8_loss * sum(c == 2 for c in codes) / len(codes) + extra
    a = "".join(LETTERS[code] for code in codes)
    ms = 0.1 + 0.1 * sum(times[code] for code in codes) + 0.05 * changes
    return {
        "a": a,
        "got": a,
        "lat": ms,
        "spread": 0.004,
        "loss": loss,
        "loss_low": loss - 0.004,
        "loss_high": loss + 0.004,
    }


def written(tmp_path: Path, content: dict[str, Any]) -> engine_rows.Rows:
    file = tmp_path / "chain.json"
    file.write_text(json.dumps(content))
    return engine_rows.read_trained(file)
