"""`compare --outputs`: what a user's own program gives, beside FP32 and an evaluation, from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from evaluators.diagnose.wrapper.fault import Fault, FaultKind, InputFault, WrapperOutput
from search.graph.model import load
from studies.inspect.wrapper_text import input_text, verdict
from tests.support.command_line import copy_finished, finished, invoke, ok
from tests.support.input_faults import DEVIATION, MEAN, cut_middle
from tests.support.networks import plain_session

Change = Callable[[NDArray[Any]], NDArray[Any]]


def own_outputs(change: Change = lambda images: images) -> NDArray[Any]:
    """(60, 10) logits of the finished study's float model on all of its data, as a program of one's own gives them.

    Args:
        change: what the program does to (60, 3, height, width) images before it runs the model.
    """
    session = plain_session(onnx.load(finished() / "in/model.onnx"))
    images = np.ascontiguousarray(change(np.load(finished() / "in/data.npz")["image"]), np.float32)
    batch = load(finished() / "in/model.onnx").batch
    return np.concatenate(
        [session.run(None, {"image": images[i : i + batch]})[0] for i in range(0, len(images), batch)]
    )


@pytest.fixture
def studied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory whose default database holds the finished study `small`."""
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_swapped_classes_are_told_in_one_sentence_with_the_evidence(studied: Path) -> None:
    logits = own_outputs()
    np.savez("mine.npz", logits=logits[:, [0, 1, 2, 7, 4, 5, 6, 3, 8, 9]])
    said = ok("compare", "small", 1, "--outputs", "mine.npz")
    assert "own logits: classes or channels 3 and 7 of 10 are swapped; with that corrected, its SQNR rises from" in said
    rows = np.arange(59, 19, -1)
    np.savez("mine.npz", logits=logits[rows], indices=rows)
    found = json.loads(ok("compare", "small", 1, "--outputs", "mine.npz", "--json"))
    assert found["own_outputs"]["samples"] == 40
    [own] = found["own_outputs"]["outputs"]
    assert (own["fault"], own["near"]) == (None, True)
    assert own["verdict"].startswith("logits: no fault was found")
    flips = found["flips"]
    assert flips["samples"] == flips["right"] == 18, "labels are what the float model says"
    assert (flips["gained"]["count"], flips["moved"]["count"]) == (0, 0)


@pytest.mark.slow
def test_a_fault_at_the_inputs_is_named_and_no_other(studied: Path) -> None:
    """Found by running the models of the study on inputs with each fault, which the command does itself."""
    for change, words in (
        (lambda x: x / 255, "it is divided by 255 once more than it should be"),
        (lambda x: x * DEVIATION + MEAN, "mean and deviation (those of ImageNet) are not applied"),
        (lambda x: (x - MEAN) / DEVIATION, "mean and deviation (those of ImageNet) are applied twice"),
        (lambda x: x[:, ::-1], "its channels are in the other order, BGR for RGB"),
        (lambda x: x.transpose(0, 2, 3, 1).reshape(x.shape), "its memory is in the layout NHWC and read as NCHW"),
        (cut_middle, "its middle is cut out"),
    ):
        np.savez("mine.npz", logits=own_outputs(change))
        said = ok("compare", "small", 1, "--outputs", "mine.npz")
        named = [line for line in said.splitlines() if "input image: " in line]
        assert len(named) == 1, said
        assert words in named[0]
        assert "scale or offset" not in said, "one cause is named"
    found = json.loads(ok("compare", "small", 1, "--outputs", "mine.npz", "--json"))["own_outputs"]["input_fault"]
    assert (found["input"], found["cause"]) == ("image", "its middle is cut out (224 of 256) and enlarged")
    np.savez("mine.npz", logits=own_outputs(lambda images: np.roll(images, 3, axis=3)))
    assert "input image: " not in ok("compare", "small", 1, "--outputs", "mine.npz"), "none of the usual ones"


@pytest.mark.slow
def test_what_cannot_be_compared_is_refused_with_one_message(studied: Path) -> None:
    np.savez("mine.npz", scores=own_outputs())
    for arguments, words in (
        (("--outputs", "none.npz"), "--outputs none.npz: expected a .npz file, and there is none"),
        (("--outputs", "mine.npz", "--samples", 8), "--samples 8: expected at least 16 with --outputs"),
        (("--outputs", "mine.npz"), "there is none for 'logits', but for 'scores'"),
    ):
        result = invoke("compare", "small", 1, *arguments)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert words in result.stderr
        assert result.stderr.count("error: ") == 1


def told(**facts: Any) -> str:
    fault = Fault(**{"before_db": 2.0, "after_db": 35.0, "whole_db": 35.0, **facts})
    return verdict(WrapperOutput("y", 2.0, 2.0, 30.0, fault), 10.0)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"kind": FaultKind.SWAPPED, "other": "boxes"}, "it holds the values of the output 'boxes'"),
        ({"kind": FaultKind.LAYOUT, "order": (0, 2, 3, 1)}, "in the order (0, 2, 3, 1) (NHWC where NCHW is expected)"),
        (
            {"kind": FaultKind.PERMUTED, "axis": 1, "size": 3, "channels": [0, 2], "order": [2, 0]},
            "the 3 classes or channels are in reverse order",
        ),
        (
            {"kind": FaultKind.PERMUTED, "axis": 0, "size": 16, "channels": [0, 1, 2], "order": [2, 0, 1]},
            "3 of 16 samples are in another order",
        ),
        (
            {"kind": FaultKind.PERMUTED, "axis": 2, "size": 8, "channels": [0, 1, 2], "order": [2, 0, 1]},
            "3 of 8 entries of axis 2 are in another order: 0 holds 2, 1 holds 0, 2 holds 1",
        ),
        ({"kind": FaultKind.SCALE, "scales": [1 / 255]}, "it is 0.003922 × what is expected"),
        (
            {"kind": FaultKind.AFFINE, "axis": 1, "size": 3, "channels": [1], "scales": [2.0], "offsets": [-0.5]},
            "in 1 of 3 channels: channel 1 is 2 × what is expected - 0.5",
        ),
    ],
)
def test_every_kind_of_fault_has_its_sentence(facts: dict[str, Any], words: str) -> None:
    assert words in told(**facts)
    assert told(**facts).endswith("with that corrected, its SQNR rises from 2.0 dB to 35.0 dB")


def test_what_no_fault_explains_is_said(studied: Path) -> None:
    assert "no single fault explains the difference" in verdict(WrapperOutput("y", 2.0, 2.0, 30.0, None), 10.0)
    scaled = WrapperOutput("y", 2.0, 2.0, 30.0, Fault(FaultKind.SCALE, 2.0, 12.0, 12.0, scales=[2.0]))
    exact, rough = (InputFault("x", "it is mirrored", 2.0, after_db) for after_db in (80.0, 19.0))
    assert "a fault of an input explains the difference" in verdict(scaled, 10.0, exact)
    assert "a fault of an input explains a part of the difference" in verdict(scaled, 10.0, rough)
    assert input_text(exact, [scaled], 10.0).endswith("rises from 2.0 dB to 80.0 dB")
    assert "to 19.0 dB, where the whole cause would reach 20.0 dB" in input_text(rough, [scaled], 10.0)
    assert "no fault was found" in verdict(WrapperOutput("y", 25.0, 22.0, 30.0, None), 10.0)
    assert "no fault was found" in verdict(WrapperOutput("y", 60.0, 60.0, float("inf"), None), 10.0)
