"""Writing a chosen engine with its files, and proving that they work."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from search.errors import ArtifactError, ConfigError
from search.references import absolute_reference
from search.values import Assignment
from studies.export.checks import (
    MeasuredEngine,
    check_latency,
    check_outputs,
    default_tolerance,
    failure_text,
    moved_text,
    write_float_model,
)
from studies.export.explicit import write_explicit
from studies.export.folder import check_onnx, fill_folder, staged_folder, write_layer_files
from studies.export.handover import check_mix, gather_mix, write_handovers
from studies.export.handover.mix import Mix, lost_text, rescaled_text
from studies.export.manifest import manifest
from studies.export.readme import FINAL_SAMPLES, README, readme_text
from studies.judging.points import Point
from studies.judging.rules.picks import MOST_IN_LINE
from studies.judging.selection import find_row
from studies.judging.sentences.cautions import MARK
from studies.judging.sentences.final_split import final_score_text
from studies.judging.sentences.picks import other_pick_text
from studies.judging.standing import Standing
from studies.run import rebuild
from studies.run.finalists import confirm, engine_of
from studies.run.session.data_shapes import frozen_batch_text
from studies.run.work import Work
from studies.trials.ledger import Ledger

MANIFEST = "manifest.json"
HANDOVER = "handover"
_CHUNK_BYTES = 1 << 20


_LIMITS = {
    "kept": "the limits are kept",
    "likely": "the limits are likely kept, by the estimate but not with 95 % certainty",
    "missed": "the limits are MISSED",
}


@dataclass(frozen=True, repr=False)
class Export:
    """What was written, and whether the limits hold on the final split (None if there are none).

    `final_score` is the loss on the final split with the bound that is judged, in words, or the value of a metric that
    compares with FP32. `warning` says that the latency
    check failed, which leaves the export in place; empty if it held.
    """

    folder: Path
    trial: int
    manifest: dict[str, Any]
    holds: bool | None
    notes: tuple[str, ...]
    final_score: str
    warning: str = ""

    @property
    def final_text(self) -> str:
        """The loss of the engine on the final split, and what that says of the limits."""
        final = self.manifest["final"]
        limits = _LIMITS.get(final["verdict"], "")
        parts = [f"on the final split: {self.final_score}"]
        parts += [f"{final['tried']} were tried"] if final["tried"] > 1 else []
        parts += [limits] if limits else []
        parts += [f"{MARK}, see the warning"] if self.manifest["unrelated_to_fp32"] else []
        return "; ".join(parts)

    def __repr__(self) -> str:
        """Short: the folder, the loss on the final split with its bound, and the verdict in one word."""
        verdict = self.manifest["final"]["verdict"]
        limits = f", limits {verdict}" if verdict in _LIMITS else ""
        return f"<Export of trial {self.trial} to {self.folder}: final {self.final_score}{limits}>"

    def __str__(self) -> str:
        """What the command `bitfront export` says: folder, final loss and limits, then the warnings."""
        warnings = (text for text in (*self.manifest["warnings"], self.warning) if text)
        return "\n".join([f"exported trial {self.trial} to {self.folder}", self.final_text, *warnings])


@dataclass(frozen=True)
class Extras:
    """What is written beside an engine for other programs.

    Attributes:
        triton: name of a Triton model to write as well.
        tools: to hand the mix over to: `nncf`, `polygraphy`, `modelopt`, `qat`, or `package.module:Class`.
        typing: `strong`: also write a weakly typed mix for strongly typed networks.
    """

    triton: str | None = None
    tools: tuple[str, ...] = ()
    typing: str | None = None


NO_EXTRAS = Extras()


@dataclass(frozen=True)
class Request:
    """What is to be exported, and how.

    Attributes:
        trial: number of the chosen trial.
        pick: how it was chosen, for the manifest: `best`, `accurate`, `fast`, `knee` or `trial 17`.
        options: of the backend that builds exports.
        extras: what is written beside the engine.
        latency_tolerance: how far the latency of what was written may be from that of the engine that was measured,
            relative; None for the study's tie band, at least 1 %.
        user_knows_batch: whether the user was told already that the engine takes one size of batch alone.
    """

    trial: int
    pick: str
    options: Mapping[str, Any]
    extras: Extras = NO_EXTRAS
    latency_tolerance: float | None = None
    user_knows_batch: bool = False


@dataclass(frozen=True)
class _Confirmed:
    """The evaluation that is exported, scored on the final split."""

    now: Standing
    point: Point
    engine: Path
    assignment: Assignment

    @property
    def measured_engine(self) -> MeasuredEngine:
        return MeasuredEngine(
            self.engine, float(self.now.measures.latency_ms[self.point.row]), self.now.table.reference_ms
        )


def check_folder(folder: Path, option: str = "--out") -> None:
    """Refuse a folder that holds something or cannot be written; creates nothing.

    Args:
        option: that named it.

    Raises:
        ConfigError: it is a file, not empty, or not writable.
    """
    advice = f"Give a new or empty folder with {option}."
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{option} {folder}: it is a file. {advice}")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{option} {folder}: the folder is not empty. {advice}")
    parent = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigError(f"{option} {folder}: {parent} is not a folder that can be written. {advice}")


def export_evaluation(work: Work, now: Standing, row: int, request: Request, folder: Path) -> Export:
    """Export one evaluation: engine, its source, ranges and manifest, checked after writing.

    What does not tie in latency with the engine that was measured is kept: its outputs are right, and a busy device is
    the likely reason. `Export.warning` and the manifest's `latency_check` say so.

    Raises:
        ArtifactError: what was written gives other outputs than the engine that was measured, or the folder cannot be
            written; nothing stays behind.
    """
    final = rebuild.at_final_level(work, request.options)
    if final is work and now.final.unscorable[row]:
        raise _not_finite(request.trial)
    number, note = rebuild.find_or_rebuild(final, now, row, other_level=final is not work)
    if note:
        work.events.note(note)
    tries = now.point(row).final.tries if number != int(now.table.id[row]) else None
    chosen = _confirm(final, number, request.trial, tries)
    mix = _mix_to_hand_over(final, chosen, request)
    fields = manifest(final.ledger, chosen.now, chosen.point, request.trial, request.pick, chosen.engine)
    fields["backend"] = final.problem.config.backend
    fields["plugins"] = list(final.bench.keeper.job.options.get("plugins", ()))
    with staged_folder(folder, f"exporting to {folder}") as staging:
        fill_folder(staging, final, chosen.engine, chosen.assignment, request.extras.triton)
        if mix is not None:
            fields |= _hand_over(final, mix, staging / HANDOVER, request.extras.tools)
        if request.extras.typing is not None:
            fields["explicit"] = write_explicit(staging, final, chosen.assignment)
        fields["float_model"] = write_float_model(staging, final.bench.keeper, final.ledger.target.recovery)
        check_onnx(staging)
        write_layer_files(staging, final, staging / final.bench.engine_file, chosen.assignment)
        write_final_samples(staging, final)
        fields |= _check(final, chosen, staging / final.bench.engine_file, request.latency_tolerance)
        if (frozen := frozen_batch_text(final.problem.model, final.problem.config)) and not request.user_knows_batch:
            work.events.note(frozen)
        names = {path.name for path in staging.iterdir()} | {MANIFEST}
        (staging / README).write_text(
            readme_text(fields, chosen.now, final.bench.engine_file, names, frozen), encoding="utf-8"
        )
        _write_manifest(staging, fields)
    notes, warning = tuple(text for text in (note, frozen) if text), failure_text(fields["latency_check"])
    score = final_score_text(chosen.now, chosen.point)
    return Export(folder, request.trial, fields, fields["final"]["limits_hold"], notes, score, warning)


def _mix_to_hand_over(work: Work, chosen: _Confirmed, request: Request) -> Mix | None:
    """The mix for other tools; None if it is for none.

    Raises:
        ConfigError: it has nothing for one of them.
    """
    if not request.extras.tools:
        return None
    mix = gather_mix(work, chosen.assignment, request.trial)
    check_mix(mix, request.extras.tools)
    return mix


def _hand_over(work: Work, mix: Mix, folder: Path, tools: tuple[str, ...]) -> dict[str, Any]:
    """Write the mix for other tools: `handover` of the manifest."""
    texts = (lost_text(mix) if mix.lost else "", rescaled_text(mix), *write_handovers(folder, mix, tools))
    notes = [text for text in texts if text]
    for note in notes:
        work.events.note(note)
    return {"handover": {"tools": tools, "without_counterpart": mix.lost, "notes": notes}}


def _check(work: Work, chosen: _Confirmed, written: Path, tolerance: float | None) -> dict[str, Any]:
    """Check what was written against what was measured: `check` and `latency_check` of the manifest."""
    check_outputs(work.bench.keeper, chosen.engine, written)
    allowed = default_tolerance(chosen.now.target.band) if tolerance is None else tolerance
    latency = check_latency(work.bench.keeper, chosen.measured_engine, written, allowed)
    if text := moved_text(latency, chosen.measured_engine):
        work.events.note(text)
    return {"check": {"outputs": "equal"}, "latency_check": latency}


def _write_manifest(folder: Path, fields: Mapping[str, Any]) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = {path.relative_to(folder).as_posix(): _digest(path) for path in files}
    text = json.dumps({**fields, "files": digests}, indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def confirm_pick(work: Work, now: Standing, pick: str) -> tuple[Standing, int]:
    """The row of a pick after its candidates were scored on the final split, one after the other, until one stands.

    Limits that were changed since the search make picks of what nobody has looked at there. At most as many are
    looked at as stand in line for `best`.

    Raises:
        StudyError: nothing is left that keeps the limits.
    """
    before = now.point(find_row(now, pick, None))
    for _ in range(MOST_IN_LINE):
        row = find_row(now, pick, None)
        if now.final.tried_rows[row]:
            break
        confirm(work, now, [row], timed=False)
        now = work.ledger.read_standing()
    row = find_row(now, pick, None)
    if text := other_pick_text(now, pick, before, row):
        work.events.note(text)
    return now, row


def _confirm(work: Work, number: int, trial: int, tries: int | None) -> _Confirmed:
    """The evaluation, scored on the final split where that was not done yet; its latency stays that of the study.

    What was built again is the choice of `tries` evaluations that the one it stands for was, and no further one.
    """
    now, row = _place(work.ledger, number)
    with work.ledger.artifacts.open(str(now.table.artifact[row])):
        pass  # it is what was measured, else this raises
    if not now.final.tried_rows[row]:
        confirm(work, now, [row], timed=False)
        now, row = _place(work.ledger, number)
    if now.final.unscorable[row]:
        raise _not_finite(trial)
    assignment = work.ledger.store.evaluations.load(number).evaluation.assignment
    point = now.point(row).with_values(final=now.final_score(row, tries))
    return _Confirmed(now, point, engine_of(work, now, row), assignment)


def _not_finite(trial: int) -> ArtifactError:
    return ArtifactError(
        f"exporting trial {trial}: its outputs on the final data hold NaN or infinite values, so it cannot be used. "
        "Choose "
        "another with --trial."
    )


def _place(ledger: Ledger, number: int) -> tuple[Standing, int]:
    now = ledger.read_standing(exports=True)
    return now, int(np.flatnonzero(now.table.id == number)[0])


def write_final_samples(folder: Path, work: Work) -> None:
    """Write the data's place and the rows of the final samples there.

    Raises:
        EvaluatorError: the evaluator process dies over it.
    """
    config = work.problem.config
    source = config.final_data or config.data
    data = str(Path(source).absolute()) if Path(source).exists() else absolute_reference(source)
    rows = work.bench.keeper.ask("finding the final samples").scores.final_rows()
    (folder / FINAL_SAMPLES).write_text(json.dumps({"data": data, "rows": rows.tolist()}) + "\n", encoding="utf-8")
