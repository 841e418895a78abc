"""Search a network from its start, without a budget, by several samplers: `guided`, `tpe` and `nsga2`.

Each search is a study of its own, and goes on where it was stopped. That of `guided` also says how many evaluations a
search makes in an hour, and what each of them spends its time on.

usage: python -m benchmarks.h200.samplers WORK NETWORK [--samplers guided tpe nsga2] [--trials N] [--tiny]
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.h200 import network_folder
from benchmarks.h200.rows import FRESH

STUDIES = {"guided": FRESH, "tpe": "tpe", "nsga2": "nsga2"}
TRIALS = {"guided": 60, "tpe": 200, "nsga2": 200}  # the others get more, to see how many they need


def main(words: Sequence[str] | None = None) -> None:
    parser = network_folder.parser(__doc__)
    parser.add_argument("--samplers", nargs="+", choices=list(STUDIES), default=list(STUDIES))
    parser.add_argument("--trials", type=int, help=f"of each; default {TRIALS}")
    given = parser.parse_args(words)
    network = network_folder.opened(given)
    for sampler in given.samplers:
        network.search(STUDIES[sampler], given.trials or TRIALS[sampler], {}, sampler=sampler)


if __name__ == "__main__":
    main()
