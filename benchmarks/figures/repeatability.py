"""Latency of one assignment, all INT8, in fresh evaluator processes, as ratio to the baseline measured in between.

usage: python -m benchmarks.figures.repeatability [--processes 10]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.example import BATCH, MODEL, evaluator, load_text
from bitfront.verbs.analyses import layers
from search.values import Latency, Precision
from studies.options.config import SearchConfig


def main(processes: int = 10) -> dict[str, float]:
    """`range`: largest less smallest ratio over their median; `middle`: the same of the 80 % nearest to the median;
    `raw`: range of the latencies without the baseline.
    """
    uniform = layers(SearchConfig(str(MODEL), "", batch=BATCH)).space.uniform(Precision.INT8)
    measured: list[Latency] = []
    with tempfile.TemporaryDirectory() as folder, evaluator(Path(folder)) as keeper:
        print(f"{'process':>7} {'INT8 ms':>8} {'FP32 ms':>8} {'ratio':>7} {'spread':>7}  warnings; {load_text()}")
        for number in range(processes):
            keeper.close()
            found = keeper.ask().timings.time_again(uniform, Path(folder) / "again.engine")
            assert found.baseline_ms is not None
            measured.append(found)
            cells = f"{found.raw_ms:8.3f} {found.baseline_ms:8.3f} {found.raw_ms / found.baseline_ms:7.4f}"
            print(f"{number:7} {cells} {found.spread:7.1%}  {'; '.join(found.warnings)}", flush=True)
    raw = np.array([each.raw_ms for each in measured])
    ratios = raw / [each.baseline_ms or np.nan for each in measured]
    nearest = np.argsort(np.abs(ratios - np.median(ratios)))
    middle = ratios[nearest[: round(0.8 * processes)]]
    result = {"range": spanned(ratios), "middle": spanned(middle), "raw": spanned(raw)}
    result["doubtful"] = float(sum(bool(each.warnings) for each in measured))
    print(f"range of the ratio {result['range']:.2%}, of the 80 % in the middle {result['middle']:.2%};", end=" ")
    print(f"of the latency alone {result['raw']:.2%}; {result['doubtful']:.0f} of {processes} with warnings")
    return result


def spanned(values: Any) -> float:
    return float((values.max() - values.min()) / np.median(values))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=10)
    main(parser.parse_args().processes)
