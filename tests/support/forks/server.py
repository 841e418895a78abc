"""The process that forks: it has everything imported, and lives as long as the one that asks it."""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import gc
import importlib
import json
import logging
import os
import pkgutil
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import optuna
from typer.main import get_command

import bitfront
import evaluators
import search
import studies
from bitfront.cli.main import program
from evaluators.late_imports import import_late
from studies.store.store import Store, close_optuna, optuna_storage
from tests.support.forks.processes import MESSAGE_BYTES, READY, be_helped
from tests.support.made_once import make_once

LIBRARIES = ("optuna.storages", "psycopg", "pymysql", "typer._adapters", "scipy.optimize")


def serve(line_fd: int) -> str:
    """Fork processes as they are asked for, and tell how they end, until nobody is there to ask.

    Returns:
        The code to run: nothing in this process; in a forked one, which returns from here too, what was asked for.
    """
    line = socket.socket(fileno=line_fd)
    _import_all()
    _warm_up()
    if len(os.listdir("/proc/self/task")) != 1:
        return ""  # forked processes would lack the threads that some library has started
    line.send(READY)
    gc.collect()
    gc.freeze()
    return _fork_for(line) or ""


def _fork_for(line: socket.socket) -> str | None:
    """Fork until nobody is there to ask; the code to run in a forked process, None in this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asks
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}  # process → where to tell of its end
    while True:
        ready, _, _ = select.select([line, awake], [], [])
        if awake in ready:
            os.read(awake, 4096)
            _tell_ends(running)
        if line in ready:
            message, fds, _, _ = socket.recv_fds(line, MESSAGE_BYTES, 20)
            if not message:
                return None
            end_writer, folder, *streams = fds
            pid = os.fork()
            if pid == 0:
                line.detach()
                return _become(json.loads(message), folder, streams)
            running[pid] = end_writer
            for fd in fds[1:]:
                os.close(fd)
            line.send(str(pid).encode())


def _import_all() -> None:
    """What evaluators and commands import sooner or later, but what starts threads: forks would miss those."""
    import_late()
    for room in (search, evaluators, studies, bitfront):
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for name in LIBRARIES:
        with suppress(ModuleNotFoundError):  # a host with a GPU has no drivers of database servers
            importlib.import_module(name)
    make_once()


def _warm_up() -> None:
    """What libraries work out when they are first used, once for all forks: tables of a database, options of verbs."""
    for verb in get_command(program()).commands.values():  # type: ignore[attr-defined]
        for parameter in verb.params:
            parameter.get_runtime_param()
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/warm.db"
        with Store.open(url, create=True) as store:
            store.studies.summaries()
        storage = optuna_storage(url)
        study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler())
        trial = study.ask()
        trial.suggest_int("g000", 0, 1)
        study.tell(trial, 1.0)
        close_optuna(storage)
    logging.disable(logging.NOTSET)


def _tell_ends(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        ended = running.pop(pid)
        with suppress(BrokenPipeError):
            os.write(ended, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(ended)


def _become(request: Mapping[str, Any], folder: int, streams: Sequence[int]) -> str:
    """Be as a process that was started, with its signals, folder, descriptors and variables; the code to run."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["new_session"]:
        os.setsid()
    os.fchdir(folder)
    _place(streams, request["places"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    _open_streams()
    os.sched_setaffinity(0, request["cores"])
    sys.argv[1:] = request["words"]
    if "evaluators.process.server" in request["code"]:
        from tests.support.evaluator_patches.quick import patch_evaluator

        patch_evaluator()
    else:
        asked_of_helper = _fork_helper()
        if asked_of_helper is not None:
            return asked_of_helper
    _be_listed_as([sys.executable, "-c", request["code"], *request["words"]])  # which the helper never was
    return str(request["code"])


def _fork_helper() -> str | None:
    """Fork a process that forks the evaluators and workers of this one, which soon has threads and cannot fork itself.

    Returns:
        None in this process; in those that the helper forks, the code to run. The helper ends with this process.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        be_helped(ours, pid)
        return None
    ours.close()  # by its object, which would close another file of this number when it goes
    _close_all_but({0, 1, 2, theirs.fileno()})
    code = _fork_for(theirs)
    if code is None:
        os._exit(0)
    return code


def _be_listed_as(words: Sequence[str]) -> None:
    """Have lists of processes show these words, by which tests find evaluators and workers."""
    start, end = map(int, Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[45:47])
    text = "\0".join(words).encode(errors="surrogateescape")
    assert len(text) < end - start, "the process that forks was started with too few words"
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _place(streams: Sequence[int], places: Sequence[int]) -> None:
    """Have descriptors where the process expects them, and no others."""
    beyond = max(places) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, beyond) for fd in streams]
    for fd, place in zip(moved, places, strict=True):
        os.dup2(fd, place)
    _close_all_but(set(places))


def _close_all_but(places: Set[int]) -> None:
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - places:
        with suppress(OSError):  # that of the listing itself
            os.close(fd)


def _open_streams() -> None:
    """Standard streams as Python opens them when it starts, of what the descriptors are now."""
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    unbuffered = "PYTHONUNBUFFERED" in os.environ

    def opened(place: int, mode: str, errors: str) -> TextIOWrapper:
        raw = open(place, mode, buffering=0 if unbuffered and place else -1, closefd=False)  # noqa: SIM115
        by_line = place == 2 or os.isatty(place)
        return TextIOWrapper(raw, encoding or None, errors, line_buffering=by_line, write_through=unbuffered)

    sys.stdin = sys.__stdin__ = opened(0, "rb", errors or "strict")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = opened(1, "wb", errors or "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = opened(2, "wb", "backslashreplace")  # type: ignore[misc]
    if "PYTHONFAULTHANDLER" in os.environ:
        faulthandler.enable()
