"""Search with two trees of the source on the same GPUs, and tell where the time of each search went.

    $GPU_PYTHON benchmarks/h200/before_after.py WORK --tree proof/before --label before --seconds 420 --reserve 60
    $GPU_PYTHON benchmarks/h200/before_after.py WORK --tree . --label after --seconds 420 --reserve 15
    $GPU_PYTHON benchmarks/h200/before_after.py WORK --compare before after      # both beside each other

WORK is what `unseen.py` made. Every network is searched on a GPU of its own, all at the same time, by `bitfront search`
of that tree as a user would start it, with a time limit of `--seconds` less `--reserve`; what runs longer than
`--seconds` is interrupted. To --out (default $OUT, else WORK/runs) go the study, the log with the seconds since the
start before each line, and a table of times as JSON. Options that are not known here are passed on to the search.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.h200 import time_table  # noqa: E402

START = "from studies.cli import main; main()"
METRICS = {"silu": "unseen_data:detection_f1", "segmentation": "miou", "resnet18": "top1"}
STUDY = "study"
_LOOK_S = 0.5
_GRACE_S = 12.0  # between Ctrl-C and the end
_READ_S = 60.0


@dataclass
class Run:
    """One search of one tree.

    Attributes:
        gpu: what CUDA may see; empty leaves the environment as it is.
        processors: what the search may run on; None for all.
    """

    work: Path
    tree: Path
    label: str
    network: str
    out: Path
    gpu: str = ""
    processors: frozenset[int] | None = None
    started: float = 0.0
    ended: float = 0.0
    reader: threading.Thread | None = field(default=None, repr=False)
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    @property
    def folder(self) -> Path:
        return self.work / "runs" / f"{self.label}-{self.network}"

    @property
    def database(self) -> Path:
        return self.folder / "study.db"

    @property
    def environment(self) -> dict[str, str]:
        paths = [str(self.tree), os.environ.get("PYTHONPATH", "")]
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
        return {**found, "CUDA_VISIBLE_DEVICES": self.gpu} if self.gpu else found

    def command(self, verb: str, *words: str) -> list[str]:
        return [sys.executable, "-c", START, verb, *words, "--storage", f"sqlite:///{self.database}"]

    def start(self, time_limit_s: float, options: Sequence[str]) -> None:
        """Begin the search, anew, in the background."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        data = {"data": "search", "calibration-data": "calibration", "final-data": "final"}
        words = [w for key, split in data.items() for w in (f"--{key}", f"unseen_data:{self.network}_{split}")]
        words += ["--study", STUDY, "--metric", METRICS[self.network], "--time-limit", f"{time_limit_s:.0f}s", *options]
        command = self.command("search", str(self.work / self.network / "model.onnx"), *words)
        self.started = time.time()
        self.process = subprocess.Popen(
            command,
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=None if self.processors is None else lambda: os.sched_setaffinity(0, self.processors or ()),
        )
        assert self.process.stdout is not None
        self.reader = threading.Thread(target=self._copy, args=(self.process.stdout,), daemon=True)
        self.reader.start()

    def _copy(self, lines: IO[str]) -> None:
        """Every line into the log, behind the seconds since the start."""
        with (self.folder / "log.txt").open("w") as log:
            for line in lines:
                log.write(f"{time.time() - self.started:7.1f}  {line}")
                log.flush()

    def is_over(self) -> bool:
        assert self.process is not None
        if self.process.poll() is None:
            return False
        self.ended = self.ended or time.time()
        return True

    def interrupt(self) -> None:
        """Ctrl-C, and after a while the end."""
        assert self.process is not None
        print(f"{self.label} {self.network}: time is up, interrupting it", flush=True)
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.ended = time.time()

    def read(self, verb: str) -> Any:
        """What `bitfront VERB STUDY --json` of that tree says; its message where it fails."""
        try:
            done = subprocess.run(
                self.command(verb, STUDY, "--json"),
                cwd=self.work,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=_READ_S,
                check=False,
            )
            return json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr.strip()}
        except (subprocess.TimeoutExpired, ValueError) as error:
            return {"error": str(error)}

    def tell(self) -> dict[str, Any]:
        """The time table of the ended search, kept as JSON beside the log and the database."""
        assert self.process is not None
        if self.reader is not None:
            self.reader.join(5)
        found = {"label": self.label, "network": self.network, "exit": self.process.returncode}
        found |= {"command_s": round(self.ended - self.started, 1)}
        if self.database.exists():
            found |= time_table.of_study(self.database, self.started, self.ended)
            found |= {verb: self.read(verb) for verb in ("front", "status")}
        name = f"{self.label}-{self.network}"
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / f"{name}.json").write_text(json.dumps(found, indent=1))
        for file, suffix in ((self.folder / "log.txt", "log.txt"), (self.database, "db")):
            if file.exists():
                shutil.copy(file, self.out / f"{name}.{suffix}")
        return found


def shares(count: int) -> list[frozenset[int] | None]:
    """As many equal shares of the processors, so that searches side by side do not slow each other."""
    if not hasattr(os, "sched_getaffinity") or count < 2:
        return [None] * count
    mine = sorted(os.sched_getaffinity(0))
    each = max(1, len(mine) // count)
    return [frozenset(mine[n * each : (n + 1) * each]) or frozenset(mine) for n in range(count)]


def search_all(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One phase: every network at the same time; their time tables."""
    until = time.time() + arguments.seconds
    work, tree = arguments.work.resolve(), arguments.tree.resolve()
    if not (tree / "studies" / "cli.py").exists():
        raise SystemExit(f"--tree {tree}: there is no studies/cli.py; give the root of a source tree of bitfront")
    options = ["--backend", arguments.backend, "--trials", str(arguments.trials), "--max-drop", arguments.max_drop]
    options += arguments.options
    runs = []
    for number, (network, share) in enumerate(zip(arguments.networks, shares(len(arguments.networks)), strict=True)):
        gpu = "" if arguments.backend == "onnxruntime" else str(number)
        run = Run(work, tree, arguments.label, network, arguments.out.resolve(), gpu, share)
        run.start(arguments.seconds - arguments.reserve, options)
        runs.append(run)
    try:
        while time.time() < until and False in [run.is_over() for run in runs]:
            time.sleep(_LOOK_S)
    finally:
        for run in runs:
            if not run.is_over():
                run.interrupt()
    return [run.tell() for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--tree", type=Path, default=ROOT, help="root of the source tree that searches")
    parser.add_argument("--label", default="after", help="names the run's files")
    parser.add_argument("--networks", nargs="+", choices=list(METRICS), default=["resnet18", "silu"])
    parser.add_argument("--seconds", type=float, default=420, help="after so long a search is interrupted")
    parser.add_argument("--reserve", type=float, default=60, help="how much less the search is told")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--max-drop", default="1%")
    parser.add_argument("--backend", default="tensorrt")
    parser.add_argument("--out", type=Path, help="default: $OUT, else WORK/runs")
    parser.add_argument("--compare", nargs="+", metavar="LABEL", help="search nothing; tell of these runs")
    arguments, arguments.options = parser.parse_known_args()
    arguments.out = arguments.out or Path(os.environ.get("OUT") or arguments.work / "runs")
    if arguments.compare:
        files = [arguments.out / f"{label}-{n}.json" for n in arguments.networks for label in arguments.compare]
        found = [json.loads(file.read_text()) for file in files if file.exists()]
    else:
        found = search_all(arguments)
    print(time_table.text(found))


if __name__ == "__main__":
    main()
