"""Ending by a limit of its own: whether other workers go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from studies.crew import SharedCrew
from studies.run.finish import Finish
from studies.store.store import Store
from tests.support.study_rows import STUDY, TARGET, fresh_url

pytestmark = pytest.mark.slow

LEASE_S = 3.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(fresh_url("sqlite", tmp_path), create=True) as store:
        yield store


@pytest.fixture
def lease(store: Store) -> Iterator[SharedCrew]:
    target = store.targets.add(store.studies.create(STUDY), TARGET, "demo/cpu")
    with SharedCrew(store, target, lease_s=LEASE_S, state="finishing") as lease:
        yield lease


def others_go_on(lease: SharedCrew) -> bool:
    work: Any = SimpleNamespace(crew=lease)
    return Finish(work, cast(Any, None), cast(Any, None), cast(Any, None))._others_go_on()


def join(store: Store, lease: SharedCrew) -> str:
    return store.workers.join(lease._target, host="h", device="CPU", pid=2, state="searching")


def test_a_worker_that_was_lost_just_before_does_not_go_on(store: Store, lease: SharedCrew) -> None:
    join(store, lease)
    assert not others_go_on(lease)


def test_one_that_says_that_it_is_alive_goes_on(store: Store, lease: SharedCrew) -> None:
    other, over = join(store, lease), threading.Event()

    def live() -> None:
        while not over.wait(LEASE_S / 10):
            store.workers.beat(other)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        assert others_go_on(lease)
    finally:
        over.set()
        thread.join()


def test_a_worker_whose_own_signs_of_life_came_late_waits_until_it_knows(
    store: Store, lease: SharedCrew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the server was away for a moment: nobody could say that he was alive, and one was lost."""
    join(store, lease)
    beat, back = store.workers.beat, threading.Event()

    def late(name: str, spent: Mapping[str, float] | None = None) -> None:
        back.wait(300)
        beat(name, spent)

    monkeypatch.setattr(store.workers, "beat", late)
    threading.Timer(0.95 * LEASE_S, back.set).start()
    assert not others_go_on(lease)
