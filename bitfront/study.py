"""The class `Study`: its trials, its Pareto front, exports and reports."""

from __future__ import annotations

import operator
import shutil
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from bitfront import verbs
from bitfront.metrics import OwnMetric, lend
from bitfront.trial import Trial
from bitfront.wording import in_python, python_words
from search.errors import ConfigError, StudyError
from search.values import Precision
from studies.judging.rules.picks import NAMES, read_pick
from studies.judging.selection import find_row
from studies.judging.sentences.final_split import final_notes
from studies.judging.sentences.gains import as_given_text, int8_everywhere_text
from studies.judging.sentences.no_pick import nobody_text
from studies.judging.sentences.picks import faster_text
from studies.judging.standing import Standing
from studies.judging.status.early_end import EarlyEnd, early_end
from studies.judging.study_lookup import NO_LIMITS, LimitChanges, standing_of
from studies.options.urls import mask_password
from studies.show.front_rows import evaluation_row
from studies.show.html_parts import write_table
from studies.show.terminal.front_table import front_table, limits_legend
from studies.store.store import Store

if TYPE_CHECKING:  # these are slow to import or may not be installed
    import pandas
    import plotly.graph_objects

    from bitfront.verbs.readings import Front
    from studies.export import Export

_ALL = "all-"  # `all-int8`: the uniform baseline
_WIDTH = 120  # of a table that is printed elsewhere than on a terminal


class Study:
    """A study in its database, judged by its limits. `bitfront.search`, `resume` and `load` return it.

    The database is read on first use, and again after `refresh`.

    Examples:
        >>> study = bitfront.load("model")
        >>> study["all-int8"].latency_ms < study["all-fp32"].latency_ms
        True
        >>> study["fast"].latency_ms <= study["all-fp32"].latency_ms
        True

    Args:
        name: the name of the study.
        storage: the URL of the database.
        target: one of the study's targets: its number, its fingerprint or a part of its name; None for the first.
        limits: bounds by name of the limit, which replace the study's own; None removes a limit.
        metric: the metric, if it is a function that cannot be imported.
    """

    def __init__(
        self,
        name: str,
        storage: str,
        *,
        target: str | None = None,
        limits: LimitChanges = NO_LIMITS,
        metric: OwnMetric | None = None,
    ) -> None:
        self.name = name
        self.storage = storage
        self.target = target
        self.metric = metric
        self._limits = limits

    # -- trials ----------------------------------------------------------------------------------------------------

    @property
    def best(self) -> Trial | None:
        """The recommended trial; None if no trial keeps the limits."""
        return self.picks.get("best")

    @property
    def picks(self) -> dict[str, Trial]:
        """The recommended trials by name: `best`, `accurate` (least loss), `fast` (least latency) and `knee`."""
        return {name: self._trial(point.row) for name, point in self._read.picks.items()}

    @property
    def front(self) -> list[Trial]:
        """The trials that no other trial beats in both latency and loss, the fastest first."""
        return [self._trial(point.row) for point in self._read.points]

    @property
    def trials(self) -> list[Trial]:
        """All trials including the uniform baselines, sorted by number."""
        self._now.points(range(len(self._now.table)))  # all at once, which is quicker than one by one
        self._now.details.assignments.look_up(self._now.table.id.tolist())
        return sorted((self._trial(row) for row in range(len(self._now.table))), key=lambda trial: trial.number)

    @property
    def ended_early(self) -> EarlyEnd | None:
        """How the last search ended before it had all its evaluations; None if it has them, or goes on.

        Its attributes are `done`, `wanted`, `why` (`time_limit`, `request` or `interrupted`), `text`, which says all of
        this, and `resume`, the command that goes on.
        """
        return early_end(self._now)

    def __getitem__(self, which: str | int) -> Trial:
        """A trial by its number, a recommended trial (`best`, `score:0.6,0.4`) or a uniform baseline (`int8`).

        The baseline may also be written as `INT8`, as the tables show it, or `all-int8`.

        Raises:
            KeyError: there is no such trial.
        """
        if not isinstance(which, str):
            which = operator.index(which)
            rows_by_number = {int(number): row for row, number in enumerate(self._now.table.trial)}
            if which not in rows_by_number:
                raise KeyError(f"study {self.name!r} has no trial {which}; it has {len(rows_by_number)}")
            return self._trial(rows_by_number[which])
        label = which.lower().removeprefix(_ALL)
        if which.lower().startswith(_ALL) or label in {precision.label for precision in Precision}:
            return self._baseline(label)
        try:
            return self._trial(find_row(self._now, read_pick(which), None))
        except StudyError as error:
            named = ", ".join((*NAMES, *(f"{_ALL}{name}" for name in self._baselines())))
            raise KeyError(f"{which!r}: {in_python(str(error))} By name there are {named}.") from error

    def __iter__(self) -> Iterator[Trial]:
        """All trials, sorted by number."""
        return iter(self.trials)

    def __len__(self) -> int:
        """The number of trials."""
        return len(self._now.table)

    def _baseline(self, label: str) -> Trial:
        rows = self._baselines()
        if label not in rows:
            named = ", ".join(f"{_ALL}{name}" for name in rows) or "none"
            raise KeyError(f"study {self.name!r} has no uniform baseline {_ALL}{label}; it has {named}")
        return self._trial(rows[label])

    def _baselines(self) -> dict[str, int]:
        roles = self._now.table.role
        return {str(roles[row]).partition(":")[2]: row for row in self._now.measures.baselines}

    def _trial(self, row: int) -> Trial:
        return Trial(now=self._now, row=row)

    # -- tables and figures ----------------------------------------------------------------------------------------

    def to_dataframe(self) -> pandas.DataFrame:
        """Make a data frame with one row for each trial and the columns of `bitfront front --json`, sorted by number.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ConfigError("making a data frame: pandas is not installed. Install it: pip install pandas") from error
        points = sorted(self._now.points(range(len(self._now.table))), key=lambda point: point.trial)
        rows = [evaluation_row(self._now, point, self._read.mixes) for point in points]
        return pandas.DataFrame(rows)

    def plot_front(self) -> plotly.graph_objects.Figure:
        """Plot loss against latency of every trial, with the front, the uniform baselines and the limits."""
        import plotly.graph_objects

        from studies.show.report.builder import build_report
        from studies.show.report.front_figure import front_figure

        with Store.open(self.storage, write=False) as store:
            drawn = front_figure(build_report(store, standing_of(store, self.name, self._limits, self.target)))
        figure = plotly.graph_objects.Figure(drawn)
        figure.update_layout(modebar={"orientation": "v"})  # it would lie on the legend
        return figure

    # -- files -----------------------------------------------------------------------------------------------------

    @python_words()
    def export(
        self,
        folder: str | Path,
        *,
        pick: str | None = None,
        trial: int | None = None,
        triton: str | None = None,
        tools: Sequence[str] = (),
        trust_functions: bool = False,
    ) -> Export:
        """Write an engine and its manifest to a folder, and check them in a fresh process, as `bitfront export` does.

        Args:
            folder: a new or empty folder.
            pick: `best` (the default), `accurate`, `fast`, `knee` or `score:0.6,0.4`.
            trial: the number of a trial to export instead.
            triton: the name of a Triton model to write too.
            tools: other tools to write files for: `nncf`, `polygraphy`, `modelopt`, `qat`.
            trust_functions: run the functions that the study names, also if they were never named on this machine.

        Raises:
            InputError: nothing keeps the limits, there is no such pick or trial, or the folder cannot be used.
            ArtifactError: the written engine does not work.
        """
        with lend(self.metric):
            done = verbs.export(
                self.name,
                Path(folder),
                {**self._limits, "trust_functions": trust_functions},
                pick=pick,
                trial=trial,
                triton=triton,
                tools=tools,
                storage=self.storage,
                target=self.target,
            )
        self.refresh()  # what it was measured and scored anew
        export: Export = done
        return export

    @python_words()
    def report(self, file: str | Path) -> Path:
        """Write a report about the study as one HTML file, as `bitfront report` does, and return its path."""
        targets = () if self.target is None else (self.target,)
        written: Path = verbs.report(self.name, Path(file), self._limits, storage=self.storage, targets=targets)
        return written

    # -- reading ---------------------------------------------------------------------------------------------------

    def refresh(self) -> Study:
        """Read the database again on the next use, and return this study."""
        self.__dict__.pop("_read", None)
        return self

    def stop(self) -> None:
        """End the search after the current evaluation. Only the study that a callback receives can do this.

        Raises:
            StudyError: this object is not one that a callback received.
        """
        raise StudyError(
            f"stopping study {self.name!r}: this object does not belong to a running search. Call stop() of the study "
            "that a "
            "callback receives: bitfront.search(..., callbacks=[lambda study, trial: study.stop()])."
        )

    @cached_property
    def _read(self) -> Front:
        with python_words():
            front: Front = verbs.front(self.name, self._limits, every=True, storage=self.storage, target=self.target)
        return front

    @property
    def _now(self) -> Standing:
        return self._read.standing

    # -- shown -----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        best, early = self.best, self.ended_early
        recommended = "no best yet" if best is None else f"best is {best!r}"
        ending = "" if early is None else f", {early.text}"
        return f"<Study {self.name!r} in {mask_password(self.storage)}: {len(self)} trials, {recommended}{ending}>"

    def __str__(self) -> str:
        """The front with its picks and the uniform baselines as a table, and what the words in it mean."""
        table = front_table(self._now, self._read.mixes)
        fitted = table.fit(shutil.get_terminal_size((_WIDTH, 24)).columns)
        lines = [line.rstrip() for line, _ in fitted.lines()]
        below = [*fitted.sentences(), limits_legend(fitted), *(f"{text}." for text in self._sentences())]
        return "\n".join([f"{self._title()}:", *lines, *(text for text in below if text)])

    def _sentences(self) -> list[str]:
        """Sentences about the final samples, INT8 everywhere, what is faster, limits nothing keeps, an early end."""
        nearest = [] if self.best is not None else [nobody_text(self._now)]
        early = self.ended_early
        end = "" if early is None else f"{early.text}. Go on with {in_python(early.resume)}"
        said = (
            *final_notes(self._now),
            as_given_text(self._now),
            int8_everywhere_text(self._now),
            faster_text(self._now),
            *nearest,
            end,
        )
        return [text for text in said if text]

    def _title(self) -> str:
        on_front = int(self._now.judgement.front.sum())
        return f"Study {self.name}: {len(self)} trials, {on_front} on the front"

    def _repr_html_(self) -> str:
        return write_table(self._title(), front_table(self._now, self._read.mixes))
