"""The shipped example, searched: the verb `demo` as a function."""

from __future__ import annotations

from pathlib import Path

from search.errors import ConfigError
from studies.judging.search_events import SearchEvents
from studies.options.config import SearchConfig
from studies.options.quantities import Amount
from studies.verbs.deliveries import export, report
from studies.verbs.results import Demo
from studies.verbs.searches import search


def demo(folder: Path, *, trials: int = 40, events: SearchEvents | None = None) -> Demo:
    """Search the shipped example, export the best pick and write the report, all into `folder`."""
    folder = folder.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"running the demo: {folder} is not empty. Remove it, or name another with --out.")
    model, data = example_files()
    folder.mkdir(parents=True, exist_ok=True)
    storage = f"sqlite:///{folder / 'demo.db'}"
    config = SearchConfig(
        str(model),
        str(data),
        "digits",
        limits={"max_drop": Amount(0.01, percent=True)},
        trials=trials,
        storage=storage,
        batch=16,
    )
    finished = search(config, events)
    engine = export("digits", folder / "engine", storage=storage, events=events)
    return Demo(finished, engine, report("digits", folder / "report.html", storage=storage), storage)


def example_files() -> tuple[Path, Path]:
    """Model and data of the shipped example, in the source tree or in the installed package."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here.parent / "examples" / "digits", here / "example"):
        if (folder / "digits.onnx").is_file():
            return folder / "digits.onnx", folder / "digits.npz"
    raise ConfigError("running the demo: the example's files are not in this installation. Install bitfront again.")
