"""Data that lack an input of the model are refused before an evaluator process is started."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bitfront import verbs
from evaluators.process.keeper import EvaluatorProcess
from search.errors import DataError
from studies.options.read_options import read_config
from tests.support.command_line import write_inputs


def test_a_wrong_name_of_an_input_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: EvaluatorProcess, *_: object) -> None:
        raise AssertionError("a process is started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(EvaluatorProcess, "open", refuse)
    write_inputs(tmp_path)
    with np.load("data.npz") as stored:
        arrays = dict(stored)
    (name,) = arrays.keys() - {"labels"}
    config = read_config({"model": "model.onnx", "data": "data.npz", "study": "s"})
    with pytest.raises(AssertionError, match="a process is started"):
        verbs.search(config)
    arrays[f"{name}s"] = arrays.pop(name)
    np.savez("data.npz", **arrays)
    with pytest.raises(DataError, match=f"lacks the model's input '{name}'.*rename '{name}s' to '{name}'"):
        verbs.search(config)
