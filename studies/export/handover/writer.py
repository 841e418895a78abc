"""The interface of a hand-over: files from which another tool reads the mix."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from studies.export.handover.mix import Mix

_SCRIPTS = Path(__file__).parent / "scripts"


class Handover(ABC):
    """Writes a mix for one other tool. Another package registers its own by the entry-point group
    `bitfront.handovers`.

    Attributes:
        name: as `--for` names it; its files lie in a folder of that name.
        needs_int8: whether a mix without INT8 has nothing for the tool.
    """

    name: ClassVar[str] = ""
    needs_int8: ClassVar[bool] = True

    @abstractmethod
    def files(self, mix: Mix) -> Mapping[str, str]:
        """File name → text."""

    def notes(self, mix: Mix) -> tuple[str, ...]:
        """What of the mix the tool cannot be told, one sentence each."""
        return ()


def json_text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def script_text(name: str) -> str:
    """A script that is handed over as it is: it reads what it needs from the JSON file beside it."""
    return (_SCRIPTS / name).read_text(encoding="utf-8")
