"""Tools that a mix can be handed over to, by name: shipped ones, and those that other packages register."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from search.errors import ConfigError
from search.extensions import Extensible
from search.values import REFERENCE, Precision
from studies.export.handover.mix import Handover, Mix

HANDOVERS: Extensible[Handover] = Extensible(
    option="--for",
    base=Handover,  # type: ignore[type-abstract]
    shipped={
        "nncf": "studies.export.handover.nncf:NncfHandover",
        "polygraphy": "studies.export.handover.polygraphy:PolygraphyHandover",
        "modelopt": "studies.export.handover.modelopt:ModelOptHandover",
        "qat": "studies.export.handover.qat:QatHandover",
    },
    group="bitfront.handovers",
    error=ConfigError,
    noun="tool",
)


def check_tools(names: Sequence[str]) -> None:
    """Refuse a name that stands for no tool.

    Raises:
        ConfigError: naming the tools that there are.
        DataError: a module that is named cannot be imported.
    """
    for name in names:
        HANDOVERS.make(name)


def check_mix(mix: Mix, names: Sequence[str]) -> None:
    """Refuse a mix that has nothing for a tool.

    Raises:
        ConfigError: it runs nothing in INT8, or none of its layers has a counterpart in the user's file.
    """
    has_int8 = any(layer.precision.quantized for layer in mix.layers)
    for name in names:
        if HANDOVERS.make(name).needs_int8 and not has_int8:
            raise ConfigError(
                f"--for {name}: trial {mix.source.trial} runs no layer in INT8, so there is nothing to hand over. "
                "Choose another with --pick or --trial."
            )
    if not any(layer.weighted for layer in mix.layers):
        raise ConfigError(
            f"--for {', '.join(names)}: none of the layers that were searched is a node of the model file's main graph "
            f"(the first is {mix.lost[0]!r}); they may all be inside functions. Inline the functions of the file, and "
            "search the new file."
        )


def write_handovers(folder: Path, mix: Mix, names: Sequence[str]) -> list[str]:
    """Write the files for each tool into a folder of its name.

    Returns:
        What a tool cannot be told of the mix, one sentence each.
    """
    notes = []
    if mix.made_static:
        notes.append(
            f"{mix.made_static} of the layers run in {Precision.INT8_DYNAMIC.label} in the mix. They are handed over "
            f"as {Precision.INT8.label} on calibrated ranges, so their loss is not the one that was measured"
        )
    if mix.made_float:
        formats = ", ".join(dict.fromkeys(mix.made_float))
        notes.append(
            f"{len(mix.made_float)} of the layers run in {formats} in the mix, and are handed over as "
            f"{REFERENCE.label}, so their loss and latency are not those that were measured"
        )
    for name in names:
        handover = HANDOVERS.make(name)
        entry = folder / handover.name
        entry.mkdir(parents=True)
        for file, text in handover.files(mix).items():
            (entry / file).write_text(text, encoding="utf-8", newline="\n")
        notes += [f"--for {handover.name}: {note}" for note in handover.notes(mix)]
    return notes
