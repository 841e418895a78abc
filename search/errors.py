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
    │   └── DeclarationError gave what it does not declare: the study cannot go on with what it should declare
    ├── EvaluatorError      the evaluator process dies again and again
    ├── SurrogateError      measures that a model cannot be fitted to
    ├── SolverError         no assignment is allowed, or costs are no numbers
    └── ArtifactError       an artifact could not be written or does not match its digest
"""

from __future__ import annotations


class BitfrontError(Exception):
    """Base of every error that is raised on purpose. Its text says what was done, expected, found, and what to do."""


class InputError(BitfrontError):
    """The user's input cannot be used. Nothing was written."""


class ModelError(InputError):
    """The ONNX file cannot be searched."""


class DataError(InputError):
    """Calibration or evaluation data do not fit the model or the metric."""


class ConfigError(InputError):
    """An option is unknown, cannot be read, or does not apply."""


class TargetError(InputError):
    """A backend or device is not available, or is not the one that the study was made on."""


class StudyError(InputError):
    """The study database, or a study, trial or pick in it, cannot be used."""


class RunError(BitfrontError):
    """A run could not continue. All finished results are stored, and the study can be resumed."""


class MetricError(RunError):
    """A metric raised an error, or returned something that is not a score."""


class DeclarationError(MetricError):
    """A metric gave a score that is none of what it declares. With another declaration it is another metric, so that
    the study has to be begun again."""


class EvaluatorError(RunError):
    """The evaluator process died again and again."""


class SurrogateError(RunError):
    """A latency or loss model cannot be fitted: measurements are missing, not finite, or of a wrong shape."""


class SolverError(RunError):
    """No assignment is allowed, or costs are not numbers."""


class ArtifactError(RunError):
    """An artifact could not be written, or what was read does not match its digest."""
