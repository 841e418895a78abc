"""Find the number format of each layer, from INT4 to FP32, that makes an ONNX model fast and keeps it accurate.

    >>> import bitfront as bf
    >>> study = bf.search("model.onnx", "data.npz", max_drop=0.01, trials=3, backend="fake")
    >>> study.best
    <Trial ...>
    >>> study.export("engine")
    <Export of trial ...>

`search` makes a study, `resume` continues it and `load` opens it. Each returns a `Study`. `Guard` serves an exported
engine and switches to a safe one when the fast one goes wrong. Every error of this package is a `BitfrontError`. The
package is a thin layer over `studies`, whose functions the command line calls too, and imports them on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitfront.searches import load, resume, search
    from bitfront.study import Study
    from bitfront.trial import Trial
    from search.errors import BitfrontError, InputError, RunError
    from studies import __version__
    from studies.guard import Guard, GuardError, GuardOptions

_MODULES = {
    **dict.fromkeys(("search", "resume", "load"), "bitfront.searches"),
    "Study": "bitfront.study",
    "Trial": "bitfront.trial",
    **dict.fromkeys(("Guard", "GuardError", "GuardOptions"), "studies.guard"),
    **dict.fromkeys(("BitfrontError", "InputError", "RunError"), "search.errors"),
    "__version__": "studies",
}

__all__ = [
    "BitfrontError",
    "Guard",
    "GuardError",
    "GuardOptions",
    "InputError",
    "RunError",
    "Study",
    "Trial",
    "__version__",
    "load",
    "resume",
    "search",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bitfront.shadows import check_packages  # it takes a millisecond that `import bitfront` does without

    check_packages()
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
