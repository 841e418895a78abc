"""The order in which the proof's steps go to GPUs, and that they end in time. The steps only say that they are done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from benchmarks.h200 import lease, needs, planning
from benchmarks.h200.planning import CHAIN, Foretold, Job, Plan
from working import until

DONE = """
import json, sys
from pathlib import Path
from filelock import FileLock
network, step = sys.argv[2:4]
file = Path(sys.argv[1]) / network / "results.json"
file.parent.mkdir(exist_ok=True)
with FileLock(file.with_suffix(".lock")):
    found = json.loads(file.read_text()) if file.exists() else {"steps": {}}
    found["steps"][step] = True
    file.with_suffix(".draft").write_text(json.dumps(found))
    file.with_suffix(".draft").replace(file)
"""


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_LOOK_S", 0.02)
    monkeypatch.setattr(planning, "END_S", 0.0)


class Dry(lease.Lease):
    """A lease whose steps do nothing but say that they are done; `endless` ones go on for ever."""

    endless = ""

    def command(self, job: Job, gpu: int, seconds: float) -> list[str]:
        if job.step == self.endless:
            inner = f"import time; time.sleep(600)  # {self.work}"
            outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], start_new_session=True)"
            return [sys.executable, "-c", outer]
        if job.step == "train":
            made = self.work / job.network
            made.mkdir(parents=True, exist_ok=True)
            return [
                sys.executable,
                "-c",
                f"for n in ('training.json', 'model.onnx'): open({str(made)!r} + '/' + n, 'w')",
            ]
        return [sys.executable, "-c", DONE, str(self.work), job.network, job.step]

    def begun(self) -> list[str]:
        lines = (self.work / "lease.log").read_text().splitlines()
        return [line.split(": ")[1].split(" begins")[0] for line in lines if " begins" in line]


def dry(work: Path, *words: str) -> Dry:
    return Dry(lease._parser().parse_args([str(work), *words]))


def results(work: Path, network: str, **steps: bool) -> None:
    (work / network).mkdir(parents=True, exist_ok=True)
    (work / network / "results.json").write_text(json.dumps({"steps": steps}))


def test_steps_of_a_network_follow_each_other_and_all_are_done(tmp_path: Path) -> None:
    it = dry(tmp_path, "--networks", "a", "--also", "a:repeat", "--gpus", "2")
    it.run(time.time() + 4000)
    begun = it.begun()
    chain = [name.split()[1] for name in begun if name.startswith("a ") and name.split()[1] in CHAIN]
    assert chain == list(CHAIN)
    assert {"small suite", "a repeat", "a mixes"} <= set(begun)
    assert begun.index("a uniform") < begun.index("a repeat")


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    results(tmp_path, "small", suite=True)
    results(tmp_path, "a", uniform=True, search=True)
    for name in ("training.json", "model.onnx"):
        (tmp_path / "a" / name).write_text("")
    it = dry(tmp_path, "--networks", "a", "--also")
    it.run(time.time() + 4000)
    assert it.begun()[:2] == ["a compare", "a export"]


def test_a_step_without_time_for_it_is_not_begun(tmp_path: Path) -> None:
    plan = Plan(tmp_path, ["resnet18"], [])
    assert plan.next_job([], 60) is None
    job = plan.next_job([], needs.least_s("train", "resnet18") + 60)
    assert job is not None
    assert job.name == "resnet18 train"


def test_time_that_is_up_ends_a_step_and_all_that_it_started(tmp_path: Path) -> None:
    it = dry(tmp_path, "--networks", "a", "--also")
    it.endless = "train"
    start = time.time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(needs, "NEEDS_S", {"train": {"": 1.0}})
        it.run(time.time() + 3)
    assert time.time() - start < 600
    until(lambda: not any(str(tmp_path) in " ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])))


def test_mixes_go_to_the_network_whose_rows_take_longest_and_workers_share_them(tmp_path: Path) -> None:
    for network in ("resnet18", "mobilenet_v2"):
        results(tmp_path, network, **dict.fromkeys(CHAIN, True))
        for name in ("training.json", "model.onnx"):
            (tmp_path / network / name).write_text("")
    results(tmp_path, "small", suite=True)
    plan = Plan(tmp_path, ["resnet18", "mobilenet_v2"], [])
    first = plan.next_job([], 1000)
    assert first is not None
    second = plan.next_job([first], 1000)
    assert {job.network for job in (first, second) if job} == {"resnet18", "mobilenet_v2"}
    wanted = plan.mixes_wanted("resnet18")
    (tmp_path / "resnet18" / "mixes.0of1.jsonl").write_text('{"a": "f"}\n' * wanted)
    assert plan.rows_missing("resnet18") == 0
    third = plan.next_job([], 1000)
    assert third is not None
    assert third.network == "mobilenet_v2"
    words = lease.Lease(lease._parser().parse_args([str(tmp_path), "--gpus", "4"])).command(third, 2, 100)
    assert words[words.index("--shard") + 1] == "2/4"


def test_the_forecast_keeps_order_and_time(tmp_path: Path) -> None:
    lines = list(Foretold(tmp_path, ["resnet18", "vit_small"], ["resnet18:repeat"], 3).lines(1500))
    spans: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        if line.startswith("gpu"):
            _, gpu, start, _, end, *_ = line.split()
            spans.setdefault(gpu, []).append((float(start), float(end)))
    assert all(end <= 1500 for each in spans.values() for _, end in each)
    assert all(left[1] <= right[0] for each in spans.values() for left, right in pairwise(each))
    assert set(spans) == {"0", "1", "2"}


def trained(work: Path, network: str, **steps: bool) -> None:
    results(work, network, **steps)
    for name in ("training.json", "model.onnx"):
        (work / network / name).write_text("")


def evaluated(work: Path, network: str, stages: str, count: int, wall_s: float = 4.0) -> None:
    (work / network / stages).write_text(f'{{"wall_s": {wall_s}}}\n' * count + '{"wall_')


def test_gpus_are_held_free_for_a_job_that_wants_them_all(tmp_path: Path) -> None:
    trained(tmp_path, "resnet18", **dict.fromkeys((*CHAIN, "prepare"), True))
    results(tmp_path, "small", suite=True)
    plan = Plan(tmp_path, ["resnet18"], ["resnet18:scaling", "resnet18:repeat", "resnet18:tpe"], gpus=2)
    other, scaling = Job("faults", "small"), Job("scaling", "resnet18", "prepare")
    assert plan.next_job([], 1000) == scaling
    assert plan.next_job([scaling], 1000) is None, "something beside it"
    assert plan.next_job([other], 1000, busy_s=100) is None
    meanwhile = plan.next_job([other], 1000, busy_s=400)
    assert meanwhile is not None
    assert (meanwhile.step, meanwhile.within_s) == ("tpe", 400), "a step that cannot be stopped and gone on with"
    late = plan.next_job([other], needs.needs_s("scaling", "resnet18") + 100, busy_s=200)
    assert late is not None, "held for what has no time left"
    assert late.step == "repeat"


def test_it_is_next_also_while_what_it_needs_is_running(tmp_path: Path) -> None:
    trained(tmp_path, "resnet18", **dict.fromkeys(CHAIN, True))
    results(tmp_path, "small", suite=True)
    plan = Plan(tmp_path, ["resnet18"], ["resnet18:prepare", "resnet18:scaling", "resnet18:repeat"], gpus=2)
    prepare = plan.next_job([], 1000)
    assert prepare == Job("prepare", "resnet18", "train")
    assert plan.next_job([prepare], 1000, busy_s=100) is None


def test_on_one_gpu_it_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    trained(tmp_path, "resnet18", **dict.fromkeys((*CHAIN, "prepare"), True))
    results(tmp_path, "small", suite=True)
    plan = Plan(tmp_path, ["resnet18"], ["resnet18:scaling"])
    found = plan.next_job([], 5000)
    assert found is not None
    assert found.step == "mixes"
    lines = list(Foretold(tmp_path, ["resnet18"], ["resnet18:scaling"], 1).lines(5000))
    assert "not done at the end: resnet18 scaling (needs 2 GPUs)" in lines


def test_the_forecast_lets_nothing_run_beside_it(tmp_path: Path) -> None:
    trained(tmp_path, "resnet18", **dict.fromkeys(CHAIN, True))
    also = ["small:faults", "resnet18:prepare", "resnet18:scaling", "resnet18:tpe"]
    lines = list(Foretold(tmp_path, ["resnet18"], also, 2).lines(3000))
    spans = {line.split("  ")[-1].split(":")[0]: line for line in lines if " to " in line and " s " in line}
    [start, end] = [float(spans["resnet18 scaling"].split()[i]) for i in (1, 3)]
    others = [line.split() for name, line in spans.items() if name != "resnet18 scaling"]
    assert all(float(words[4]) <= start or float(words[2]) >= end for words in others), lines


def test_what_is_evaluated_already_shortens_a_search(tmp_path: Path) -> None:
    trained(tmp_path, "resnet18", uniform=True)
    plan, job = Plan(tmp_path, ["resnet18"], []), Job("tpe", "resnet18")
    whole = plan.takes_s(job)
    evaluated(tmp_path, "resnet18", "tpe.stages.jsonl", 150, wall_s=2.0)
    assert plan.evaluations_done(job) == 150, "half a line is none"
    assert plan.takes_s(job) == needs.GO_ON_S["resnet18"] + 50 * 2.0 + needs.FINALISTS_S < whole


def test_a_step_that_is_wanted_again_is_forgotten(tmp_path: Path) -> None:
    results(tmp_path, "small", suite=True, faults=True)
    lease.forget(tmp_path, "small", "faults")
    assert Plan(tmp_path, [], ["small:faults"]).is_done("suite", "small")
    assert not Plan(tmp_path, [], ["small:faults"]).is_done("faults", "small")
    lease.forget(tmp_path, "unknown", "faults")


class Telling(Dry):
    """Steps that write down what they may use."""

    def command(self, job: Job, gpu: int, seconds: float) -> list[str]:
        done = super().command(job, gpu, seconds)
        tell = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], sorted(os.sched_getaffinity(0)), flush=True)"
        return [*done[:2], f"{tell}\n{done[2]}", *done[3:]]


def test_a_step_gets_its_gpu_and_its_share_of_the_processors(tmp_path: Path) -> None:
    trained(tmp_path, "resnet18", **dict.fromkeys((*CHAIN, "prepare"), True))
    (tmp_path / "resnet18" / "mixes.0of1.jsonl").write_text('{"a": "f"}\n' * 1000)
    words = [str(tmp_path), "--networks", "resnet18", "--gpus", "2", "--also", "resnet18:scaling", "resnet18:repeat"]
    it = Telling(lease._parser().parse_args(words))
    mine = sorted(os.sched_getaffinity(0))
    it.run(time.time() + 4000)
    told = {log.stem.rpartition("-")[0]: log.read_text().strip() for log in (tmp_path / "logs").iterdir()}
    assert told["resnet18-scaling"] == f"0,1 {mine}"
    gpu, _, processors = told["resnet18-repeat"].partition(" ")
    assert gpu in ("0", "1")
    assert len(json.loads(processors)) == max(1, len(mine) // 2)
    assert sorted(os.sched_getaffinity(0)) == mine


def test_a_waiting_call_starts_the_work_once_and_packs_what_there_is(tmp_path: Path) -> None:
    for network in ("a", "small"):
        results(tmp_path / "work", network, **dict.fromkeys((*CHAIN, "suite"), True))
    for name in ("training.json", "model.onnx"):
        (tmp_path / "work" / "a" / name).write_text("")
    (tmp_path / "work" / "a" / "mixes.0of1.jsonl").write_text('{"a": "f"}\n' * 1000)
    script = str(Path(lease.__file__))
    parts = tmp_path / "parts"
    command = [sys.executable, script, str(tmp_path / "work"), "--networks", "a", "--also", "--seconds", "30"]
    done = subprocess.run([*command, "--wait", "20", "--parts", str(parts)], capture_output=True, text=True, check=True)
    assert "a: 1000 mixes; done: train, uniform" in done.stdout.replace("done: uniform", "done: train, uniform")
    assert {path.name for path in parts.iterdir()} == {"light.00", "logs.txt"}
    assert (tmp_path / "work" / "lease.out").read_text() == ""


def test_a_second_one_is_refused(tmp_path: Path) -> None:
    it = dry(tmp_path, "--networks", "a")
    with it.alone() as alone:
        assert alone
        assert it.is_running()
        with pytest.raises(SystemExit, match="another process is at it"):
            lease.main([str(tmp_path), "--networks", "a"])
    assert not it.is_running()


def test_the_background_is_not_told_to_wait() -> None:
    words = ["work", "--gpus", "4", "--wait", "20", "--parts", "out", "--models", "a", "b", "--seconds", "9"]
    assert lease._without_wait(words) == ["work", "--gpus", "4", "--seconds", "9"]
