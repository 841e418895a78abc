"""Steps `tpe` and `nsga2`: the same network searched by other samplers, to hold against the guided one."""

from __future__ import annotations

import time
from dataclasses import replace

from benchmarks.h200.setting import Setting, say
from benchmarks.h200.timing import Stopwatch, can_go_on, stages_of
from studies.verbs import commands

_FINISH_S = 45.0  # of these searches finalists are few, and what is not confirmed is lost to nobody


def sampled(setting: Setting, sampler: str, trials: int) -> bool:
    """Search without a budget in a study of the sampler's own; False when time was up, and the next call goes on."""
    setting.open_data()
    own = replace(setting, apart=sampler)
    limit_s = max(30.0, setting.left_s() - _FINISH_S)
    options = {"trials": str(trials), "time-limit": f"{limit_s:.0f}s"}
    watch, start = Stopwatch(stages_of(own)), time.monotonic()
    if can_go_on(own):
        found = commands.resume(own.study, {**options, "model": str(own.folder / "model.onnx")}, own.storage, watch)
    else:
        found = commands.search(own.search_options(**options, sampler=sampler), watch)
    done = len(found.standing.table)
    run = {"evaluations": len(watch.walls), "wall_s": sum(watch.walls), "command_s": time.monotonic() - start}
    setting.record(sampler, {"evaluations": done, "runs": [*setting.result(sampler).get("runs", []), run]})
    say(f"{sampler}: {found.reason}; {done} in all")
    return done >= trials
