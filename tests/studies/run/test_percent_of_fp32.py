"""`--max-drop 5%` for a metric whose values are no shares: 5 % of what FP32 reaches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from studies.store.store import Store
from tests.support.command_line import invoke, ok, write_inputs

METRIC = """
class NegativeError:
    unit = "u2"

    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, outputs, labels):
        self.total += float(((outputs["logits"] - labels) ** 2).sum())
        self.count += labels.size

    def compute(self):
        return -self.total / self.count
"""
SEARCH = ("search", "model.onnx", "--metric", "own.py:NegativeError", "--trials", "3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labels near what FP32 says in `data.npz`, and just that in `exact.npz`."""
    import onnxruntime

    made = tmp_path_factory.mktemp("percent")
    write_inputs(made, samples=160)
    (made / "own.py").write_text(METRIC)
    images = np.load(made / "data.npz")["image"]
    session = onnxruntime.InferenceSession(made / "model.onnx")
    batch = session.get_inputs()[0].shape[0]
    parts = [session.run(None, {"image": images[at : at + batch]})[0] for at in range(0, len(images), batch)]
    told = np.concatenate(parts)
    np.savez(made / "exact.npz", image=images, labels=told)
    noise = np.random.default_rng(0).normal(0, 0.1 * told.std(), told.shape)
    np.savez(made / "data.npz", image=images, labels=(told + noise).astype(np.float32))
    return made


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def test_the_limit_is_a_share_of_what_fp32_reaches() -> None:
    found = invoke(*SEARCH, "--data", "data.npz", "--max-drop", "5%", "--study", "s", "--json")
    assert found.exit_code == 0, found.output
    assert "--max-drop 5% of FP32's -" in found.stderr
    whole = json.loads(found.stdout)
    fp32 = next(row for row in whole["rows"] if row["mix"] == "all fp32")
    assert fp32["metric"] < 0
    assert whole["limits"]["max_drop"] == pytest.approx(-0.05 * fp32["metric"])
    assert fp32["final"] == "kept"
    with Store.open("sqlite:///bitfront.db", write=False) as store:
        assert store.studies.load("s").config["max_drop"] == {"value": 0.05, "percent": True, "unit": ""}

    def judged(*words: str) -> dict[str, object]:
        front = json.loads(ok("front", "s", "--all", "--json", *words))
        allowed = front["limits"]["max_drop"]
        told = {row["trial"]: row["feasible"] for row in front["rows"]}
        assert told == {row["trial"]: row["loss"] <= allowed for row in front["rows"]}
        return {"allowed": allowed, "kept": told}

    wide, narrow = judged("--max-drop", "1000%"), judged("--max-drop", "0.0001%")
    assert wide["allowed"] == pytest.approx(-10 * fp32["metric"])
    assert wide["kept"] != narrow["kept"]
    assert judged("--max-drop", "0.05")["allowed"] == 0.05
    ok("resume", "s", "--trials", "4", "--quiet")
    assert json.loads(ok("front", "s", "--json"))["limits"] == whole["limits"]
    ok("export", "s", "--out", "engine")
    manifest = json.loads(Path("engine/manifest.json").read_text(encoding="utf-8"))
    assert manifest["limits"] == whole["limits"]


def test_a_percentage_of_zero_ends_the_search_and_says_how_to_go_on() -> None:
    refused = invoke(*SEARCH, "--data", "exact.npz", "--max-drop", "5%", "--study", "zero")
    assert refused.exit_code == 1
    said = " ".join(refused.stderr.split())
    assert "--max-drop 5%: it is a percentage of FP32's own value of the metric, which is 0. Continue" in said
    assert "resume zero --max-drop LOSS" in said
    ok("status", "zero")
    ok("resume", "zero", "--max-drop", "1", "--quiet")
    gate = ["gate", "model.onnx", "--against", "model.onnx", "--metric", "own.py:NegativeError", "--max-drop", "5%"]
    refused = invoke(*gate, "--data", "exact.npz")
    assert refused.exit_code == 2
    assert "of the baseline's own value of the metric, which is 0. Write the loss" in " ".join(refused.stderr.split())


def test_one_mix_is_judged_by_the_share_too() -> None:
    words = ["--data", "data.npz", "--metric", "own.py:NegativeError", "--assign", "all=int8", "--max-drop", "5%"]
    found = json.loads(ok("evaluate", "model.onnx", *words, "--json"))
    assert found["limits"]["max_drop"] == pytest.approx(0.05 * abs(found["fp32"]["search"]["value"]))
