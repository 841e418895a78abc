"""bitfront's search beside NNCF's accuracy control: latency and loss, with the same samples and the same allowed drop.

    python -m benchmarks.peers.control.run                                     # all that is not done
    python -m benchmarks.peers.control.run --steps control --only mobile       # pieces
    python -m benchmarks.peers.control.run --steps search times --again        # pieces anew
    python -m benchmarks.peers.control.run --write                              # tables, into benchmarks/results

The steps are: `control` quantizes by NNCF; `search` searches by bitfront with half as many evaluations, and lowers
NNCF's mix; `losses` scores all engines on samples that neither tool had; `times` measures them in turns. Searches and
the last step measure latency, so run them on a quiet machine. Results go to benchmarks/results/peers_control.json after
every piece. The peers' environment is that of `benchmarks.peers.run`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import RESULTS, ROOT
from benchmarks.page import write_tables
from benchmarks.peers.cases import CALIBRATION, CASES, SEARCH, search_file
from benchmarks.peers.control import accuracy_control, tables, timing
from benchmarks.peers.control.engines import Study
from benchmarks.peers.work import FLOAT, CaseWork, Results
from benchmarks.trust.run import commit

STORED = RESULTS / "peers_control.json"
NETWORKS = ("residual", "mobile", "detector", "segmenter", "encoder")
DROPS = (0.003, 0.001)
STEPS = ("control", "search", "losses", "times")
MOST_TRIALS, LEAST_TRIALS = 40, 2  # without FP32 and INT8 there is no search
INT8 = "int8"


@dataclass(frozen=True)
class Piece:
    """One network with one allowed drop.

    Attributes:
        work: of the network, with all engines by name.
        time_limit: of a search.
    """

    work: CaseWork
    drop: float
    results: Results
    time_limit: str = "none"

    @property
    def name(self) -> str:
        return f"{self.work.case.name}/{self.drop:g}"

    def label(self, kind: str) -> str:
        """Name of an engine of this drop: `control`, `mix` or `best`."""
        return f"{kind}-{self.drop:g}"

    def done(self, part: str) -> dict[str, Any] | None:
        figures: dict[str, Any] | None = self.results.read().get(part, {}).get(self.name)
        return figures

    def control(self) -> dict[str, Any]:
        """Quantize by accuracy control; what it did, and which weighted ops are in float in its file."""
        work, out = self.work, self.work.engine(self.label("control"))
        judge = search_file(work.case, work.folder)
        draft = out.with_suffix(".draft.onnx")
        try:
            run = accuracy_control.quantize(
                work.case.model, work.calibration_file, judge, draft, work.case.metric, self.drop
            )
        except RuntimeError as error:
            return {"failed": str(error)[-600:], **about_now()}
        draft.replace(out)
        ops = accuracy_control.weighted_ops(out)
        kept = {"weighted": len(ops), "float_nodes": sorted(name for name, int8 in ops.items() if not int8)}
        return {**asdict(run), **kept, **about_now()}

    def search(self) -> dict[str, Any]:
        """Search with half as many evaluations as accuracy control had, and lower its mix beside the pick."""
        control = self.done("control")
        if control is None or "failed" in control:
            return {"failed": "accuracy control gave no file", **about_now()}
        work = self.work
        study = Study(work.case, work.folder / f"study-{self.drop:g}", self.drop)
        before = about_now()
        figures = study.search(work.folder, trials_for(control), self.time_limit)
        work.engine(self.label("best")).write_bytes(study.pick.read_bytes())
        ops = accuracy_control.weighted_ops(work.engine(self.label("control")))
        mix = study.folder / "mix.json"
        mix.write_text(json.dumps({name: "int8" if int8 else "fp32" for name, int8 in ops.items()}, indent=1))
        notes = study.lower(str(mix), work.engine(self.label("mix")))
        if self.drop == DROPS[0]:
            study.lower("all=int8", work.engine(INT8))
        return {**figures, "mix_notes": list(notes), **before}

    def losses(self) -> dict[str, Any]:
        """Paired losses on the scored samples: of every engine against FP32, and of `best` against both others."""
        work, best = self.work, self.label("best")
        others = [self.label(kind) for kind in ("control", "mix")]
        of_float = {name: asdict(work.loss(name)) for name in (best, *others, INT8)}
        return {"of_float": of_float, "best_against": {name: asdict(work.loss(best, name)) for name in others}}


def trials_for(control: dict[str, Any]) -> int:
    """Half of the models that accuracy control ran, but not more than a search of this size needs."""
    return max(LEAST_TRIALS, min(MOST_TRIALS, (control["judged"] + control["ranked"]) // 2))


def about_now() -> dict[str, Any]:
    return {"date": f"{datetime.date.today()}", "commit": commit(), "load": round(os.getloadavg()[0], 1)}


def pieces(arguments: argparse.Namespace) -> Iterator[Piece]:
    results = Results(arguments.out)
    for name in arguments.only:
        work = CaseWork(CASES[name], arguments.work.resolve() / name)
        for drop in arguments.drops:
            yield Piece(work, drop, results, arguments.time_limit)


def run_pieces(step: str, arguments: argparse.Namespace) -> None:
    """One of the steps that are made for every network and drop."""
    for piece in pieces(arguments):
        if piece.done(step) is not None and not arguments.again:
            continue
        figures = getattr(piece, step)()
        piece.results.add(step, piece.name, figures)
        work = piece.work
        if step == "losses":
            counts = {"samples": work.case.evaluation, "search": SEARCH, "calibration": CALIBRATION}
            value = {"metric": work.case.metric, "value": work.value(FLOAT)}
            piece.results.add("networks", work.case.name, {**value, **counts})
        print(f"{step} {piece.name}: {tables.brief(step, figures)}", flush=True)


def run_times(arguments: argparse.Namespace) -> None:
    """All engines of a network in turns."""
    results = Results(arguments.out)
    for name in arguments.only:
        if name in results.read().get("times", {}) and not arguments.again:
            continue
        work = CaseWork(CASES[name], arguments.work.resolve() / name)
        labels = [FLOAT, INT8, *(f"{kind}-{drop:g}" for drop in arguments.drops for kind in tables.KINDS)]
        files = {label: work.engine(label) for label in labels if work.engine(label).exists()}
        samples = search_file(work.case, work.folder)
        figures = {**about_now(), **timing.measure(files, samples, arguments.processes)}
        results.add("times", name, figures)
        print(f"times {name}: {tables.brief('times', figures)}", flush=True)


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--drops", nargs="+", type=float, default=list(DROPS), metavar="SHARE")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS), metavar="STEP")
    parser.add_argument("--time-limit", default="none", help="of every search, for a busy machine: 10m")
    parser.add_argument("--processes", type=int, default=timing.PROCESSES, help="that time the engines of a network")
    parser.add_argument("--work", type=Path, default=ROOT / "proof" / "control", help="folder of engines and studies")
    parser.add_argument("--out", type=Path, default=STORED)
    parser.add_argument("--again", action="store_true", help="also what is done")
    parser.add_argument("--table", action="store_true", help="run nothing, tell what is done")
    parser.add_argument("--write", action="store_true", help="the same, and write benchmarks/results/peers_control.md")
    return parser.parse_args(words)


def main() -> None:
    arguments = parsed()
    for step in () if arguments.table or arguments.write else arguments.steps:
        if step == "times":
            run_times(arguments)
        else:
            run_pieces(step, arguments)
    markdown = tables.text(Results(arguments.out).read())
    sys.stdout.write(f"{markdown}\n")
    if arguments.write:
        command = "python -m benchmarks.peers.control.run --write"
        write_tables("peers_control", "A search beside accuracy control", command, markdown)


if __name__ == "__main__":
    main()
