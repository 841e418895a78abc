"""A fuzz of the readers: ONNX files, layer listings, caches, state files, rows of a database, options.

    python -m tests.support.fuzz.readers --seconds 60 [--seed 1]

Each case runs in a process of its own. It may print a message and exit with a code; it may not end in a traceback, take
more than 10 s of processor time or more than 2 GiB of memory. Where one does, it is told with what repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import secrets
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

from typer.testing import CliRunner

from bitfront.cli.main import program_for
from evaluators.calibration import cache
from search.errors import BitfrontError
from studies.guard.reports import TroubleReports
from studies.guard.state_file import StateKeeper
from studies.options.config import option_table
from studies.options.read_options import read_config
from tests.support.command_line import DATABASE, copy_finished, finished, three_layers
from tests.support.fuzz import mutations
from tests.support.networks import residual_cnn
from tests.support.paths import ROOT

MOST_S, MOST_BYTES = 10, 2 << 30
LISTINGS = ("tensorrt_8_6_residual_int8.json", "tensorrt_8_6_transformer_fp16.json")
CACHE = "TRT-8601-EntropyCalibration2\nimage: 3c010a14\nfirst/relu: 3d8f5c29\nlogits: 3e4ccccd\n"
STATE = {"version": 1, "breaker": {}}
READING = (("front",), ("front", "--all"), ("show", "1"), ("status",), ("report", "--out", "report.html"),
           ("front", "--json"), ("front", "--all", "--csv"), ("show", "--pick", "best"), ("sensitivity",))  # fmt: skip


def run_command(*words: str) -> None:
    """Run a command; raises where it would end in a traceback."""
    result = CliRunner().invoke(program_for(list(words)), list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "Traceback (most recent" not in result.output
    assert "\x1b" not in result.output


def read_model(random: Random) -> None:
    proto = random.choice((three_layers, residual_cnn))()
    data = mutations.mutate_model(proto, random)
    Path("m.onnx").write_bytes(mutations.mutate_bytes(data, random) if random.random() < 0.4 else data)
    run_command("inspect", "m.onnx", "--backend", "fake") if random.random() < 0.7 else run_command("inspect", "m.onnx")


def read_listing(random: Random) -> None:
    data = _listing(random.choice(LISTINGS))
    for _ in range(random.choice((1, 3, 10))):
        data = mutations.mutate_json(data, random)
    text = json.dumps(data).encode()
    Path("layers.json").write_bytes(mutations.mutate_bytes(text, random) if random.random() < 0.3 else text)
    run_command("inspect", "layers.json")


def _listing(name: str) -> object:
    return json.loads(json.loads((ROOT / "tests/data" / name).read_text())["inspector"], strict=False)


def read_cache(random: Random) -> None:
    Path("calibration.cache").write_bytes(mutations.mutate_bytes(CACHE.encode(), random))
    _refused(lambda: cache.read_file(Path("calibration.cache")))


def read_state(random: Random) -> None:
    data = mutations.mutate_json(STATE, random)
    Path("state.json").write_bytes(mutations.mutate_bytes(json.dumps(data).encode(), random))
    _refused(lambda: StateKeeper(Path("state.json"), TroubleReports(lambda text: None)))


def read_rows(random: Random) -> None:
    copy_finished(Path.cwd())
    changes = [mutations.damage_row(Path(DATABASE), random) for _ in range(random.choice((1, 1, 1, 4)))]
    print("; ".join(changes))
    verb, *more = random.choice(READING)
    run_command(*random.choice(((verb, "small", *more), ("status",), ("targets",), (verb, "small", *more))))


def read_option(random: Random) -> None:
    names = random.sample(sorted(option_table()), random.choice((1, 1, 2)))
    options = {name: mutations.make_option_text(random) for name in names}
    _refused(lambda: read_config({"model": "m.onnx", "data": "d.npz", **options}))


def _refused(read: Callable[[], object]) -> None:
    """Read something; a refusal is as good as an answer."""
    with contextlib.suppress(BitfrontError, OSError):
        read()


READERS: dict[str, tuple[Callable[[Random], None], int]] = {  # with how often each comes
    "model": (read_model, 4),
    "listing": (read_listing, 3),
    "rows": (read_rows, 5),
    "cache": (read_cache, 1),
    "state": (read_state, 1),
    "option": (read_option, 2),
}


def run_case(seed: int, number: int) -> str:
    """Run one case in a process of its own; what was wrong with it, empty if nothing."""
    random = Random(f"{seed}.{number}")
    kind = random.choices(list(READERS), [often for _, often in READERS.values()])[0]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        child = os.fork()
        if child == 0:
            _be_case(READERS[kind][0], random, folder, said.fileno())
        _, status, used = os.wait4(child, 0)
        said.seek(0)
        why = ""
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            why = f"more than {MOST_S} s of processor time" if name in ("SIGXCPU", "SIGKILL") else f"ended by {name}"
        elif os.WEXITSTATUS(status) != 0:
            why = "a traceback"
        elif used.ru_maxrss > MOST_BYTES >> 10:
            why = f"{used.ru_maxrss >> 10} MiB of memory"
        return why and f"{kind}: {why}\n{said.read()[-3000:]}"


def _be_case(read: Callable[[Random], None], random: Random, folder: str, said: int) -> None:
    try:
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.stdout = sys.stderr = os.fdopen(said, "w", closefd=False)  # where a test runner has put its own
        os.chdir(folder)
        used = int(time.process_time()) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (used + MOST_S, used + MOST_S + 2))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (4 * MOST_BYTES, 4 * MOST_BYTES))
        read(random)
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def fuzz(seed: int, *, seconds: float = float("inf"), cases: int = 1 << 62, first: int = 0) -> list[str]:
    """Run cases of a seed for some time; what was wrong, each with what repeats it."""
    finished()
    end, wrong, number = time.monotonic() + seconds, [], first
    while number < first + cases and time.monotonic() < end:
        if why := run_case(seed, number):
            wrong.append(f"seed {seed}, case {number}: {why}")
            print(f"{wrong[-1]}\nagain: python -m tests.support.fuzz.readers --seed {seed} --case {number}", flush=True)
        number += 1
    print(f"fuzz of the readers: seed {seed}, {number - first} cases, {len(wrong)} wrong", flush=True)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=None, help="a fresh one if it is left out, which is printed")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--case", type=int, default=None, help="one case alone")
    arguments = parser.parse_args()
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    alone = arguments.case is not None
    wrong = fuzz(seed, cases=1, first=arguments.case) if alone else fuzz(seed, seconds=arguments.seconds)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
