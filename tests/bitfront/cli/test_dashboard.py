"""`bitfront dashboard`: its best trials are our front, layers have names; a signal to it is one to the server."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import signal
import socket
import sqlite3
import subprocess
import time
import urllib.request
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from wsgiref.util import setup_testing_defaults

import optuna
import psutil
import pytest

from bitfront import verbs
from studies.show.dashboard.completed_answers import CompletedAnswers, parameter_names
from studies.store.store import Store, optuna_storage
from tests.support.command_line import DATABASE, command, copy_finished, environment
from tests.support.servers.databases import free_port

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("optuna_dashboard") is None, reason="optuna-dashboard is not installed"
    ),
    pytest.mark.slow,
]
WAIT_S = 400


@contextmanager
def serving(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process group of its own, nothing of which is left at the end."""
    words = command("dashboard", "--port", port)
    process = subprocess.Popen(words, cwd=folder, env=environment(), start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + WAIT_S
        while not answers(port):
            assert process.poll() is None, f"ended with {process.returncode}"
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.05)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://localhost:{port}/api/studies", timeout=300) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_and_frees_its_port(tmp_path: Path, sent: signal.Signals) -> None:
    copy_finished(tmp_path)
    port = free_port()
    with serving(tmp_path, port) as process:
        assert psutil.Process(process.pid).children(recursive=True) == []
        process.send_signal(sent)
        assert process.wait(WAIT_S) == -sent
        assert not answers(port)
        with pytest.raises(ProcessLookupError):  # nobody is left of its group
            os.killpg(process.pid, 0)


def test_ctrl_c_ends_a_server_that_is_answering(tmp_path: Path) -> None:
    copy_finished(tmp_path)
    port = free_port()
    with serving(tmp_path, port) as process, socket.create_connection(("localhost", port)) as asked:
        asked.sendall(b"POST /api/studies HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n")
        end = time.monotonic() + WAIT_S
        while not taken(asked.getsockname()[1]):
            assert time.monotonic() < end, "the server does not take the request"
        time.sleep(0.2)  # now it waits for the rest
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == -signal.SIGINT


def taken(port: int) -> bool:
    """Whether the server has read what was sent from a port."""
    with open("/proc/net/tcp", encoding="utf-8") as plain, open("/proc/net/tcp6", encoding="utf-8") as newer:
        rows = [line.split() for line in [*plain, *newer]]
    return any(row[2].endswith(f":{port:04X}") and row[4].endswith(":00000000") for row in rows)


# -- what it shows -----------------------------------------------------------------------------------------------------


def asked(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://localhost:{port}/api/{path}", timeout=WAIT_S) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """The port of a dashboard on a finished search, and the URL of its database."""
    folder = tmp_path_factory.mktemp("served")
    copy_finished(folder)
    port = free_port()
    with serving(folder, port):
        yield port, f"sqlite:///{folder / DATABASE}"


def test_its_best_trials_are_our_front_and_picks(served: tuple[int, str]) -> None:
    port, storage = served
    (study,) = asked(port, "studies")["study_summaries"]
    ours = verbs.front("small", storage=storage)
    expected = {point.trial for point in [*ours.points, *ours.picks.values()]}
    whole = asked(port, f"studies/{study['study_id']}")
    newest = asked(port, f"studies/{study['study_id']}?after=3")
    assert len(newest["trials"]) < len(whole["trials"])
    for answer in (whole, newest):
        assert {trial["number"] for trial in answer["best_trials"]} == expected
    marks = {trial["number"]: value_of(trial, "bitfront") for trial in whole["trials"]}
    assert {number for number, mark in marks.items() if mark} == expected
    assert "best" in str(marks[ours.picks["best"].trial]).split(", ")
    assert {"key": "bitfront", "sortable": False} in whole["union_user_attrs"]


def test_trials_that_miss_a_limit_are_none_of_its_best(served: tuple[int, str]) -> None:
    port, storage = served
    points = verbs.front("small", storage=storage).standing
    judged = {point.trial: point.feasible for point in points.points(range(len(points.table)))}
    for trial in asked(port, "studies/1")["trials"]:
        assert all(value <= 0 for value in trial["constraints"]) == judged[trial["number"]]


def value_of(trial: Mapping[str, Any], key: str) -> str | None:
    return next((each["value"].strip('"') for each in trial["user_attrs"] if each["key"] == key), None)


def test_parameters_and_mixes_have_the_names_of_layers(served: tuple[int, str]) -> None:
    port, _ = served
    study = asked(port, "studies/1")
    assert "| g000 | first | 0 is FP32, 1 is INT8 |" in study["note"]["body"]
    by_layers = {value_of(trial, "layers"): trial for trial in study["trials"]}
    fp32 = by_layers["FP32: first, second, fc"]
    assert {param["param_external_value"] for param in fp32["params"]} == {"0"}
    assert value_of(by_layers["INT8: first, second, fc"], "mix") == "all int8"
    layers = {"first", "second", "fc"}
    importances = asked(port, "studies/1/param_importances")["param_importances"]
    assert len(importances) == 2
    shown = [fp32["params"], study["union_search_space"], study["intersection_search_space"], *importances]
    shown += [trial["params"] for trial in study["best_trials"]]
    assert [{row["name"] for row in rows} for rows in shown] == [layers] * len(shown)


def test_layers_of_one_name_and_blocks_keep_their_parameter() -> None:
    rows = [("g000", "conv", "b000"), ("g001", "conv", "b000"), ("g002", "fc", "")]
    groups = [SimpleNamespace(id=key, name=name, block=block) for key, name, block in rows]
    names = {"g000": "conv (g000)", "g001": "conv (g001)", "g002": "fc", "b000": "conv … (b000)"}
    assert parameter_names(groups) == names  # type: ignore[arg-type]


def test_the_front_has_notes(served: tuple[int, str]) -> None:
    port, storage = served
    ours = verbs.front("small", storage=storage)
    shown = {point.trial for point in [*ours.points, *ours.picks.values()]}
    for trial in asked(port, "studies/1")["trials"]:
        body = trial["note"]["body"]
        assert body.startswith("**") == (trial["number"] in shown)
        if trial["number"] in shown:
            assert "| first | " in body


def test_long_attributes_are_broken_into_lines(served: tuple[int, str]) -> None:
    port, _ = served
    with urllib.request.urlopen(f"http://localhost:{port}/dashboard/studies/1") as answer:
        page = answer.read().decode()
    head = page.partition("</head>")[0]
    assert "main p { white-space: normal" in head
    assert "<style>" in head


def test_a_study_of_optuna_alone_is_left_as_it_is(served: tuple[int, str]) -> None:
    port, storage = served
    with contextlib.closing(optuna_storage(storage)) as database:
        other = optuna.create_study(storage=database, study_name="not ours", directions=["minimize", "minimize"])
        other.tell(other.ask(), (1.0, 2.0))
        number = other._study_id
    try:
        answer = asked(port, f"studies/{number}")
        assert [trial["number"] for trial in answer["best_trials"]] == [0]
        assert answer["union_user_attrs"] == []
    finally:
        optuna.delete_study(study_name="not ours", storage=storage)


def test_what_misses_a_limit_by_now_is_no_best_trial_although_optuna_was_told_otherwise(tmp_path: Path) -> None:
    copy_finished(tmp_path)
    url = f"sqlite:///{tmp_path / DATABASE}"
    with Store.open(url, write=False) as store, contextlib.closing(optuna_storage(url)) as database:
        own = optuna.load_study(study_name=optuna.get_all_study_names(database)[0], storage=database)
        fastest = min(own.best_trials, key=lambda trial: trial.values[0])
        with sqlite3.connect(tmp_path / DATABASE) as connection:  # its loss of all samples is known only now
            connection.execute(
                "update bf_evaluation set loss = 0.9, loss_low = 0.8, loss_high = 1.0 where id = "
                "(select evaluation_id from bf_trial where number = ?)",
                [fastest.number],
            )
        application = dashboard_of(database)
        theirs, ours = (ask(each, "/api/studies/1") for each in (application, CompletedAnswers(application, store)))
    numbers = [{trial["number"] for trial in answer["best_trials"]} for answer in (theirs, ours)]
    assert fastest.number in numbers[0] - numbers[1]
    assert ours["trials"][fastest.number]["constraints"] == [1.0]


def dashboard_of(database: optuna.storages.BaseStorage) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what its own imports warn of
        import optuna_dashboard
    return optuna_dashboard.wsgi(database)


def ask(application: Any, path: str) -> Any:
    environ: dict[str, Any] = {"PATH_INFO": path}
    setup_testing_defaults(environ)
    return json.loads(b"".join(application(environ, lambda status, headers, *_: None)))


# -- who may ask -------------------------------------------------------------------------------------------------------


def status_of(port: int, method: str, path: str, **headers: str) -> int:
    connection = http.client.HTTPConnection("localhost", port, timeout=WAIT_S)
    connection.request(method, path, headers=headers)
    return connection.getresponse().status


def test_nothing_can_be_changed_from_anywhere(served: tuple[int, str]) -> None:
    port, _ = served
    (study,) = asked(port, "studies")["study_summaries"]
    path = f"/api/studies/{study['study_id']}"
    for headers in ({}, {"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        for method, place in (("DELETE", path), ("POST", f"{path}/rename"), ("PUT", f"{path}/note")):
            assert status_of(port, method, place, **headers) in (403, 405)
    assert asked(port, "studies")["study_summaries"] == [study]


def test_it_answers_under_the_names_of_this_machine_alone(served: tuple[int, str]) -> None:
    port, _ = served
    for host, status in (("localhost", 200), (f"127.0.0.1:{port}", 200), ("[::1]", 200), ("evil.example", 403)):
        assert status_of(port, "GET", "/api/studies", Host=host) == status


def test_connections_that_say_nothing_hold_up_nobody(served: tuple[int, str]) -> None:
    port, _ = served
    with contextlib.ExitStack() as silent:
        for _ in range(8):
            half = silent.enter_context(socket.create_connection(("localhost", port)))
            half.sendall(b"GET /api/studies HT")
        assert asked(port, "studies")["study_summaries"]
