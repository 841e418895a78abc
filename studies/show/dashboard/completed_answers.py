"""A layer around optuna-dashboard's application that adds bitfront's front to its answers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from studies.judging.standing import Standing, front_points
from studies.judging.study_lookup import standing_of
from studies.store.records import OK, GroupRecord
from studies.store.store import Store

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
# Without it a long attribute makes the page of a trial thousands of pixels wide, and a figure's tools lie on its text.
_STYLE = b"""<style>
main p { white-space: normal; overflow-wrap: anywhere }
.js-plotly-plot:not(:hover) .modebar { visibility: hidden }
</style>"""
_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_PAGE, _STUDY = re.compile(r"/dashboard"), re.compile(r"/api/studies/(\d+)(?:/param_importances)?/?$")


class CompletedAnswers:
    """A WSGI application. Its `best_trials` are the front and the picks by today's word, not the least values alone.

    optuna-dashboard knows no limits, no noise, and nothing of what was measured again. Parameters have the names of
    their layers here alone: in the database they keep their ids, which samplers and digests go by. Studies of Optuna
    that are not bitfront's are left as they are.
    """

    def __init__(self, application: Application, store: Store) -> None:
        self._application = application
        self._store = store

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        refusal = _refuse(environ)
        if refusal is not None:
            status, reason = refusal
            start_response(status, [("Content-Type", "application/json")])
            return [json.dumps({"reason": reason}).encode()]
        page, study = (kind.match(environ["PATH_INFO"]) for kind in (_PAGE, _STUDY))
        if environ["REQUEST_METHOD"] != "GET" or not (page or study):
            return self._application(environ, start_response)
        status, headers, body = _ask(self._application, environ)
        if status.startswith("200"):
            body = (
                body.replace(b"</head>", _STYLE + b"</head>", 1)
                if page
                else json.dumps(self._complete(json.loads(body), environ, int(study[1]) if study else 0)).encode()
            )
            headers = [pair for pair in headers if pair[0].lower() != "content-length"]
            headers.append(("Content-Length", str(len(body))))
        start_response(status, headers)
        return [body]

    def _complete(self, answer: dict[str, Any], environ: Mapping[str, Any], number: int) -> dict[str, Any]:
        marks = self._marks(answer["name"] if "name" in answer else self._name(environ, number))
        if marks is None:
            return answer
        if "trials" not in answer:
            return {key: [marks.name(rows) for rows in value] for key, value in answer.items()}
        trials = {trial["number"]: trial for trial in answer["trials"]}
        if not marks.front.keys() <= trials.keys():  # only the newest trials were asked for
            _, _, whole = _ask(self._application, {**environ, "QUERY_STRING": ""})
            trials = {trial["number"]: trial for trial in json.loads(whole)["trials"]}
        marks.link(list(trials))
        answer["trials"] = [marks.complete(trial) for trial in answer["trials"]]
        answer["best_trials"] = [marks.complete(trials[number]) for number in marks.front if number in trials]
        answer["union_user_attrs"] = [*answer["union_user_attrs"], {"key": TrialMarks.KEY, "sortable": False}]
        spaces = {key: marks.name(answer[key]) for key in ("intersection_search_space", "union_search_space")}
        return {**answer, **spaces}

    def _name(self, environ: Mapping[str, Any], number: int) -> str:
        """The name of an Optuna study."""
        _, _, body = _ask(self._application, {**environ, "PATH_INFO": "/api/studies", "QUERY_STRING": ""})
        return next(str(row["study_name"]) for row in json.loads(body)["study_summaries"] if row["study_id"] == number)

    def _marks(self, optuna_study: str) -> TrialMarks | None:
        """The marks of the target whose trials an Optuna study has; None if bitfront did not make that study."""
        for summary in self._store.studies.summaries():
            study = self._store.studies.load(summary.name).id
            for place, target in enumerate(self._store.targets.of_study(study), 1):
                if target.optuna_study == optuna_study:
                    names = parameter_names(self._store.studies.groups(study))
                    return TrialMarks(self._store, standing_of(self._store, summary.name, wanted=str(place)), names)
        return None


def parameter_names(groups: Iterable[GroupRecord]) -> dict[str, str]:
    """Parameter → name of its layer, or of the first of its block; with the parameter where a name is not alone."""
    rows = list(groups)
    often = Counter(row.name for row in rows)
    names = {row.id: row.name if often[row.name] == 1 else f"{row.name} ({row.id})" for row in rows}
    for row in rows:
        if row.block:
            names.setdefault(row.block, f"{row.name} … ({row.block})")
    return names


def _refuse(environ: Mapping[str, Any]) -> tuple[str, str] | None:
    """Status and reason where a request is not answered; None for one that is.

    Pages of other sites reach a server of this machine through the user's browser, under names of their own.
    """
    host = str(environ.get("HTTP_HOST", ""))
    if _HOST.fullmatch(host) is None:
        return "403 Forbidden", f"this server answers as localhost and 127.0.0.1 alone, not as {host[:100]!r}"
    if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
        return "405 Method Not Allowed", "bitfront dashboard only shows studies; to change one, use bitfront itself"
    return None


def _ask(application: Application, environ: Mapping[str, Any]) -> tuple[str, Sequence[tuple[str, str]], bytes]:
    """What an application answers: status, headers, and the whole body."""
    said: list[tuple[str, Sequence[tuple[str, str]]]] = []
    body = b"".join(application(dict(environ), lambda status, headers, *_: said.append((status, headers))))
    return *said[0], body


class TrialMarks:
    """Marks for the trials of one target.

    Attributes:
        front: number of the trial → what is said of it, of the front and the picks, the fastest first.
    """

    KEY: ClassVar[str] = "bitfront"

    def __init__(self, store: Store, now: Standing, names: Mapping[str, str]) -> None:
        self._store = store
        self._now = now
        self._names = names
        self.front: Mapping[int, str] = {
            point.trial: ", ".join([*(["front"] if point.on_front else []), *point.picks])
            for point in front_points(now)
            if point.trial >= 0
        }
        self._rows = {int(number): row for row, number in enumerate(now.table.id)}
        self._links: Mapping[int, tuple[int, str]] = {}

    def link(self, trials: Sequence[int]) -> None:
        """Find the evaluations that answer trials, of which several may have the same."""
        self._links = self._store.trials.links(self._now.target.id, *trials)

    def complete(self, trial: Mapping[str, Any]) -> dict[str, Any]:
        """A trial as optuna-dashboard gives it, with its mark and with whether it keeps the limits.

        optuna-dashboard draws a trial in grey where one of its `constraints` is above 0.
        """
        number, status = self._links.get(trial["number"], (0, ""))
        mark = self.front.get(trial["number"], "")
        attributes = [*trial["user_attrs"], {"key": self.KEY, "value": mark}] if mark else trial["user_attrs"]
        row = self._rows.get(number) if status == OK else None
        constraints = trial["constraints"] if row is None else [0.0 if self._now.judgement.feasible[row] else 1.0]
        named = {key: self.name(trial[key]) for key in ("params", "fixed_params")}
        return {**trial, **named, "user_attrs": attributes, "constraints": constraints}

    def name(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows of parameters with the names of their layers."""
        return [{**row, "name": self._names.get(row["name"], row["name"])} for row in rows]
