"""How many evaluations an hour a search makes with several builders, and what builds beside a measurement do to it.

The same random mixes are searched once for each number of builders, each time as a study of its own: 0 is one process
that builds and measures. The rate counts the evaluations that went well in the SECONDS after the uniform assignments.
The first MIXES that a run has in common with the first run are compared with it: their latencies, and the kernels and
tactics of their groups. A number that is named twice, as `0 0`, says what two runs differ by anyway. With `--no-hold`
builds go on while a latency is measured. Prints a line for each run, and JSON at the end. `--save` keeps what was
measured in files, and `--against` holds all runs against one that another call, say on another GPU, has kept.

usage: python -m benchmarks.h200.builders MODEL DATA [--builders 0 0 1 2 4] [--seconds 300] [--mixes 20] [--no-hold]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from rich.console import Console

from bitfront import verbs
from search.values import Assignment, AuditRow
from studies.options.read_options import read_config
from studies.run.pipeline.build_hold import BuildHold
from studies.show.progress_display import Lines
from studies.store.records import OK
from studies.store.store import Store


@dataclass(frozen=True)
class Mix:
    """One evaluation: its latency, and kernel and tactic of every group."""

    latency_ms: float
    kernels: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Run:
    """One search.

    Attributes:
        rate: evaluations that went well, an hour, over `seconds` after the uniform assignments.
        mixes: in the order in which they were finished.
    """

    builders: int
    rate: float
    band: float
    mixes: Mapping[Assignment, Mix]


@dataclass(frozen=True)
class Comparison:
    """A run held against the first one.

    Attributes:
        compared: mixes that both have.
        median_difference, largest_difference: of their latencies, relative and absolute.
        tactics_differ: share of their groups whose kernel or tactic is another.
        band: tie band of the first run's study.
    """

    builders: int
    rate: float
    compared: int
    median_difference: float
    largest_difference: float
    tactics_differ: float
    band: float


def main(given: argparse.Namespace) -> list[Comparison]:
    """Run all searches; every run against the first."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if given.no_hold:
            for method in ("__enter__", "__exit__"):
                stack.enter_context(patch.object(BuildHold, method, lambda *_: None))
        found: list[Comparison] = []
        first = load(given.against) if given.against else None
        for place, builders in enumerate(given.builders):
            run = search(given, folder / str(place), builders)
            first = first or run
            if given.save:
                save(run, given.save.with_suffix(f".{place}.json"))
            found.append(compare(first, run, given.mixes))
            print(json.dumps(asdict(found[-1])), flush=True)
    return found


def search(given: argparse.Namespace, folder: Path, builders: int) -> Run:
    """One search in a folder of its own."""
    folder.mkdir()
    storage = f"sqlite:///{folder / 'study.db'}"
    options: dict[str, Any] = {
        "model": given.model,
        "data": given.data,
        "study": "builders",
        "storage": storage,
        "backend": given.backend,
        "sampler": "random",
        "keep-engines": "none",
        "trials": "100000",
        "time-limit": f"{given.seconds + given.beside}s",
        "builders": str(builders),
    }
    with open(folder / "log", "w", encoding="utf-8") as log:
        verbs.search(read_config(options), Lines(Console(file=log)))
    with Store.open(storage, write=False) as store:
        return read(store, builders, given.seconds)


def read(store: Store, builders: int, seconds: float) -> Run:
    """What a search left in its database."""
    (target,) = store.targets.of_study(store.studies.load("builders").id)
    times = store.statistics.finish_times(target.id)
    start = max(row.finished_at for row in times if row.role)
    mixes = [row for row in times if not row.role and row.finished_at > start]
    inside = [row for row in mixes if row.ok and row.finished_at <= start + timedelta(seconds=seconds)]
    found = {}
    for row in mixes:
        record = store.evaluations.load(row.evaluation_id)
        latency = record.evaluation.latency
        if record.status == OK and latency is not None:
            found[record.evaluation.assignment] = Mix(latency.value_ms, kernels_of(record.evaluation.audit))
    return Run(builders, len(inside) / seconds * 3600, target.band, found)


def save(run: Run, file: Path) -> None:
    """Keep a run."""
    mixes = [
        {"assignment": assignment.to_json(), "latency_ms": mix.latency_ms, "kernels": mix.kernels}
        for assignment, mix in run.mixes.items()
    ]
    file.write_text(json.dumps({"builders": run.builders, "rate": run.rate, "band": run.band, "mixes": mixes}))


def load(file: Path) -> Run:
    """A run that was kept."""
    kept = json.loads(file.read_text())
    mixes = {
        Assignment.from_json(row["assignment"]): Mix(
            row["latency_ms"], {group: (kernel, tactic) for group, (kernel, tactic) in row["kernels"].items()}
        )
        for row in kept["mixes"]
    }
    return Run(kept["builders"], kept["rate"], kept["band"], mixes)


def kernels_of(audit: Sequence[AuditRow]) -> dict[str, tuple[str, str]]:
    """Group → its kernel and tactic, as far as the engine shows them."""
    return {row.group: (row.kernel, row.details.get("tactic", "")) for row in audit}


def compare(first: Run, run: Run, most: int) -> Comparison:
    """Hold a run against the first one, by the first mixes that both have."""
    common = [assignment for assignment in first.mixes if assignment in run.mixes][:most]
    pairs = [(first.mixes[assignment], run.mixes[assignment]) for assignment in common]
    differences = [abs(there.latency_ms / here.latency_ms - 1) for here, there in pairs] or [float("nan")]
    kernels = [here.kernels[group] != there.kernels[group] for here, there in pairs for group in here.kernels]
    return Comparison(
        builders=run.builders,
        rate=run.rate,
        compared=len(pairs),
        median_difference=median(differences),
        largest_difference=max(differences),
        tactics_differ=sum(kernels) / max(1, len(kernels)),
        band=first.band,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="ONNX file")
    parser.add_argument("data", help="data of the search, as `bitfront search --data` takes them")
    parser.add_argument("--builders", type=int, nargs="+", default=[0, 0, 1, 2, 4], help="of each run")
    parser.add_argument("--seconds", type=float, default=300.0, help="that the rate is counted over")
    parser.add_argument("--beside", type=float, default=240.0, help="seconds for the uniform assignments and the end")
    parser.add_argument("--save", type=Path, help="file to keep each run in, its place before the suffix")
    parser.add_argument("--against", type=Path, help="run that was kept, which the others are held against")
    parser.add_argument("--mixes", type=int, default=20, help="that are compared")
    parser.add_argument("--backend", default="tensorrt")
    parser.add_argument("--no-hold", action="store_true", help="builds go on while a latency is measured")
    print(json.dumps([asdict(each) for each in main(parser.parse_args())], indent=1))
