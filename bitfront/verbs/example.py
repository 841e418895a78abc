"""Searching the shipped example: the verb `demo` as a function."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

from bitfront.verbs.deliveries import export, report
from bitfront.verbs.results import Demo
from bitfront.verbs.searches import search
from search.errors import ConfigError
from studies.judging.search_events import SearchEvents
from studies.options.config import SearchConfig
from studies.options.quantities import Amount

_MOST_S = 240.0  # so that all ends within five minutes, even where noisy latencies are measured again


def demo(folder: Path, *, trials: int = 24, events: SearchEvents | None = None) -> Demo:
    """Search the shipped example, export the best pick and write the report, all into `folder`.

    The database is the one that every command takes by default in that folder. Nothing is exported where nothing keeps
    the limit.

    Args:
        trials: how many evaluations, at most: the search has a time limit of four minutes.
    """
    folder = folder.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"running the demo: {folder} is not empty. Remove it, or name another with --out.")
    model, data = write_example(folder)
    storage = f"sqlite:///{folder / 'bitfront.db'}"
    config = SearchConfig(
        str(model),
        str(data),
        "exposures",
        limits={"max_drop": Amount(0.01, percent=True)},
        trials=trials,
        time_limit_s=_MOST_S,
        storage=storage,
        batch=16,
    )
    finished = search(config, events)
    engine = None
    if finished.standing.picks.best is not None:
        engine = export("exposures", folder / "engine", storage=storage, events=events)
    return Demo(finished, engine, report("exposures", folder / "report.html", storage=storage), storage)


def write_example(folder: Path, scenes: int | None = None) -> tuple[Path, Path]:
    """Copy the model of the shipped example into `folder`, draw its data there, and give the paths of both.

    The data are the same at every call. Drawing all of them takes a few seconds.

    Args:
        scenes: how many, of four frames each; as many as the demo takes where none are given.

    Raises:
        ConfigError: the example is not in this installation.
    """
    source = _example_folder()
    folder.mkdir(parents=True, exist_ok=True)
    model, data = folder / "exposures.onnx", folder / "exposures.npz"
    shutil.copyfile(source / "exposures.onnx", model)
    script = runpy.run_path(str(source / "samples.py"))
    script["write"](data, scenes or script["SCENES"])
    return model, data


def _example_folder() -> Path:
    """Where the model and the script of its data are: in the source tree or in the installed package."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here.parent / "examples" / "exposures", here / "example"):
        if (folder / "exposures.onnx").is_file():
            return folder
    raise ConfigError("running the demo: the example's files are not in this installation. Install bitfront again.")
