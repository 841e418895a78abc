"""One candidate on its way through the stages, and what the errors that stop it mean. Runs in the evaluator process."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from evaluators.engine import Audit, DeviceError, Engine, OutOfMemoryError, RefusedError, Session
from evaluators.process.job import discard
from search.errors import ArtifactError, BitfrontError, InputError, ModelError, RunError
from search.values import (
    Accuracy,
    Assignment,
    EngineSummary,
    Evaluation,
    Failure,
    FailureKind,
    Latency,
    LayerTime,
    Stage,
)


class Candidate:
    """What is known of one candidate so far."""

    def __init__(self, assignment: Assignment, out: Path) -> None:
        self.assignment = assignment
        self.out = out
        self.stage = Stage.LOWER
        self.failure: Failure | None = None
        self.engine: Engine | None = None
        self.session: Session | None = None
        self.audit: Audit | None = None
        self.layers: tuple[LayerTime, ...] = ()
        self.keeps_layers = False
        self.latency: Latency | None = None
        self.accuracy: Accuracy | None = None
        self.build_s: float | None = None

    def failed(self, kind: FailureKind, message: str, group: str | None = None) -> None:
        self.failure = Failure(self.stage, kind, message, group=group)

    def summary(self) -> EngineSummary | None:
        if self.audit is None or not self.layers:
            return self.audit.summary if self.audit else None
        moves_ms = sum(layer.ms for layer in self.layers if layer.moves)
        return replace(self.audit.summary, moves_ms=moves_ms, profiled_ms=sum(layer.ms for layer in self.layers))

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        if self.accuracy is None:
            discard(self.out)

    def evaluation(self, total_s: float, stage_s: Mapping[str, float], notes: tuple[str, ...]) -> Evaluation:
        """`notes` are those of the backend."""
        engine = self.engine
        return Evaluation(
            assignment=self.assignment,
            failure=self.failure,
            audit=self.audit.rows if self.audit else (),
            latency=self.latency,
            accuracy=self.accuracy,
            size_bytes=engine.size_bytes if engine else None,
            memory_bytes=self.session.memory_bytes if self.session else None,
            build_s=self.build_s,
            total_s=total_s,
            artifact=str(engine.path) if engine and self.accuracy is not None else None,
            notes=(*(engine.notes if engine else ()), *(self.session.notes if self.session else ()), *notes),
            engine=self.summary(),
            profile=self.layers if self.keeps_layers else (),
            stage_s=dict(stage_s),
        )


def is_common(error: Exception) -> bool:
    """Whether an error is no fault of the candidate: every other would meet it too, or this process is done for."""
    common = (DeviceError, OutOfMemoryError, MemoryError, OSError, RunError, InputError)
    return isinstance(error, common) and not isinstance(error, ModelError)  # lowering refuses with ModelError


def meaning_of(error: OSError, out: Path) -> BitfrontError:
    if error.errno == errno.ENOMEM:
        return OutOfMemoryError(str(error))
    return ArtifactError(f"writing the engine {out}: {error}. Make room, then resume the study.")


def check_room(out: Path, refusal: RefusedError) -> None:
    """Builders that write files themselves may call a full disk a refusal: see whether as much again can be written.

    Raises:
        ArtifactError: it cannot.
    """
    try:
        size = out.stat().st_size if out.is_file() else 0
        with tempfile.TemporaryFile(dir=out.parent) as file:
            os.posix_fallocate(file.fileno(), 0, max(1, 2 * size))
    except OSError as error:
        raise ArtifactError(
            f"writing the engine {out}: {error} (the builder said: {refusal}). Make room, then resume the study."
        ) from error
