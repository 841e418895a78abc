"""The verb that searches the shipped example: `demo`."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bitfront.verbs.command import Typed, prints
from bitfront.verbs.deliveries import (
    Delivery,
    deliver_best,
    delivery_json,
    print_delivery,
    warn_of_delivery,
)
from bitfront.verbs.searches import search
from search.errors import ConfigError
from studies.options.config import SearchConfig
from studies.options.quantities import Amount

if TYPE_CHECKING:  # help is made of the signature alone, so what the verb works with is imported inside it
    from studies.judging.search_events import SearchEvents

_MOST_S = 240.0  # so that all ends within five minutes, even where noisy latencies are measured again


class Demo(Delivery):
    """What the demo left behind; `engine` is None where nothing keeps the limit."""

    @property
    def missed_point(self) -> str:
        """Why the demo did not show what it is for, a mix that is better than one precision; empty if it did."""
        from studies.store.records import OK

        now = self.finished.standing
        best, mixes = now.picks.best, int(((now.table.status == OK) & (now.table.role == "")).sum())
        if best is not None and not now.table.role[best]:
            return ""
        outcome = (
            "nothing keeps the limit" if best is None else f"all {now.point(best).baseline.upper()} is recommended"
        )
        if mixes:
            return f"{outcome}, although {mixes} mix{'es were' if mixes > 1 else ' was'} evaluated"
        return f"no mix was evaluated, so that {outcome}"


def demo(
    folder: Annotated[Path, Typed("DIR", "--out")] = Path("demo"),
    *,
    trials: Annotated[int, Typed("N")] = 24,
    events: SearchEvents | None = None,
) -> Demo:
    """Search the example that comes with bitfront, export the best mix and FP32, and write the report.

    The database is the one that every command takes by default in that folder. Nothing is exported where nothing keeps
    the limit.

    Args:
        folder: New or empty folder.
        trials: How many mixes of precisions are evaluated, at most: the search ends after 4 minutes.
    """
    from studies.export import check_folder

    folder = folder.absolute()
    check_folder(folder)
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
    assert not isinstance(finished, Delivery), "no folder for one was named"
    done = deliver_best(finished, folder, events)
    return Demo(done.finished, done.engine, done.safe, done.report, done.sensitivities)


def _demo_json(done: Demo) -> Mapping[str, Any]:
    return {**delivery_json(done), "missed_point": done.missed_point or None}


def _warn_of_demo(done: Demo) -> None:
    from bitfront.printing.output import warn

    warn_of_delivery(done)
    if done.missed_point:
        warn(f"THE DEMO DID NOT SHOW ITS POINT, which is that a mix beats every single precision: {done.missed_point}.")


@prints(demo, json=_demo_json, warn=_warn_of_demo, quiet=True)
def _print_demo(done: Demo) -> None:
    """What was found, where it lies, and commands that work from the current folder."""
    from bitfront.printing.output import say, say_command
    from studies.store.suggestions import command

    print_delivery(done)
    assert done.report is not None, "nothing was skipped"
    say(f"Database: {done.report.parent / 'bitfront.db'}")
    say_command("Judge by another limit:", command("front", "exposures", "--max-drop", "3%", storage=done.storage))


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
