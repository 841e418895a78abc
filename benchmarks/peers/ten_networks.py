"""Does `--recover auto` make any network worse? Plain and recovered INT8 of ten networks, on the same samples.

    python -m benchmarks.peers.ten_networks                     # all that is not done
    python -m benchmarks.peers.ten_networks --only unet --again
    python -m benchmarks.peers.ten_networks --write              # write benchmarks/results/recovered_networks.md

Six networks are those of `benchmarks.peers`, four those of `benchmarks.trust`. Results go to
benchmarks/results/recovered_networks.json after every file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import RESULTS, ROOT
from benchmarks.page import table, write_tables
from benchmarks.peers.cases import CASES, OF_TRUST
from benchmarks.peers.run import run_network
from benchmarks.peers.tables import percent, points
from benchmarks.peers.work import Results

STORED = RESULTS / "recovered_networks.json"
ALL = {**CASES, **OF_TRUST}
PLAIN, RECOVERED = "bitfront-none", "bitfront-auto"
_HEAD = ["network", "kind", "metric", "samples", "FP32", "plain loses", "recovered loses", "difference", "kept", ""]


def text(results: Mapping[str, Any]) -> str:
    """A row for every network that is done: points lost, with half the width of the 95 % interval."""
    done = [name for name in ALL if f"{name}/{RECOVERED}" in results["runs"] and name in results["networks"]]
    return table(_HEAD, [_row(name, results) for name in done])


def _row(name: str, results: Mapping[str, Any]) -> list[str]:
    about, runs = results["networks"][name], results["runs"]
    plain, recovered = runs[f"{name}/{PLAIN}"], runs[f"{name}/{RECOVERED}"]
    difference = results["pairs"][name][RECOVERED][PLAIN]
    kept = ", ".join(step["name"] for step in recovered["steps"] if step["kept"]) or "nothing"
    metric = about["metric"].rpartition(":")[2]
    losses = [points(each) for each in (plain, recovered, difference)]
    return [
        name,
        about["kind"],
        metric,
        f"{about['samples']:,}",
        percent(about["value"]),
        *losses,
        kept,
        _verdict(difference),
    ]


def _verdict(difference: Mapping[str, float]) -> str:
    """What the interval says of the loss of recovered INT8 over that of plain INT8."""
    if difference["low"] > 0:
        return "worse"
    return "better" if difference["high"] < 0 else "no difference that can be told"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(ALL), default=list(ALL), metavar="NETWORK")
    parser.add_argument("--work", type=Path, default=ROOT / "proof" / "recovered", help="folder of engines and scores")
    parser.add_argument("--out", type=Path, default=STORED)
    parser.add_argument("--again", action="store_true", help="also what is done")
    parser.add_argument("--write", action="store_true", help="write only benchmarks/results/recovered_networks.md")
    arguments = parser.parse_args()
    for name in () if arguments.write else arguments.only:
        run_network(ALL[name], (PLAIN, RECOVERED), arguments)
    found = text(Results(arguments.out).read())
    sys.stdout.write(f"{found}\n")
    if arguments.write:
        command = "python -m benchmarks.peers.ten_networks --write"
        write_tables("recovered_networks", "Does recovery make any network worse?", command, found)


if __name__ == "__main__":
    main()
