"""The example of quantization-aware training, with PyTorch and from beginning to end: `make test-peers`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import ok
from tests.support.paths import ROOT

pytestmark = pytest.mark.peers


def torch(script: str, *words: str, cwd: Path) -> str:
    """Run a script of the example in the peers' environment; what it printed."""
    python = Path(os.environ["BITFRONT_PEERS"]).absolute() / "bin" / "python"
    command = [str(python), "-W", "ignore", str(ROOT / "examples/qat" / script), *words]
    done = subprocess.run(command, cwd=cwd, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def int8_loss(model: str, study: str, *options: str) -> float:
    """What all INT8 loses of a network of the example; `STUDY/` is then its export."""
    ok("search", f"example/{model}", "--data", "example/data.npz", "--study", study, "--trials", 2, "--batch", 50,
       "--recover", "none", "--quiet", *options)  # fmt: skip
    ok("export", study, "--trial", 1, "--out", study, "--for", "qat", "--quiet")
    manifest = json.loads(Path(study, "manifest.json").read_text(encoding="utf-8"))
    assert set(manifest["precision"].values()) == {"int8"}
    return float(manifest["search"]["loss"])


def test_one_epoch_for_int8_wins_back_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch("network.py", "--out", "example", cwd=tmp_path)
    before = int8_loss("network.onnx", "before")
    said = torch("finetune.py", "example", "before/handover/qat/qat.json", cwd=tmp_path)
    float_share, before_share, after_share = (
        float(line.partition("%")[0].split()[-1]) for line in said.splitlines()[:3]
    )
    assert float_share > before_share + 1, said
    assert after_share > before_share + 1, said
    assert before > 0.02
    assert int8_loss("tuned.onnx", "after", "--config", "example/ranges.toml") < before / 2
