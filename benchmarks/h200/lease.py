"""The whole proof over several GPUs within a time limit: whatever is most wanted goes to the next GPU that is free.

    python benchmarks/h200/lease.py WORK --gpus 4 --seconds 1350
    python benchmarks/h200/lease.py WORK --dry-run                   # the order, and when each step would run

For every network: train, uniform, search, compare, export, and the tests that need a GPU; then faults, threads,
throughput, scaling, the other samplers and repeat where they are wanted; what time is left goes into mixes, which every
GPU evaluates its own share of. Steps that are done are left out, so a later call goes on, with more GPUs or fewer;
`--again NETWORK:STEP` does one once more. Scaling wants all GPUs: they are held free for it when its turn comes.

On machines that only run commands of a few minutes, call this again and again with `--wait`: the work goes on in the
background until its end time, each call waits so long, tells how far it is, and packs the results.

    python benchmarks/h200/lease.py WORK --seconds 1350 --wait 560 --parts OUT --models vit_small

The standard library alone: `--python` runs the steps (TensorRT), `--train-python` the training (PyTorch).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.h200 import packing  # noqa: E402
from benchmarks.h200.planning import CHAIN, END_S, FAULTS_IN, Foretold, Job, Plan  # noqa: E402
from benchmarks.h200.wanted import trials_of  # noqa: E402

NETWORKS = ("resnet18", "mobilenet_v2", "vit_small")
ALSO = (
    "small:faults",
    "resnet18:threads",
    "resnet18:throughput",
    "resnet18:quick",
    "resnet18:prepare",
    "resnet18:scaling",
    "resnet18:tpe",
    "resnet18:nsga2",
    "mobilenet_v2:throughput",
    "mobilenet_v2:tpe",
    "resnet18:mixes",
    "resnet18:repeat",
    "mobilenet_v2:repeat",
)
_LOOK_S = 1.0
_TRAINING = ("--lose", "--glints", "--images")


@dataclass
class Running:
    job: Job
    process: subprocess.Popen[bytes]
    gpu: int
    until: float
    started: float = field(default_factory=time.time)


class Lease:
    """Work folder, commands, and what is known to be done.

    Args:
        arguments: of the command line.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.work: Path = arguments.work.absolute()
        self.plan = Plan(self.work, arguments.networks, arguments.also, arguments.gpus, arguments.chain)

    # -- doing it ----------------------------------------------------------------------------------------------------

    def run(self, deadline: float) -> None:
        """Keep every GPU busy until all is done or time is up."""
        running: list[Running] = []
        try:
            while time.time() < deadline:
                running[:] = [each for each in running if not self._ended(each)]
                for gpu in sorted(set(range(self.arguments.gpus)) - {each.gpu for each in running}):
                    job = self.plan.next_job([each.job for each in running], deadline - time.time(), _busy_s(running))
                    if job is not None:
                        running.append(self._start(job, gpu, deadline))
                if not running:
                    break
                time.sleep(_LOOK_S)
        finally:
            for each in running:
                _end(each.process)
                self.log(f"gpu {each.gpu}: {each.job.name} was ended")

    def _start(self, job: Job, gpu: int, deadline: float) -> Running:
        left_s = min(deadline - time.time(), job.within_s or float("inf"))
        needs_s = min(self.plan.takes_s(job), job.within_s or float("inf"))
        self.log(f"gpu {gpu}: {job.name} begins, {left_s:.0f} s left, it needs {needs_s:.0f} s")
        logs = self.work / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        gpus = ",".join(map(str, range(self.arguments.gpus))) if job.alone else str(gpu)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus, "PYTHONUNBUFFERED": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        share = None if job.alone else self._processors(gpu)
        with (logs / f"{job.network}-{job.step}-{gpu}.log").open("ab") as log, _bound(share):
            process = subprocess.Popen(
                self.command(job, gpu, left_s - END_S),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
            )
        return Running(job, process, gpu, time.time() + needs_s)

    def _processors(self, gpu: int) -> set[int]:
        """A GPU's equal share of the processors: TensorRT's builder uses all that its process may run on."""
        usable = sorted(os.sched_getaffinity(0))
        each = max(1, len(usable) // self.arguments.gpus)
        return set(usable[gpu * each : (gpu + 1) * each]) or set(usable)

    def command(self, job: Job, gpu: int, seconds: float) -> list[str]:
        if job.step == "train":
            training = [*self.arguments.train_python, str(HERE / "train.py"), str(self.work), "--networks", job.network]
            given = [(name, getattr(self.arguments, name[2:])) for name in _TRAINING]
            return training + [text for name, value in given if value is not None for text in (name, str(value))]
        steps = [*self.arguments.python, str(HERE / "proof.py"), str(self.work), job.network, job.step]
        steps += ["--minutes", f"{max(0.0, seconds) / 60:.3f}", *self.arguments.pass_on]
        if trials_of(job.network, job.step):
            steps += ["--trials", str(trials_of(job.network, job.step))]
        if job.step == "mixes":
            steps += ["--mixes", str(self.plan.mixes_wanted(job.network)), "--shard", f"{gpu}/{self.arguments.gpus}"]
        return steps

    def _ended(self, each: Running) -> bool:
        if each.process.poll() is None:
            return False
        took_s, code = time.time() - each.started, each.process.returncode
        done = self.plan.is_done(each.job.step, each.job.network)
        how = "is done" if done else "has to go on" if code == 0 else f"failed with exit code {code}"
        self.log(f"gpu {each.gpu}: {each.job.name} {how} after {took_s:.0f} s")
        if not done and (code or each.job.within_s is None):  # tried again by the next call
            self.plan.failed.add(each.job)
        return True

    def log(self, text: str) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        with (self.work / "lease.log").open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    # -- in the background -------------------------------------------------------------------------------------------

    @contextmanager
    def alone(self, patience_s: float = 3.0) -> Iterator[bool]:
        """Whether no other process runs this work folder; held meanwhile. One that only looks is waited for."""
        self.work.mkdir(parents=True, exist_ok=True)
        until = time.time() + patience_s
        with (self.work / "lease.lock").open("w") as file:
            while not (held := _lock(file)) and time.time() < until:
                time.sleep(0.05)
            yield held

    def is_running(self) -> bool:
        with self.alone(patience_s=0) as alone:
            return not alone

    def deadline(self) -> float:
        """When all has to end, from the first call on; a new one once that is over."""
        file = self.work / "lease.json"
        if file.exists() and (self.is_running() or json.loads(file.read_text())["deadline"] > time.time()):
            return float(json.loads(file.read_text())["deadline"])
        self.work.mkdir(parents=True, exist_ok=True)
        end = time.time() + float(self.arguments.seconds)
        file.write_text(json.dumps({"deadline": end}))
        return float(end)

    def wait(self, deadline: float, seconds: float) -> None:
        """Start the work in the background where it is not running, and wait."""
        until = min(time.time() + seconds, deadline + 2 * END_S)
        if not self.is_running() and time.time() < deadline:
            command = [sys.executable, str(HERE / "lease.py"), *_without_wait(sys.argv[1:]), "--background"]
            with (self.work / "lease.out").open("ab") as out:
                begun = subprocess.Popen(
                    command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
                )
            while not self.is_running() and begun.poll() is None:
                time.sleep(_LOOK_S)
        while time.time() < until and self.is_running():
            time.sleep(_LOOK_S)

    # -- what is told and kept ---------------------------------------------------------------------------------------

    def told(self) -> str:
        lines = (self.work / "lease.log").read_text().splitlines()[-40:] if (self.work / "lease.log").exists() else []
        for network in [*self.arguments.networks, FAULTS_IN]:
            steps = self.plan.results(network).get("steps", {})
            done = ", ".join(step for step, whole in steps.items() if whole is True)
            lines.append(f"{network}: {self.plan.mixes_done(network)} mixes; done: {done or 'nothing yet'}")
        return "\n".join(lines)

    def keep(self, parts: Path, models: Sequence[str]) -> None:
        """Pack results, studies and logs of all networks, and the networks that are named as well."""
        packing.pack(self.work, [*self.arguments.networks, FAULTS_IN], parts, "light", models=False)
        for network in models:
            packing.pack(self.work, [network], parts, network)
        with (parts / "logs.txt").open("w") as sink:
            for log in [self.work / "lease.log", *sorted((self.work / "logs").glob("*.log"))]:
                if log.exists():
                    sink.write(f"\n=== {log.name}\n{log.read_text(errors='replace')[-60_000:]}")


@contextmanager
def _bound(processors: set[int] | None) -> Iterator[None]:
    """What is started meanwhile may run on these processors alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _busy_s(running: Sequence[Running]) -> float:
    return max((each.until - time.time() for each in running), default=0.0)


def _lock(file: IO[str]) -> bool:
    """The kernel frees it when the process ends, however it ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """The step and all that it started: evaluator processes have sessions of their own.

    They are stopped first, until there are no others: one that runs may start another while it is looked for.
    """
    found: list[int] = []
    while new := [pid for pid in (process.pid, *_descendants(process.pid)) if pid not in found]:
        _signal(new, signal.SIGSTOP)
        found += new
    _signal(found, signal.SIGKILL)
    process.wait()


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def forget(work: Path, network: str, step: str) -> None:
    """Take back that a step was done; what it found stays until it finds something new."""
    file = work / network / "results.json"
    if file.exists():
        found = json.loads(file.read_text())
        found.get("steps", {}).pop(step, None)
        file.write_text(json.dumps(found, indent=1))


def _without_wait(words: Sequence[str]) -> list[str]:
    """The same command without what only a waiting call is told."""
    kept, skip = [], False
    for word in words:
        skip = skip and not word.startswith("--")
        if word in ("--wait", "--parts", "--models", "--again"):
            skip = True
        elif not skip:
            kept.append(word)
    return kept


def main(words: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(words)
    for text in arguments.again:
        forget(arguments.work, *text.split(":"))
    if arguments.dry_run:
        plan = Foretold(arguments.work, arguments.networks, arguments.also, arguments.gpus, arguments.chain)
        print("\n".join(plan.lines(arguments.seconds)))
        return
    lease = Lease(arguments)
    deadline = lease.deadline()
    if arguments.wait is not None:
        lease.wait(deadline, arguments.wait)
    else:
        with lease.alone() as alone:
            if not alone:
                sys.exit(f"{lease.work}: another process is at it; wait for it, or call this with --wait")
            lease.run(deadline)
    if not arguments.background:
        print(lease.told(), flush=True)
        if arguments.parts:
            lease.keep(arguments.parts, arguments.models)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder of the networks, their studies and engines")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=7200, help="from the first call to the end of all work")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--chain", nargs="*", choices=CHAIN, default=list(CHAIN), help="which of every network's steps")
    parser.add_argument("--also", nargs="*", default=list(ALSO), metavar="NETWORK:STEP", help="further steps")
    parser.add_argument("--python", type=str.split, default=[sys.executable], help="command that has TensorRT")
    parser.add_argument("--train-python", type=str.split, default=[sys.executable], help="command that has PyTorch")
    parser.add_argument("--lose", type=float, help="of train.py")
    parser.add_argument("--glints", type=float, help="of train.py")
    parser.add_argument("--images", type=int, help="of train.py")
    parser.add_argument("--pass-on", type=str.split, default=[], help="further options of proof.py, as one text")
    parser.add_argument("--wait", type=float, help="seconds to wait while the work goes on in the background")
    parser.add_argument("--parts", type=Path, help="folder for results, studies and logs, packed")
    parser.add_argument("--models", nargs="*", default=[], help="networks to pack themselves as well")
    parser.add_argument("--again", nargs="*", default=[], metavar="NETWORK:STEP", help="forget that these were done")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--background", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
