"""Workers that get hardly any processor time, because there are many of them: they wait, and are not cut off."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from sqlalchemy import event, text

from studies.store.database import connections, database, retries
from studies.store.database.database import close_optuna, optuna_storage, parse_url
from studies.store.database.retries import InterruptedTransactionError, retry
from studies.store.store import Store
from tests.support.study_rows import SERVERS, fresh_url

pytestmark = pytest.mark.slow


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh_url(request.param, tmp_path)


def test_who_opens_tables_that_are_there_does_not_wait_in_line(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Store.open(url, create=True).close()
    close_optuna(optuna_storage(url))
    monkeypatch.setattr(connections, "LOCK_S", 1)
    with connections.one_at_a_time(parse_url(url)):
        close_optuna(optuna_storage(url))


def test_optunas_tables_without_their_version_are_not_taken_for_complete(url: str) -> None:
    Store.open(url, create=True).close()
    storage = optuna_storage(url)
    assert database._has_optunas(parse_url(url))
    with storage.engine.begin() as connection:
        connection.execute(text("delete from alembic_version"))
    assert not database._has_optunas(parse_url(url))
    close_optuna(storage)


def test_reading_many_trials_may_take_longer_than_holding_locks(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Store.open(url, create=True).close()
    storage = optuna_storage(url)
    study = optuna.create_study(storage=storage, study_name="s", directions=["minimize"])
    study.tell(study.ask(), 1.0)
    monkeypatch.setattr(connections, "HOLD_S", 3)
    storage.engine.dispose()  # the next connection has it so
    seen: list[str] = []

    def wait(_: Any, __: Any, statement: str, *___: Any) -> None:
        seen.append(statement)
        if "FROM trials" in statement:
            time.sleep(3.5)

    event.listen(storage.engine, "after_cursor_execute", wait)
    assert len(storage.get_all_trials(1)) == 1
    event.remove(storage.engine, "after_cursor_execute", wait)
    assert sum("FROM trials" in statement for statement in seen) == 1  # the first time, none of it again
    with storage.engine.connect() as connection:
        if "postgresql" in url:
            assert connection.scalar(text("show idle_in_transaction_session_timeout")) == "3s"
        else:
            assert connection.scalar(text("select @@session.wait_timeout")) == 3
    close_optuna(storage)


def test_slow_tries_are_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RETRY_S", 0.02)
    monkeypatch.setattr(retries, "CLEAN_UP_S", 0.01)
    tries = []

    @retry
    def cut() -> None:
        tries.append(time.sleep(0.02))
        raise InterruptedTransactionError("cut off", lost=True)

    with pytest.raises(InterruptedTransactionError):
        cut()
    assert len(tries) == retries.FEWEST
