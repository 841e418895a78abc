"""`final_samples.json`: which samples of the data the figures of an export are of."""

from __future__ import annotations

import json
from pathlib import Path

from search.references import absolute_reference
from studies.export.readme import FINAL_SAMPLES
from studies.run.work import Work


def write_final_samples(folder: Path, work: Work) -> None:
    """Write the data's place and the rows of the final samples there.

    Raises:
        EvaluatorError: the evaluator process dies over it.
    """
    config = work.problem.config
    source = config.final_data or config.data
    data = str(Path(source).absolute()) if Path(source).exists() else absolute_reference(source)
    rows = work.bench.keeper.ask("finding the final samples").scores.final_rows()
    (folder / FINAL_SAMPLES).write_text(json.dumps({"data": data, "rows": rows.tolist()}) + "\n", encoding="utf-8")
