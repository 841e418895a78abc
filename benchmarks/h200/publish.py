"""Collect what was measured of a network, and write the tables and the picture of docs/benchmarks-tables.md.

Results go to benchmarks/results/h200_NAME.json, every evaluation to benchmarks/data/NAME.json. Without networks only
the tables and the picture are written anew, from what is stored.

usage: python -m benchmarks.h200.publish [WORK NETWORK] [--name NAME] [--into FOLDER]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from benchmarks import DOCS, ROOT
from benchmarks.h200 import fronts, fronts_figure, mixes, rows, tables, timing
from benchmarks.h200.network_folder import BUDGETED, NetworkFolder
from benchmarks.page import write_section


def collect(network: NetworkFolder, name: str, into: Path) -> None:
    """Results and every evaluation of a network, as files that are kept with the source."""
    found = {**network.recorded(), "network": name, "date": datetime.now(timezone.utc).date().isoformat()}
    training = network.path / "training.json"
    if training.exists():
        found["training"] = json.loads(training.read_text())
    if network.database(BUDGETED).exists():
        searched = timing.throughput(network, BUDGETED)
        found["search"] = {**found.get("search", {}), "total": searched["evaluations"], **searched["shares"]}
    if network.database(rows.FRESH).exists():
        found["throughput"] = timing.throughput(network, rows.FRESH)
    every = rows.every(network)
    if every:
        rows.dump(network, every, into / "data" / f"{name}.json")
        names = json.loads((into / "data" / f"{name}.json").read_text())["groups"]
        found |= {"mixes": mixes.obedience(rows.of_mixes(network)), "obedience": mixes.obedience(every, names)}
    (into / "results").mkdir(parents=True, exist_ok=True)
    (into / "results" / f"h200_{name}.json").write_text(json.dumps(found, indent=1))
    print(f"{len(every)} evaluations of {name}")


def write_page(into: Path, page: Path) -> None:
    """The tables, the table of searches side by side with its JSON, and their picture beside the page."""
    write_section("h200", tables.text(tables.read(into / "results")), page)
    found_rows = fronts.read(into / "data", list(tables.NAMES))
    judged = {name: fronts.judged(name, of) for name, of in found_rows.items()}
    found = {name: each for name, each in judged.items() if len(each["searches"]) > 1}
    (into / "results" / "fronts_h200.json").write_text(json.dumps(found, indent=1) + "\n")
    page.with_name("fronts.svg").write_text(fronts_figure.svg(found, found_rows, tables.NAMES))
    write_section("h200 fronts", fronts.text(found, tables.NAMES), page)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, nargs="?", help="folder of the networks, their studies and engines")
    parser.add_argument("network", nargs="?", help="to collect; without one, what is stored is shown")
    parser.add_argument("--name", help="store it under this name, beside an earlier training's; default: NETWORK")
    parser.add_argument("--into", type=Path, default=ROOT / "benchmarks", help="where results/ and data/ are")
    parser.add_argument("--page", type=Path, default=DOCS, help="with the marks of the tables")
    given = parser.parse_args(words)
    if given.network is not None:
        collect(NetworkFolder((given.work / given.network).absolute()), given.name or given.network, given.into)
    write_page(given.into, given.page)


if __name__ == "__main__":
    main()
