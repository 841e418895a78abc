"""Steps `tpe` and `nsga2`: the same network searched by other samplers, to hold against the guided one."""

from __future__ import annotations

import time
from dataclasses import replace

from benchmarks.h200.setting import Setting, say
from benchmarks.h200.timing import FINISH_S, Stopwatch, stages_of
from studies import commands
from studies.store import Store


def sampled(setting: Setting, sampler: str, trials: int) -> bool:
    """Search without a budget in a study of the sampler's own; False when time was up, and the next call goes on."""
    setting.open_data()
    own = replace(setting, apart=sampler)
    limit_s = max(30.0, setting.left_s() - FINISH_S)
    options = {"trials": str(trials), "time-limit": f"{limit_s:.0f}s"}
    watch, start = Stopwatch(stages_of(own)), time.monotonic()
    if _can_go_on(own):
        found = commands.resume(own.study, {**options, "model": str(own.folder / "model.onnx")}, own.storage, watch)
    else:
        found = commands.search(own.search_options(**options, sampler=sampler), watch)
    done = len(found.standing.table)
    run = {"evaluations": len(watch.walls), "wall_s": sum(watch.walls), "command_s": time.monotonic() - start}
    setting.record(sampler, {"evaluations": done, "runs": [*setting.result(sampler).get("runs", []), run]})
    say(f"{sampler}: {found.reason}; {done} in all")
    return done >= trials


def _can_go_on(setting: Setting) -> bool:
    if not commands.exists(setting.study, setting.storage):
        return False
    with Store.open(setting.storage, write=False) as store:
        return bool(store.targets(store.study(setting.study).id))
