"""One candidate on its way through the stages, and the meaning of errors that stop it."""

from __future__ import annotations

import errno
import os
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluators.engine import DeviceError, OutOfMemoryError, RefusedError
from evaluators.measure.scoring import NonFiniteError
from evaluators.stopwatch import Stopwatch, use_stopwatch
from search.errors import ArtifactError, BitfrontError, InputError, ModelError, RunError
from search.values import Evaluation, Failure, FailureKind, Stage


class Candidate:
    """What is known of one candidate so far, while it passes some of the stages.

    Args:
        evaluation: what is known of it already.
        out: where its engine file is, or goes.
        stage: where it is.
        kind: of work that time counts as at first.

    Attributes:
        evaluation: what is known by now; with a failure where it has failed.
        watch: counts the time of these stages.
    """

    def __init__(self, evaluation: Evaluation, out: Path, stage: Stage, kind: str) -> None:
        self.evaluation = evaluation
        self.watch = Stopwatch(kind=kind)
        self._out = out
        self._stage = stage
        self._start = time.perf_counter()

    def enter(self, stage: Stage, kind: str) -> None:
        """Begin another stage; time counts as another kind of work from now on."""
        self._stage = stage
        self.watch.turn(kind)

    def learn(self, **facts: Any) -> None:
        """Fields of the evaluation that are known now."""
        self.evaluation = replace(self.evaluation, **facts)

    def note(self, notes: Sequence[str]) -> None:
        """What is noteworthy of it; nothing is noted twice."""
        self.learn(notes=tuple(dict.fromkeys((*self.evaluation.notes, *notes))))

    def fail(self, kind: FailureKind, message: str, group: str | None = None) -> None:
        """Record that the candidate does not get beyond the stage it is in."""
        self.learn(failure=Failure(self._stage, kind, message, group=group))

    @contextmanager
    def stages(self) -> Iterator[None]:
        """Turn errors that are the candidate's own fault into its failure; those that any other would meet too rise.

        Raises:
            ArtifactError: there is no room for the engine.
        """
        try:
            with use_stopwatch(self.watch):
                yield
        except RefusedError as error:
            self.fail(FailureKind.REFUSED, str(error), error.group)
        except NonFiniteError as error:
            self.fail(FailureKind.NON_FINITE, str(error))
        except OSError as error:
            raise meaning_of(error, self._out) from error
        except Exception as error:
            if is_common(error):
                raise
            if not isinstance(error, BitfrontError):
                with suppress(OSError):  # the disk that the log is on may be full
                    traceback.print_exc()
            self.fail(FailureKind.ERROR, f"{type(error).__name__}: {error}")

    def finish(self, notes: Sequence[str]) -> Evaluation:
        """The evaluation with the time that these stages took added to that of earlier ones.

        Args:
            notes: of the backend.
        """
        self.note(notes)
        known = self.evaluation
        stage_s = Counter(known.stage_s)
        stage_s.update(self.watch.seconds())
        return replace(
            known,
            total_s=(known.total_s or 0.0) + time.perf_counter() - self._start,
            stage_s=dict(stage_s),
        )


def is_common(error: Exception) -> bool:
    """Whether an error is no fault of the candidate: every other would meet it too, or this process is done for."""
    common = (DeviceError, OutOfMemoryError, MemoryError, OSError, RunError, InputError)
    return isinstance(error, common) and not isinstance(error, ModelError)  # lowering refuses with ModelError


def meaning_of(error: OSError, out: Path) -> BitfrontError:
    if error.errno == errno.ENOMEM:
        return OutOfMemoryError(str(error))
    return ArtifactError(f"writing the engine {out}: {error}. Make room, then try again.")


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
            f"writing the engine {out}: {error} (the builder said: {refusal}). Make room, then try again."
        ) from error
