"""Keeping a few requests of every hour in a folder, as fresh data for `bitfront drift` and `bitfront resume --as`.

Every request draws a number, and of each hour the requests with the smallest numbers are kept. So every request of an
hour has the same chance, however many processes share the folder and however often they restart. A file's name has
the hour and the number; nothing else has to be shared.
"""

from __future__ import annotations

import io
import logging
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.forks import renew_in_children
from evaluators.held_folders import held_folder
from search.errors import ConfigError
from studies.guard.samples.shadow import Shadow

_LOG = logging.getLogger("bitfront.guard")
_KEPT = re.compile(r"(\d{10})-([0-9a-f]{13})\.npz")
_WRITING = ".writing-"  # folders in which a process writes a file; what killed processes leave goes with the next one
_DIGITS = 13  # of a request's number, which fit a float exactly

Inputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class _Chosen:
    """A request that may stay, by the name that its file would have."""

    hour: str
    name: str
    inputs: dict[str, NDArray[Any]]


class Reservoir:
    """A folder with some requests of every hour, each in a file that `--data` can read. Any thread may call it.

    Requests are written in a separate thread. A request that cannot be written is left out, and reported once until
    writing works again.

    Args:
        folder: the folder, which is made for this user alone if it is missing. Several processes may share it.
        per_hour: the number of requests to keep of each hour, of all processes together.
        most_bytes: the largest size of all files; the oldest are removed for new ones.
        tell: a function that is called with a sentence about a failure; None to log it as a warning of the logger
            `bitfront.guard`.
        clock: a function that gives the seconds since 1970.
        seed: the seed for choosing requests.

    Raises:
        ConfigError: a number is below 1, or the folder cannot be made.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        per_hour: int = 10,
        most_bytes: int = 64 * 2**20,
        tell: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
        seed: int | None = None,
    ) -> None:
        if per_hour < 1 or most_bytes < 1:
            raise ConfigError(
                f"keeping fresh samples in {folder}: expected per_hour and most_bytes of at least 1, got {per_hour} "
                f"and {most_bytes}. To keep none, give the guard no reservoir."
            )
        self.folder = Path(folder)
        self._make_folder()
        self._per_hour, self._most_bytes = per_hour, most_bytes
        self._tell, self._clock = tell or _LOG.warning, clock
        self._seed = seed
        self._random = random.Random(seed)
        self._hour, self._below = "", 1.0
        self._failing = False
        self._thread: Shadow[_Chosen] = Shadow(per_hour, self._keep, self._tell_failure, lambda: None)
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        """Other numbers than those of the parent and its other children, which share the folder."""
        self._random = random.Random(None if self._seed is None else f"{self._seed} {os.getpid()}")

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"keeping fresh samples in {self.folder}: the folder cannot be made: {error}. Give another folder."
            ) from error

    def offer(self, inputs: Inputs) -> None:
        """Consider one request; copies it where it may stay, and never waits."""
        hour, number = time.strftime("%Y%m%d%H", time.gmtime(max(0.0, self._clock()))), self._random.random()
        if hour != self._hour:
            self._hour, self._below = hour, 1.0
        if number < self._below:
            name = f"{hour}-{int(number * 16**_DIGITS):0{_DIGITS}x}.npz"
            self._thread.offer(_Chosen(hour, name, {key: np.array(array) for key, array in inputs.items()}))

    def drain(self) -> None:
        """Wait until every request that was chosen is written."""
        self._thread.drain()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread; what still waits is left out, and a request that takes longer to write ends by itself."""
        self._thread.close(timeout_s)

    # -- beside the requests ---------------------------------------------------------------------------------------

    def _keep(self, chosen: _Chosen) -> None:
        data = _as_file(chosen.inputs)
        if len(data) > self._most_bytes:
            raise OSError(f"one request takes {len(data)} bytes, and all together may take {self._most_bytes}")
        last = self._last_kept(chosen.hour)
        if last and chosen.name >= last:
            return
        with held_folder(self.folder, _WRITING) as writing:
            part = writing / chosen.name
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            if self._make_room(chosen):
                part.replace(self.folder / chosen.name)
        self._failing = False
        self._last_kept(chosen.hour)

    def _last_kept(self, hour: str) -> str:
        """The name that a new one of a full hour has to come before; empty if the hour is not full yet."""
        names = sorted(name for name in self._names() if name.startswith(f"{hour}-"))
        if len(names) < self._per_hour:
            return ""
        last = names[self._per_hour - 1]
        self._take_below(hour, last)
        return last

    def _take_below(self, hour: str, last: str) -> None:
        """From now on only numbers below that of a name are considered, until the hour is over."""
        if hour == self._hour:
            self._below = min(self._below, int(last[len(hour) + 1 :].removesuffix(".npz"), 16) / 16**_DIGITS)

    def _make_room(self, chosen: _Chosen) -> bool:
        """Whether a new file may stay.

        What is too much of this hour goes, then what lies in the future, then the oldest. Of this hour the largest
        numbers go, the new one too if it is the largest: so every request of the hour has the same chance, however many
        of them there is room for. Nothing is removed before the new file is on the disk, so a full disk loses nothing
        that was kept.
        """
        hour, names = chosen.hour, sorted(self._names())
        for name in [name for name in names if name.startswith(f"{hour}-")][self._per_hour - 1 :]:
            self._remove(name)
            names.remove(name)
        future = [name for name in names if name[: len(hour)] > hour]  # a clock that was wrong
        older = [name for name in names if name[: len(hour)] < hour]
        now = [name for name in reversed(names) if name.startswith(f"{hour}-")]
        sizes = {name: self._size(name) for name in (*future, *older, *now)}
        used = sum(sizes.values()) + self._unfinished_bytes()
        for name, size in sizes.items():
            if used <= self._most_bytes:
                break
            if name in now:
                self._take_below(hour, max(name, chosen.name))
                if name < chosen.name:
                    return False
            self._remove(name)
            used -= size
        return True

    def _unfinished_bytes(self) -> int:
        """Bytes of what processes write just now, this one among them."""
        return sum(self._size(str(path.relative_to(self.folder))) for path in self.folder.glob(f"{_WRITING}*/*.npz"))

    def _names(self) -> list[str]:
        return [name for name in os.listdir(self.folder) if _KEPT.fullmatch(name)]

    def _size(self, name: str) -> int:
        try:
            return (self.folder / name).stat().st_size
        except FileNotFoundError:  # another process was faster
            return 0

    def _remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def _tell_failure(self, error: BaseException) -> None:
        if not self._failing:
            self._tell(
                f"keeping fresh samples in {self.folder}: {error}. Requests are answered as before, and samples are "
                "left out until that is corrected."
            )
        self._failing = True


def _as_file(inputs: Mapping[str, NDArray[Any]]) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **inputs)  # type: ignore[arg-type]
    return file.getvalue()
