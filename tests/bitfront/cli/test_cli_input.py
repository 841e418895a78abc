"""Bad input: refused with exit code 2 and a message of its own, before anything is made."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from search.installation import install_command
from studies.store.store import Store
from tests.support.command_line import (
    DATABASE,
    child,
    copy_finished,
    environment,
    finished,
    invoke,
    three_layers,
    tree,
    unprivileged,
    write_inputs,
)
from tests.support.networks import images, save
from tests.support.paths import ROOT

needs_permissions = pytest.mark.skipif(unprivileged() is None, reason="root without setpriv feels no permissions")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good model and good data, not to be written to."""
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, and a folder for temporary files that must be empty again at the end."""
    work, temporary = tmp_path / "here", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield work
    left = {path.name for path in temporary.iterdir() if path.suffix != ".lock"}
    assert left <= {".ses"}  # ONNX Runtime's own


@pytest.fixture
def studied(here: Path) -> Path:
    """A working directory whose default database holds the finished study `small`."""
    copy_finished(here)
    return here


def refused(*arguments: Any, says: list[str]) -> str:
    """Run a command that has to be refused, leaving the working directory as it is; its message."""
    before = tree(Path.cwd())
    result = invoke(*arguments)
    message = result.stderr
    assert result.exit_code == 2, f"exit {result.exit_code}\n{result.output}\n{result.exception!r}"
    assert result.stdout == ""
    assert "Traceback" not in message
    assert sum(line.startswith("error: ") for line in message.splitlines()) == 1
    for part in says:
        assert part in message
    assert tree(Path.cwd()) == before
    return message


def search_refused(inputs: Path, *arguments: Any, says: list[str], model: Any = None, data: Any = None) -> str:
    paths = (model or inputs / "model.onnx", "--data", data or inputs / "data.npz")
    return refused("search", *paths, *arguments, says=says)


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--latency-budget", "2.5"], ["--latency-budget", "2.5ms", "2500us"]),
        (["--latency-budget", "fast"], ["--latency-budget", "'fast'", "2.5ms"]),
        (["--latency-budget", "-2ms"], ["--latency-budget", "-2ms"]),
        (["--latency-budget", "0ms"], ["--latency-budget", "0ms"]),
        (["--max-drop", "little"], ["--max-drop", "'little'", "1%"]),
        (["--max-drop", "-1%"], ["--max-drop", "-1%"]),
        (["--max-drop", "1"], ["--max-drop", "1%"]),
        (["--max-drop", "1%", "--metric", "sqnr"], ["--max-drop", "sqnr", "--accuracy-limit 30dB"]),
        (["--accuracy-limit", "10%", "--metric", "mse"], ["--accuracy-limit", "mse", "percentage"]),
        (["--max-memory", "5"], ["--max-memory", "5"]),
        (["--max-memory", "-5MB"], ["--max-memory", "-5MB"]),
        (["--trials", "0"], ["--trials", "0"]),
        (["--trials", "many"], ["--trials", "'many'"]),
        (["--trials", "5", "--trials", "6"], ["--trials", "give it once"]),
        (["--time-limit", "30"], ["--time-limit", "30m"]),
        (["--seed", "-1"], ["--seed", "-1"]),
        (["--sampler", "cmaes"], ["--sampler", "cmaes", "tpe, nsga2, gp, random"]),
        (["--backend", "tensorflow"], ["--backend", "tensorflow", "onnxruntime"]),
        (["--device", "tpu"], ["--device tpu", "cpu, cuda"]),
        (["--device", "cpu:3"], ["--device cpu:3", "cpu, cuda"]),
        (["--granularity", "layer"], ["--granularity", "group, block"]),
        (["--calibration", "max"], ["--calibration", "minmax"]),
        (["--keep-engines", "some"], ["--keep-engines", "front, all, none"]),
        (["--metric", "f1"], ["f1", "top1"]),
        (["--keep", "first"], ["--keep", "REGEX=PRECISION", "'first'"]),
        (["--keep", "(=fp32"], ["--keep", "regular expression"]),
        (["--keep", "first=fp8"], ["--keep", "fp8"]),
        (["--keep", "tenth=fp32"], ["--keep", "tenth", "no layer name", "bitfront inspect"]),
        (["--keep", "first=fp16"], ["--keep 'first=fp16'", "fp32, w8, int8-dynamic, int8, w4", "got fp16"]),
        (["--keep", "first=fp32", "--keep", "conv|first=int8"], ["--keep", "already kept in fp32"]),
        (["--keep", ".*=fp32"], ["nothing to search", "kept by the rule"]),
        (["--shape", "image:4x3x8"], ["image", "4x3x8x8"]),
        (["--shape", "picture:4x3x8x8"], ["picture", "image"]),
        (["--shape", "image:8x3x8x8"], ["image"]),
        (["--batch", "8"], ["--batch 8"]),
        (["--batch", "4", "--shape", "image:8x3x8x8"], ["--batch 4", "--shape"]),
        (["--preprocess", "x:y"], ["--preprocess", "image folders"]),
        (["--study", ""], ["--study"]),
        (["--study", "x" * 201], ["--study", "200"]),
        (["--config", "none.toml"], ["--config none.toml", "TOML"]),
        (["--optimization-level", "6"], ["--optimization-level", "from 0 to 5", "write it like 5"]),
        (["--tf32", "maybe"], ["--tf32", "on, off", "'maybe'"]),
        (
            ["--sparsity"],
            ["--sparsity: expected only with backend tensorrt, got backend onnxruntime", "auto", "it out"],
        ),
        (["--workspace", "4GiB"], ["--workspace", "tensorrt"]),  # given, even if it is the default
        (["--backend", "onnxruntime", "--typing", "weak", "--plugin", "x.so"], ["--plugin, --typing", "them out"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and str(value[0]).startswith("--") else "",
)
def test_an_option_that_cannot_be_used(here: Path, inputs: Path, arguments: list[str], says: list[str]) -> None:
    search_refused(inputs, *arguments, says=says)


def test_every_bad_option_is_named_at_once(here: Path, inputs: Path) -> None:
    bad = ["--sampler", "cmaes", "--trials", "0", "--latency-budget", "3"]
    search_refused(inputs, *bad, says=["3 things are wrong", "cmaes", "--trials", "3ms"])


def test_model_and_data_missing(here: Path) -> None:
    refused("search", says=["MODEL is missing", "--data is missing"])


def test_gp_without_pytorch(here: Path, inputs: Path) -> None:
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("PyTorch is installed")
    search_refused(inputs, "--sampler", "gp", says=["--sampler gp", "PyTorch", install_command("gp")])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("modell = 'x'", ["'modell'", "did you mean model?"]),
        ("trials = ", ["--config", "TOML"]),
        ("trials = true", ["--trials in", "true"]),
        ("latency-budget = 2.5", ["--latency-budget in", "2.5ms"]),
    ],
)
def test_a_configuration_file_with_mistakes(
    here: Path, inputs: Path, tmp_path: Path, text: str, says: list[str]
) -> None:
    file = tmp_path / "study.toml"
    file.write_text(text)
    search_refused(inputs, "--config", file, says=says)


# -- models ------------------------------------------------------------------------------------------------------------


def write_text(folder: Path) -> Path:
    (folder / "text.onnx").write_text("this is no model")
    return folder / "text.onnx"


def write_empty(folder: Path) -> Path:
    (folder / "empty.onnx").touch()
    return folder / "empty.onnx"


def write_truncated(folder: Path) -> Path:
    data = save(three_layers(), folder / "whole.onnx").read_bytes()
    (folder / "half.onnx").write_bytes(data[: len(data) // 2])
    return folder / "half.onnx"


def write_external(folder: Path) -> Path:
    path = folder / "external.onnx"
    onnx.save(
        three_layers(), path, save_as_external_data=True, all_tensors_to_one_file=True, location="w", size_threshold=0
    )
    return path


def without_weights(folder: Path) -> Path:
    path = write_external(folder)
    (folder / "w").unlink()
    return path


def weights_outside(folder: Path) -> Path:
    path = write_external(folder)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = "../w" if entry.key == "location" else entry.value
    path.write_bytes(model.SerializeToString())
    return path


def chain(folder: Path, *nodes: onnx.NodeProto, weights: tuple[onnx.TensorProto, ...] = ()) -> Path:
    """A model of one input `x`, (2, 4), and one output `y`."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])
    domains = [helper.make_opsetid("", 17), *(helper.make_opsetid(n.domain, 1) for n in nodes if n.domain)]
    graph = helper.make_graph(list(nodes), "net", [x], [y], list(weights))
    return save(helper.make_model(graph, opset_imports=domains, ir_version=8), folder / "chain.onnx")


def without_layers(folder: Path) -> Path:
    return chain(folder, helper.make_node("Relu", ["x"], ["y"], name="relu"))


def unknown_op(folder: Path) -> Path:
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Sparkle", ["h"], ["y"], name="sparkle", domain="com.example"),
    ]
    return chain(folder, *nodes, weights=(weight,))


def dynamic(folder: Path) -> Path:
    return save(three_layers(batch="N"), folder / "dynamic.onnx")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: folder / "none.onnx", ["there is no file", "none.onnx"]),
        (lambda folder: folder, ["there is no file"]),
        (write_text, ["text.onnx", "not an ONNX file"]),
        (write_empty, ["empty.onnx", "not an ONNX file"]),
        (write_truncated, ["half.onnx", "truncated"]),
        (without_weights, ["external.onnx", "w"]),
        (weights_outside, ["external.onnx", "../w", "outside"]),
        (without_layers, ["Conv", "MatMul"]),
        (unknown_op, ["Sparkle"]),
        (dynamic, ["image", "N", "--batch", "--shape"]),
    ],
    ids=["no file", "a folder", "text", "empty", "truncated", "no weights", "weights outside",
         "no layer", "unknown op", "dynamic"],
)  # fmt: skip
def test_a_model_that_cannot_be_used(
    here: Path, inputs: Path, tmp_path: Path, make: Callable[[Path], Path], says: list[str]
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    data = inputs / "data.npz"
    if make is unknown_op:
        data = folder / "x.npz"
        np.savez(data, x=np.ones((8, 4), np.float32))
    search_refused(inputs, model=make(folder), data=data, says=says)


@pytest.mark.slow
def test_a_model_whose_layers_the_target_runs_in_one_precision_only(here: Path, inputs: Path, tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((4, 4, 1), np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4, 8])
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], name="up")
    graph = helper.make_graph([node], "net", [x], [y], [weight])
    path = save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m")
    np.savez(tmp_path / "x.npz", x=np.ones((8, 4, 8), np.float32))
    says = ["nothing to search", "no INT8 kernel for ConvTranspose"]
    search_refused(inputs, "--metric", "cosine", model=path, data=tmp_path / "x.npz", says=says)


# -- data --------------------------------------------------------------------------------------------------------------

GOOD = images(12, shape=(3, 8, 8))
LABELS = np.zeros(12, np.int64)


def changed(value: float) -> Any:
    array = GOOD.copy()
    array[3, 1, 2, 2] = value
    return array


@pytest.mark.slow
def test_a_bucket_without_credentials(here: Path, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client looks for them when it is made, the other when it is used."""
    pytest.importorskip("google.cloud.storage")
    pytest.importorskip("boto3")
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "STORAGE_EMULATOR"))]:
        monkeypatch.delenv(name)
    for name, value in (
        ("HOME", here),
        ("CLOUDSDK_CONFIG", here / "none"),
        ("NO_GCE_CHECK", "true"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("XDG_CACHE_HOME", inputs / "cache"),  # where ONNX Runtime writes
    ):
        monkeypatch.setenv(name, str(value))
    for url in ("gs://bucket/prefix", "s3://bucket/prefix"):
        search_refused(inputs, "--artifacts", url, says=[f"--artifacts {url}: ", "redentials", "network"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"labels": LABELS}, ["image"]),
        ({"picture": GOOD}, ["image", "picture"]),
        ({"image": GOOD, "mask": GOOD}, ["mask"]),
        ({"image": GOOD[:, :, :, :5]}, ["image", "(12, 3, 8, 5)", "(samples, 3, 8, 8)"]),
        ({"image": GOOD.astype(np.int64)}, ["image", "int64", "float32"]),
        ({"image": changed(np.nan)}, ["image", "NaN"]),
        ({"image": changed(np.inf)}, ["image", "Inf", "sample 3"]),
        ({"image": GOOD[:0]}, ["empty"]),
        ({}, ["image"]),
        ({"image": GOOD[:1]}, ["two"]),
        ({"image": GOOD, "labels": LABELS[:5]}, ["labels", "5", "12"]),
    ],
    ids=["no input", "another input", "extra input", "shape", "dtype", "NaN", "infinity", "empty", "no array",
         "one sample", "too few labels"],
)  # fmt: skip
def test_data_that_do_not_fit(here: Path, inputs: Path, tmp_path: Path, arrays: Any, says: list[str]) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays)
    message = search_refused(inputs, data=path, says=says)
    assert "bad.npz" in message


def write_pickled(folder: Path) -> str:
    np.savez(folder / "pickled.npz", image=np.array([{"a": 1}, None], dtype=object))
    return str(folder / "pickled.npz")


def write_half_npz(folder: Path) -> str:
    np.savez(folder / "whole.npz", image=GOOD)
    data = (folder / "whole.npz").read_bytes()
    (folder / "half.npz").write_bytes(data[: len(data) // 2])
    return str(folder / "half.npz")


def write_zip(folder: Path) -> str:
    with zipfile.ZipFile(folder / "notes.npz", "w") as archive:
        archive.writestr("notes.txt", "no array")
    return str(folder / "notes.npz")


def write_empty_folder(folder: Path) -> str:
    (folder / "nothing").mkdir()
    return str(folder / "nothing")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: str(folder / "none.npz"), ["none.npz", "no such file"]),
        (write_pickled, ["pickled.npz", "pickled"]),
        (write_half_npz, ["half.npz", "numpy.savez"]),
        (write_zip, ["notes.npz", "numpy.savez"]),
        (write_empty_folder, ["nothing", "empty"]),
        (lambda _: "no_such_module:samples", ["no_such_module"]),
        (lambda _: "json:samples", ["json", "samples"]),
    ],
    ids=["no file", "pickled", "truncated", "no arrays", "empty folder", "no module", "no function"],
)
def test_data_that_cannot_be_read(
    here: Path, inputs: Path, tmp_path: Path, make: Callable[[Path], str], says: list[str]
) -> None:
    search_refused(inputs, data=make(tmp_path), says=says)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--metric", "top1"], ["labels", "metric"]),
        (["--metric", "no_such_module:score"], ["no_such_module"]),
        (["--metric", "math:score"], ["math", "score"]),
        (["--final-data", "none.npz"], ["none.npz"]),
        (["--calibration-data", "none.npz"], ["none.npz"]),
    ],
)
def test_a_metric_or_further_data_that_cannot_be_used(
    here: Path, inputs: Path, tmp_path: Path, arguments: list[str], says: list[str]
) -> None:
    np.savez(tmp_path / "bare.npz", image=GOOD)
    search_refused(inputs, *arguments, data=tmp_path / "bare.npz", says=says)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("math:floor", ["math:floor"]),
        ("scores:one", ["scores:one", "shape"]),
        ("scores:raises", ["scores:raises", "KeyError"]),
        ("scores:nan", ["scores:nan", "gave nan", "finite"]),
    ],
)
def test_a_metric_that_fails_on_the_float_model(here: Path, inputs: Path, metric: str, says: list[str]) -> None:
    (here / "scores.py").write_text(
        "import numpy as np\n"
        "def one(outputs, labels): return np.float64(1)\n"
        "def raises(outputs, labels): raise KeyError('colour')\n"
        "def nan(outputs, labels): return np.full(len(labels), np.nan)\n"
    )
    search_refused(inputs, "--metric", metric, says=says)


# -- databases ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("study.db", ["--storage", "sqlite:///study.db"]),
        ("sqlite://", ["not a plain file"]),
        ("sqlite:///nowhere/study.db", ["nowhere", "not a folder"]),
        ("postgresql+psycopg://me:geheim@127.0.0.1:1/x", ["127.0.0.1:1/x"]),
        ("mysql+pymysql://me:geheim@127.0.0.1:1/x", ["127.0.0.1:1/x"]),
    ],
)
def test_a_database_that_cannot_be_reached(here: Path, inputs: Path, url: str, says: list[str]) -> None:
    message = search_refused(inputs, "--storage", url, says=says)
    assert "geheim" not in message


def test_a_database_of_another_program(here: Path, inputs: Path) -> None:
    with sqlite3.connect(here / DATABASE) as connection:
        connection.execute("create table albums (id integer)")
    connection.close()
    search_refused(inputs, says=["not bitfront's", "albums", "--storage"])
    refused("front", "x", says=["not bitfront's"])


def test_a_file_that_is_no_database(here: Path, inputs: Path) -> None:
    (here / DATABASE).write_text("a shopping list, long enough to have a header")
    search_refused(inputs, says=["not an SQLite database"])
    refused("status", says=["not an SQLite database"])


def test_a_database_of_a_newer_bitfront(studied: Path, inputs: Path) -> None:
    with sqlite3.connect(DATABASE) as connection:
        connection.execute("update bf_schema set version = 99")
    connection.close()
    for arguments in (["front", "small"], ["resume", "small"], ["status"]):
        refused(*arguments, says=["version 99", "To upgrade bitfront"])
    search_refused(inputs, "--study", "new", says=["version 99", "To upgrade bitfront"])


@pytest.mark.slow
@needs_permissions
def test_folders_and_files_that_may_not_be_written(studied: Path, inputs: Path, tmp_path: Path) -> None:
    """Root may write everywhere, so this runs in processes without that right."""
    (tmp_path / "closed").mkdir()
    copy_finished(tmp_path / "closed")
    for path in (tmp_path / "closed", tmp_path / "closed" / DATABASE):
        path.chmod(0o555 if path.is_dir() else 0o444)
    good = (inputs / "model.onnx", "--data", inputs / "data.npz", "--quiet")
    closed = f"sqlite:///{tmp_path}/closed/{DATABASE}"
    runs = {
        ("search", *good, "--study", "new", "--storage", closed): "read-only",
        ("search", *good, "--storage", f"sqlite:///{tmp_path}/closed/new.db"): "not a folder that can be written",
        ("search", *good, "--artifacts", tmp_path / "closed/engines", "--study", "new"): "--artifacts",
        ("resume", "small", "--storage", closed): "read-only",
        ("delete", "small", "--yes", "--storage", closed): "read-only",
        ("export", "small", "--out", tmp_path / "closed/engine"): "not a folder that can be written",
        ("report", "small", "--out", tmp_path / "closed/report.html"): "report.html",
    }
    before = tree(tmp_path / "closed"), tree(studied)
    answers = unprivileged_answers([*runs, ("front", "small", "--json", "--storage", closed)], studied)
    for (arguments, says), (code, stdout, stderr) in zip(runs.items(), answers, strict=False):
        assert (code, stdout) == (2, ""), (arguments, stderr)
        assert says in stderr, arguments
    assert json.loads(answers[-1][1])["evaluations"] == 4  # reading is allowed
    assert (tree(tmp_path / "closed"), tree(studied)) == before


def unprivileged_answers(commands: list[tuple[Any, ...]], cwd: Path) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of commands, all in one process that file permissions apply to."""
    code = (
        "import json, sys; from tests.support.command_line import invoke;"
        "results = [invoke(*arguments) for arguments in json.loads(sys.argv[1])];"
        "print(json.dumps([[r.exit_code, r.stdout, r.stderr] for r in results]))"
    )
    python = [*(unprivileged() or ()), sys.executable, "-c", code, json.dumps(commands, default=str)]
    env = environment({"PYTHONPATH": str(ROOT)})
    done = subprocess.run(python, cwd=cwd, env=env, capture_output=True, text=True, check=True)
    answers: list[tuple[int, str, str]] = json.loads(done.stdout)
    return answers


def test_reading_verbs_make_no_database(here: Path) -> None:
    for arguments in (
        ["front", "x"],
        ["show", "x", 1],
        ["report", "x", "--out", "report.html"],
        ["export", "x", "--out", "engine"],
        ["status"],
        ["delete", "x", "--yes"],
        ["resume", "x"],
        ["dashboard"],
    ):
        refused(*arguments, says=["no database at sqlite:///", DATABASE, "bitfront search"])


# -- studies -----------------------------------------------------------------------------------------------------------


def test_an_unknown_study(studied: Path) -> None:
    for arguments in (["front", "smal"], ["resume", "smal"], ["delete", "smal", "--yes"], ["show", "smal", 0]):
        refused(*arguments, says=["no study 'smal'", "Did you mean 'small'?"])
    refused("export", "other", "--out", "engine", says=["no study 'other'"])
    refused("report", "other", "--out", "report.html", says=["no study 'other'"])


def test_search_on_an_existing_study_names_resume(studied: Path, inputs: Path) -> None:
    search_refused(inputs, "--study", "small", says=["'small'", "bitfront resume small", "--study", "delete"])


def test_all_mistakes_of_a_search_are_told_at_once(studied: Path, inputs: Path) -> None:
    (studied / "bad.cache").write_text("not a cache")
    options = ("--study", "small", "--final-data", "more.npz", "--calibration-cache", "bad.cache")
    message = search_refused(
        inputs,
        *options,
        data="gone.npz",
        model="gone.onnx",
        says=["5 things are wrong", "bitfront resume small", "bad.cache: line 1", "no file gone.onnx", "'gone.npz'"],
    )
    assert "'more.npz': no such file or folder" in message
    both = search_refused(inputs, "--study", "small", data="gone.npz", says=["2 things are wrong", "'gone.npz'"])
    assert "bitfront resume small" in both


def test_a_missing_file_that_two_options_name_is_told_once(inputs: Path) -> None:
    message = search_refused(inputs, "--final-data", "gone.npz", data="gone.npz", says=["'gone.npz': no such file"])
    assert message.count("gone.npz") == 1


@pytest.mark.slow
def test_resume_with_another_model(studied: Path, tmp_path: Path) -> None:
    write_inputs(tmp_path / "other", three_layers(seed=1))
    refused("resume", "small", "--model", tmp_path / "other/model.onnx", says=["changed", "the model", "content"])
    refused("export", "small", "--out", "x", "--model", tmp_path / "other/model.onnx", says=["changed", "the model"])


@pytest.mark.slow
def test_resume_with_other_data(studied: Path, tmp_path: Path) -> None:
    write_inputs(tmp_path / "other", samples=64)
    refused(
        "resume",
        "small",
        "--data",
        tmp_path / "other/data.npz",
        says=["changed", "the data have other content", "--data"],
    )


def test_resume_when_the_files_are_gone(studied: Path) -> None:
    change(config=lambda config: {**config, "model": "/gone/model.onnx"})
    refused("resume", "small", says=["there is no file /gone/model.onnx"])


@pytest.mark.slow
def test_resume_on_another_target(studied: Path) -> None:
    with sqlite3.connect(DATABASE) as connection:
        path = "$.versions.onnxruntime"
        connection.execute("update bf_target set description = json_set(description, ?, '0.9')", [path])
    connection.close()
    refused(
        "resume", "small", "--trials", 9, says=["this host is another one", "onnxruntime: 0.9 there", "--new-target"]
    )


@pytest.mark.slow
def test_resume_with_another_space(studied: Path) -> None:
    change(config=lambda config: {**config, "keep": [{"pattern": "first", "precision": "fp32"}]})
    message = refused("resume", "small", "--trials", 9, says=["space", "--keep", "new study"])
    assert "Traceback" not in message


@pytest.mark.slow
def test_resume_with_limits_that_mean_nothing(studied: Path) -> None:
    refused("resume", "small", "--latency-budget", "2", says=["--latency-budget", "2ms"])
    refused("resume", "small", "--accuracy-limit", "30dB", says=["--accuracy-limit", "top1"])
    refused("front", "small", "--max-drop", "much", says=["--max-drop", "'much'"])
    refused("report", "small", "--out", "r.html", "--max-memory", "9", says=["--max-memory", "9"])


@pytest.mark.slow
def test_what_cannot_be_exported(studied: Path) -> None:
    (studied / "full").mkdir()
    (studied / "full" / "notes.txt").touch()
    out = ("--out", "engine")
    refused("export", "small", "--out", "full", says=["--out full", "not empty"])
    refused("export", "small", "--out", "full/notes.txt", says=["notes.txt", "file"])
    refused("export", "small", "--out", "full/notes.txt/engine", says=["notes.txt", "--out"])
    refused("export", "small", *out, "--pick", "quick", says=["--pick quick", "best, accurate, fast, knee"])
    refused("export", "small", *out, "--trial", 99, says=["--trial 99", "its trials are 0 to"])
    refused("export", "small", *out, "--trial", -1, says=["--trial -1", "its trials are 0 to"])
    refused("export", "small", *out, "--trial", 1, "--pick", "fast", says=["--pick and --trial were both given"])
    nobody = ("--latency-budget", "1ns")
    refused("export", "small", *out, *nobody, says=["keeps the limits", "nearest", "× the budget"])
    refused("show", "small", 99, says=["no trial 99", "trials 0 to"])


def test_a_report_that_cannot_be_written(studied: Path) -> None:
    (studied / "folder").mkdir()
    refused("report", "small", "--out", "folder", says=["folder"])
    refused("report", "small", "--out", "nowhere/report.html", says=["nowhere"])


def test_deleting_unasked(studied: Path) -> None:
    refused("delete", "small", says=["--yes"])


def test_an_unknown_option_or_verb_is_a_usage_error(here: Path) -> None:
    for arguments in (["front"], ["front", "x", "--colour"], ["fronts"], ["export", "x"], ["show", "x", "first"]):
        result = invoke(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert "Usage" in result.stderr or "Error" in result.stderr
    assert list(here.iterdir()) == []


def test_layers_refuses_as_search_does(here: Path, inputs: Path) -> None:
    model = inputs / "model.onnx"
    refused("inspect", here / "none.onnx", says=["No such file or directory"])
    refused("inspect", model, "--keep", "first=fp16", says=["fp16"])
    refused("inspect", model, "--device", "cuda", says=["--device cuda", install_command("gpu")])
    refused("inspect", model, "--data", "none.npz", says=["none.npz"])
    refused("inspect", model, "--granularity", "row", says=["--granularity"])


def test_a_demo_into_a_folder_that_holds_something(here: Path) -> None:
    (here / "demo").mkdir()
    (here / "demo" / "notes.txt").touch()
    refused("demo", says=["demo", "not empty", "--out"])


@pytest.mark.slow
def test_the_refusal_of_a_real_process(here: Path, inputs: Path) -> None:
    """One of all these for real: exit code, streams, and no file."""
    done = child("search", inputs / "model.onnx", "--data", inputs / "data.npz", "--latency-budget", "3", cwd=here)
    assert (done.returncode, done.stdout) == (2, "")
    assert "3ms" in done.stderr
    assert list(here.iterdir()) == []


def change(config: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the stored configuration of the study `small`."""
    with Store.open(f"sqlite:///{DATABASE}") as store:
        study = store.studies.load("small")
        store.studies.update(study.id, config=config(study.config))


def test_the_copied_study_is_complete(studied: Path) -> None:
    assert finished() != studied
    assert invoke("front", "small", "--json").exit_code == 0
