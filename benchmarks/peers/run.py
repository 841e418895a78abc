"""INT8 by bitfront and by other quantizers, side by side: the same networks, calibration samples and scored samples.

    python -m benchmarks.peers.run                                      # all that is not done
    python -m benchmarks.peers.run --only mobile --methods nncf-fast    # pieces
    python -m benchmarks.peers.run --methods bitfront-none --again      # one column anew
    python -m benchmarks.peers.run --write                               # tables, into benchmarks/results

Every quantizer runs in a process of its own and writes an ONNX file, which ONNX Runtime scores. Results go to
benchmarks/results/peers.json after every file. Engines and scores stay in the work folder, and are taken from there.
The other quantizers need their environment: see `benchmarks/peers/quantizers.py`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import RESULTS, ROOT
from benchmarks.page import write_tables
from benchmarks.peers import ours, quantizers, tables
from benchmarks.peers.cases import CASES, OF_TRUST, Case
from benchmarks.peers.quantizers import Run
from benchmarks.peers.work import FLOAT, CaseWork, Results
from benchmarks.trust.run import commit

STORED = RESULTS / "peers.json"
OURS = tuple(f"bitfront-{recover}" for recover in ours.RECOVERIES)
METHODS = (*OURS, *quantizers.METHODS)


def quantize(work: CaseWork, method: str, out: Path) -> Run:
    """Write the engine of a method."""
    case, calibration = work.case, work.calibration_file
    if method in OURS:
        return ours.quantize(method.removeprefix("bitfront-"), case.model, calibration, out, case.metric)
    return quantizers.quantize(method, case.model, calibration, out, case.metric)


def run_method(work: CaseWork, method: str) -> dict[str, Any]:
    """Quantize and score; the figures of one row. A quantizer that gives up is a row with what it said."""
    engine = work.engine(method)
    draft = engine.with_suffix(".draft.onnx")
    try:
        run = quantize(work, method, draft)
    except RuntimeError as error:
        return {"failed": str(error)[-600:], "date": f"{datetime.date.today()}"}
    draft.replace(engine)
    steps_file = draft.with_suffix(".steps.json")
    steps = {"steps": json.loads(steps_file.read_text())} if steps_file.exists() else {}
    loss = asdict(work.loss(method))
    about = {"date": f"{datetime.date.today()}", "commit": commit(), "load": round(os.getloadavg()[0], 1)}
    return {**asdict(run), **loss, "value": work.value(method), **steps, **about}


def run_network(case: Case, methods: Sequence[str], arguments: argparse.Namespace) -> None:
    """All methods of one network that are not done.

    Args:
        arguments: `work`, `out` and `again` of the command line.
    """
    name = case.name
    work, results = CaseWork(case, arguments.work.resolve() / name), Results(arguments.out)
    for method in methods:
        row = f"{name}/{method}"
        if row in results.read()["runs"] and not arguments.again:
            continue
        figures = run_method(work, method)
        results.add("runs", row, figures)
        tell(row, figures)
        results.add("networks", name, about(work))
        results.add("pairs", name, pairs(work, results.read()["runs"]))


def about(work: CaseWork) -> dict[str, Any]:
    case = work.case
    counts = {"samples": case.evaluation, "calibration": case.fitted}
    return {"kind": case.kind, "metric": case.metric, "value": work.value(FLOAT), **counts}


def pairs(work: CaseWork, runs: dict[str, Any]) -> dict[str, Any]:
    """What each engine of ours loses against each other one, on the same samples."""
    there = [m for m in METHODS if "loss" in runs.get(f"{work.case.name}/{m}", {}) and work.engine(m).exists()]
    losses = {}
    for own in (m for m in there if m in OURS):
        losses[own] = {other: asdict(work.loss(own, other)) for other in there if other != own}
    return losses


def tell(row: str, figures: dict[str, Any]) -> None:
    if "failed" in figures:
        print(f"{row}: gave up: {figures['failed'].splitlines()[-1]}", flush=True)
        return
    half = (figures["high"] - figures["low"]) / 2
    print(f"{row}: loses {100 * figures['loss']:.2f} ± {100 * half:.2f} points; {figures['seconds']:.0f} s", flush=True)


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*CASES, *OF_TRUST], default=list(CASES), metavar="NETWORK")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--work", type=Path, default=ROOT / "proof" / "peers", help="folder of engines and scores")
    parser.add_argument("--out", type=Path, default=STORED)
    parser.add_argument("--again", action="store_true", help="also what is done")
    parser.add_argument("--table", action="store_true", help="run nothing, tell what is done")
    parser.add_argument("--write", action="store_true", help="the same, and write benchmarks/results/peers.md")
    return parser.parse_args(words)


def main() -> None:
    arguments = parsed()
    for name in () if arguments.table or arguments.write else arguments.only:
        run_network((CASES | OF_TRUST)[name], arguments.methods, arguments)
    markdown = tables.text(Results(arguments.out).read())
    sys.stdout.write(f"{markdown}\n")
    if arguments.write:
        write_tables("peers", "INT8 beside other quantizers", "python -m benchmarks.peers.run --write", markdown)


if __name__ == "__main__":
    main()
