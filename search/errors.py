"""The whole error tree.

BitfrontError
├── InputError              refused before anything was written: exit code 2
│   ├── ModelError          the ONNX file
│   ├── DataError           calibration or evaluation data
│   ├── ConfigError         an option, a configuration file, a rule that fits nothing
│   ├── TargetError         backend or device not there, or not the study's
│   └── StudyError          the study database, a study name, a trial, a pick
└── RunError                a run that could not go on; the study stays resumable: exit code 1
    ├── MetricError         the user's metric raised or gave NaN
    ├── EvaluatorError      the evaluator process dies again and again
    ├── SurrogateError      measures that a model cannot be fitted to
    ├── SolverError         no assignment is allowed, or costs are no numbers
    │   └── UnfinishedError an exact solver did not finish in time
    └── ArtifactError       an artifact could not be written or does not match its digest
"""

from __future__ import annotations


class BitfrontError(Exception):
    """Base of every error raised on purpose; its text says what was done, expected, got, and what to do."""


class InputError(BitfrontError):
    """The user's input cannot be used; nothing was written."""


class ModelError(InputError):
    """The ONNX file cannot be searched."""


class DataError(InputError):
    """Calibration or evaluation data do not fit the model or the metric."""


class ConfigError(InputError):
    """An option is unreadable, unknown or fits nothing."""


class TargetError(InputError):
    """A backend or device is not there, or is not the one the study was made on."""


class StudyError(InputError):
    """The study database or something named in it cannot be used."""


class RunError(BitfrontError):
    """A run could not go on; what was finished is stored and the study can be resumed."""


class MetricError(RunError):
    """A metric raised, or gave something that is no score."""


class EvaluatorError(RunError):
    """The evaluator process died again and again."""


class SurrogateError(RunError):
    """Measures that a latency or loss model cannot be fitted to: none, not finite, or of another shape."""


class SolverError(RunError):
    """No assignment is allowed, costs are no numbers, or an exact solver did not finish."""


class UnfinishedError(SolverError):
    """An exact solver did not finish in time."""


class ArtifactError(RunError):
    """An artifact could not be written, or what was read does not match its digest."""
