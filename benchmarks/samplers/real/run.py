"""Guided, one shot with hill climbing, and TPE side by side, for real: ONNX Runtime on one core of the CPU.

    python -m benchmarks.samplers.real.run                             # encoder and detector, 2 seeds; goes on
    python -m benchmarks.samplers.real.run --networks mobile --seeds 1 --docs
    python -m benchmarks.samplers.real.run --docs --no-run             # tables, into docs/benchmarks-tables.md
    python -m benchmarks.samplers.real.run --networks encoder --seeds 1 --trials guided=6 one-shot=6 tpe=8 \\
        --samples 250 --fresh 250 --work /tmp/try --out /tmp/try.json  # a short try

Searches of a network share calibration, recovery and samples. When they are done, the mixes on the fronts of all of
them are measured again in one study: losses on samples that no search had, latencies in turn with one another. Every
search is a study under --work; benchmarks/results/real_samplers.json has all that they found, after every search.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import RESULTS, ROOT
from benchmarks.page import write_section
from benchmarks.samplers.real import tables, verdicts
from benchmarks.samplers.real.networks import NETWORKS
from benchmarks.samplers.real.searches import METHODS, Searches
from benchmarks.trust.run import commit

OUT = RESULTS / "real_samplers.json"
USUAL = ("encoder", "detector")
SECTION = "real samplers"


def stored(out: Path) -> dict[str, Any]:
    return json.loads(out.read_text()) if out.exists() else {"runs": {}, "again": {}}


def keep(out: Path, part: str, name: str, run: Mapping[str, Any]) -> None:
    """Add a run to the results, which are whole at any time; a line a run."""
    found = stored(out)
    found[part][name] = dict(run)
    parts = []
    for each in ("runs", "again"):
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(found[each][key])}" for key in sorted(found[each]))
        parts.append(f' "{each}": {{\n{lines}\n }}')
    draft = out.with_suffix(".draft")
    draft.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    draft.replace(out)


def run_network(searches: Searches, trials: Mapping[str, int], seeds: int, out: Path) -> None:
    """All searches of a network that are not done, then its fronts again."""
    network = searches.network.name
    for seed in range(seeds):
        for method, count in trials.items():
            name = f"{method}-{seed}"
            if stored(out)["runs"].get(f"{network}/{name}", {}).get("trials") != count:
                keep_run(out, "runs", f"{network}/{name}", searches.search(method, seed, count))
    runs = tables.runs_of(stored(out), network)
    uniform = max(len(run["uniform"]) for run in runs.values())
    wanted = sorted({code for run in runs.values() for code in verdicts.codes_of_front(run)})
    known = {row[3] for row in stored(out)["again"].get(network, {"rows": []})["rows"]}
    if not known.issuperset(wanted):
        keep_run(out, "again", network, searches.measure_again(wanted, uniform))
    check_ranges(network, stored(out))


def check_ranges(network: str, found: Mapping[str, Any]) -> None:
    """Raise ValueError where searches of a network differ in calibration or recovery, and so in their engines."""
    runs = {**tables.runs_of(found, network), "again": found["again"][network]}
    if len({run["ranges"] for run in runs.values()}) > 1:
        ranges = ", ".join(f"{name} {run['ranges'][:8]}" for name, run in runs.items())
        raise ValueError(f"{network}: searches with different INT8 ranges cannot be compared: {ranges}")


def keep_run(out: Path, part: str, name: str, run: Mapping[str, Any]) -> None:
    about = {"commit": commit(), "date": f"{datetime.date.today()}", "load": round(os.getloadavg()[0], 1)}
    keep(out, part, name, {**about, **run})
    print(f"{name}: {len(run['rows'])} evaluations, {run['command_s']} s, tie band {run['band']:.1%}", flush=True)


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(USUAL))
    parser.add_argument("--seeds", type=int, default=2)
    counts = [f"{method}={count}" for method, (_, count) in METHODS.items()]
    parser.add_argument("--trials", nargs="+", metavar="METHOD=N", default=counts)
    parser.add_argument("--samples", type=int, help="of a search, for a short try")
    parser.add_argument("--fresh", type=int, help="samples of the last measurement, for a short try")
    parser.add_argument("--work", type=Path, default=ROOT / "proof" / "real_samplers", help="folder of the studies")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--no-run", action="store_true", help="only print the tables")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/benchmarks-tables.md")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    arguments = parsed(words)
    trials = {method: int(count) for method, count in (pair.split("=") for pair in arguments.trials)}
    arguments.work.mkdir(parents=True, exist_ok=True)
    for name in () if arguments.no_run else arguments.networks:
        wanted = NETWORKS[name]
        fewer = replace(wanted, samples=arguments.samples or wanted.samples, fresh=arguments.fresh or wanted.fresh)
        run_network(Searches(fewer, arguments.work), trials, arguments.seeds, arguments.out)
    found = tables.text(stored(arguments.out))
    print(found)
    if arguments.docs:
        write_section(SECTION, found)


if __name__ == "__main__":
    main()
