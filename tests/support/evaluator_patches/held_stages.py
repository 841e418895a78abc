"""Evaluations that stay in a stage while the folder in `BITFRONT_TEST_HELD` has a file of its name.

So a test that kills a process in a stage is not too late, however long its own process has to wait for its turn.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from evaluators.process.tasks.open_model import OpenModel
from search.values import Stage

FOLDER = Path(os.environ["BITFRONT_TEST_HELD"])
tell_stage = OpenModel.tell_stage


def tell_and_wait(opened: OpenModel, stage: Stage) -> None:
    tell_stage(opened, stage)
    while (FOLDER / stage.value).exists():
        time.sleep(0.01)


OpenModel.tell_stage = tell_and_wait  # type: ignore[method-assign]
