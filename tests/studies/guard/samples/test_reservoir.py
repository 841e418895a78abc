"""Fresh samples that a guard keeps: how many, fairly chosen, bounded, shared, and never at the cost of a request."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluators.data.opening import open_data
from evaluators.held_folders import held_folder
from search.errors import ConfigError
from search.graph.model import TensorSpec
from studies.guard import Guard, Reservoir
from tests.support.forks.processes import run_python
from tests.support.paths import ROOT

HOUR_S = 3600.0
START_S = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = START_S

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def said() -> list[str]:
    return []


def request(value: float, size: int = 4) -> dict[str, Any]:
    return {"x": np.full((1, size), value, np.float32)}


def fill(reservoir: Reservoir, values: Any, size: int = 4) -> None:
    """Each request is considered once those before it are written, so that nothing depends on the thread's speed."""
    for value in values:
        reservoir.offer(request(value, size))
        reservoir.drain()


def kept(folder: Path) -> list[float]:
    return [float(np.load(path)["x"][0, 0]) for path in sorted(folder.glob("*.npz"))]


@pytest.fixture
def reservoir(tmp_path: Path, clock: Clock, said: list[str]) -> Iterator[Reservoir]:
    with closing(Reservoir(tmp_path / "kept", per_hour=5, clock=clock, seed=1, tell=said.append)) as made:
        yield made


def test_of_every_hour_so_many_requests_stay(reservoir: Reservoir, clock: Clock) -> None:
    fill(reservoir, range(60))
    assert len(kept(reservoir.folder)) == 5
    clock.now += HOUR_S
    fill(reservoir, range(100, 160))
    values = kept(reservoir.folder)
    assert len(values) == 10
    assert sum(value >= 100 for value in values) == 5


def test_an_hour_with_few_requests_keeps_them_all(reservoir: Reservoir) -> None:
    fill(reservoir, [1, 2, 3])
    assert sorted(kept(reservoir.folder)) == [1, 2, 3]


def test_late_requests_of_an_hour_stay_as_often_as_early_ones(tmp_path: Path, clock: Clock) -> None:
    late = 0
    for seed in range(60):
        with closing(Reservoir(tmp_path / str(seed), per_hour=2, clock=clock, seed=seed)) as reservoir:
            fill(reservoir, range(12))
        late += sum(value >= 6 for value in kept(tmp_path / str(seed)))
    assert 40 <= late <= 80  # of 120; the seeds are planted


def test_where_bytes_are_few_every_request_has_the_same_chance_too(tmp_path: Path, clock: Clock) -> None:
    """There is room for 4 of 10: those with the smallest numbers stay, as with room for all."""
    folders = {}
    for name, room in (("wide", 2**20), ("narrow", 4 * 4400 + 2000)):
        folders[name] = tmp_path / name
        with closing(Reservoir(folders[name], per_hour=10, most_bytes=room, clock=clock, seed=3)) as reservoir:
            fill(reservoir, np.random.default_rng(0).standard_normal(300), 1024)
    assert len(kept(folders["wide"])) == 10
    assert len(kept(folders["narrow"])) >= 3
    assert kept(folders["narrow"]) == kept(folders["wide"])[: len(kept(folders["narrow"]))]


def test_two_processes_share_the_folder_and_its_bound(tmp_path: Path, clock: Clock) -> None:
    one, two = (Reservoir(tmp_path / "kept", per_hour=5, clock=clock, seed=seed) for seed in (1, 2))
    with closing(one), closing(two):
        for value in range(40):
            fill(one, [value])
            fill(two, [value + 100])
    values = kept(tmp_path / "kept")
    assert len(values) == 5
    assert {value >= 100 for value in values} == {False, True}


def test_a_restart_goes_on_with_the_hour(tmp_path: Path, clock: Clock) -> None:
    for seed in range(8):
        with closing(Reservoir(tmp_path / "kept", per_hour=5, clock=clock, seed=seed)) as reservoir:
            fill(reservoir, range(10 * seed, 10 * seed + 10))
    values = kept(tmp_path / "kept")
    assert len(values) == 5
    assert min(values) < 70


def test_the_oldest_hours_make_room(tmp_path: Path, clock: Clock) -> None:
    size = 1000
    with closing(Reservoir(tmp_path / "kept", per_hour=3, most_bytes=20_000, clock=clock, seed=1)) as reservoir:
        rng = np.random.default_rng(0)
        for hour in range(6):
            clock.now = START_S + hour * HOUR_S
            for _ in range(3):
                reservoir.offer({"x": rng.normal(size=(1, size)).astype(np.float32)})
                reservoir.drain()
    files = sorted((tmp_path / "kept").glob("*.npz"))
    assert sum(path.stat().st_size for path in files) <= 20_000
    assert len({path.name[:10] for path in files}) < 6
    assert files[-1].name.startswith("2027011513")


def test_a_clock_that_jumped_ahead_and_back_blocks_nothing(tmp_path: Path, clock: Clock) -> None:
    rng = np.random.default_rng(0)
    with closing(Reservoir(tmp_path / "kept", per_hour=3, most_bytes=15_000, clock=clock, seed=1)) as reservoir:
        for jump_s in (1e9, 0.0):
            clock.now = START_S + jump_s
            for _ in range(3):
                reservoir.offer({"x": rng.normal(size=(1, 1000)).astype(np.float32)})
                reservoir.drain()
    now = [path.name for path in (tmp_path / "kept").glob("*.npz") if path.name.startswith("20270115")]
    assert len(now) == 3


def test_a_full_disk_is_told_once_and_what_is_mended_again(
    reservoir: Reservoir, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        fill(reservoir, range(4))
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert "Requests are answered as before" in said[0]
    fill(reservoir, range(4))
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", full)
        fill(reservoir, [9])
    assert len(said) == 2


def test_a_full_disk_takes_nothing_that_was_kept(
    reservoir: Reservoir, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new sample is on the disk before the one whose place it takes goes."""
    fill(reservoir, range(20))
    before = kept(reservoir.folder)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        fill(reservoir, range(100, 200))
    assert kept(reservoir.folder) == before
    assert len(said) == 1  # so some of the hundred were to be kept
    fill(reservoir, range(100, 200))
    assert kept(reservoir.folder) != before


FILLING = """
import json, resource, sys
import numpy as np
from studies.guard import Reservoir
said = []
kept = Reservoir(sys.argv[1], tell=said.append)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
for _ in range(3):
    kept.offer({"image": np.ones((1, 64), np.float32)})
    kept.drain()
left = [path.name for path in kept.folder.iterdir()]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
kept.offer({"image": np.ones((1, 64), np.float32)})
kept.drain()
print(json.dumps([said, left, len(list(kept.folder.glob("*.npz")))]))
"""


def test_files_that_the_system_cuts_off_leave_nothing_behind(tmp_path: Path) -> None:
    """A limit on the size of files cuts writes off as a full disk does, by the system itself."""
    done = run_python([sys.executable, "-c", FILLING, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    said, left, kept = json.loads(done.stdout)
    assert len(said) == 1
    assert "File too large" in said[0]
    assert (left, kept) == ([], 1)


def test_a_request_larger_than_the_bound_is_left_out(tmp_path: Path, clock: Clock, said: list[str]) -> None:
    reservoir = Reservoir(tmp_path / "kept", most_bytes=100, clock=clock, tell=said.append)
    with closing(reservoir):
        fill(reservoir, [1, 2])
    assert kept(tmp_path / "kept") == []
    assert len(said) == 1
    assert "all together may take 100" in said[0]


def test_what_a_killed_process_left_half_written_goes_and_what_another_writes_stays(reservoir: Reservoir) -> None:
    """The folder of a process is locked as long as that lives, whatever its number is in its container."""
    left = reservoir.folder / ".writing-left"
    left.mkdir()
    (left / "1.npz").write_bytes(b"half")
    (reservoir.folder / "notes.txt").write_text("the user's own")
    with held_folder(reservoir.folder, ".writing-") as fresh:
        (fresh / "2.npz").write_bytes(b"half")
        fill(reservoir, [1])
        assert (fresh / "2.npz").exists()
    assert not left.exists()
    assert (reservoir.folder / "notes.txt").exists()
    assert kept(reservoir.folder) == [1.0]


def test_only_this_user_reads_them(reservoir: Reservoir) -> None:
    fill(reservoir, [1])
    (file,) = reservoir.folder.glob("*.npz")
    assert reservoir.folder.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_was_kept_can_be_opened_as_data(reservoir: Reservoir) -> None:
    fill(reservoir, range(3))
    opened = open_data(str(reservoir.folder), [TensorSpec("x", "float32", (1, 4))])
    assert len(opened) == 3
    assert not opened.has_labels


@pytest.mark.parametrize("more", [{"per_hour": 0}, {"most_bytes": 0}])
def test_a_reservoir_of_nothing_is_refused(tmp_path: Path, more: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="give the guard no reservoir"):
        Reservoir(tmp_path / "kept", **more)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="the folder cannot be made"):
        Reservoir(tmp_path / "file" / "kept")


def test_a_guard_keeps_requests_whichever_engine_answers(reservoir: Reservoir) -> None:
    def broken(inputs: Any) -> Any:
        raise RuntimeError("lost")

    def safe(inputs: Any) -> Any:
        return {"y": inputs["x"] * 2}

    with Guard(broken, safe, reservoir=reservoir, tell=lambda text: None) as guard:
        for value in (1, 2):
            assert guard.run(request(value))["y"][0, 0] == 2 * value
            guard.drain()
    assert sorted(kept(reservoir.folder)) == [1, 2]


def test_by_default_a_guard_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Guard(lambda inputs: dict(inputs), lambda inputs: dict(inputs)) as guard:
        guard.run(request(1))
        guard.drain()
    assert list(tmp_path.iterdir()) == []
