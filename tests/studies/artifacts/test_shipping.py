"""Model and data for other hosts: two hosts, each with a folder and a cache of its own, on one PostgreSQL."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from search.errors import ArtifactError
from studies.artifacts import shipping
from studies.artifacts.buckets import open_remote
from studies.artifacts.locations import open_artifacts
from studies.events import Quiet
from studies.options.config import SearchConfig
from studies.options.urls import Bucket, parse_place
from studies.store.records import StudyRecord
from studies.store.store import Store
from tests.support.command_line import copy_finished, invoke, ok, tree, write_inputs
from tests.support.servers import object_stores
from tests.support.servers.databases import postgresql_url
from tests.support.study_rows import STUDY

pytestmark = pytest.mark.slow


class Host:
    """A folder to work in and a cache; `with` it, this process is that host."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.cache = folder / "work", folder / "cache"
        self.folder.mkdir(parents=True)
        self._patch = patch

    def here(self) -> Path:
        self._patch.chdir(self.folder)
        self._patch.setenv("XDG_CACHE_HOME", str(self.cache))
        return self.folder

    def fetched(self) -> dict[str, bytes]:
        """What lies in the cache of inputs, by name."""
        files = [path for path in (self.cache / "bitfront" / "inputs").rglob("*") if path.is_file()]
        return {path.name: path.read_bytes() for path in files if path.suffix != ".lock"}


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Host, Host]:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))  # wait for nobody else's measurements
    return Host(tmp_path / "one", monkeypatch), Host(tmp_path / "two", monkeypatch)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    found = postgresql_url()
    monkeypatch.setenv("BITFRONT_STORAGE", found)
    return found


def write_with_external_data(folder: Path) -> None:
    """`model.onnx` whose weights lie in two files, one of them in a folder below."""
    write_inputs(folder)
    proto = onnx.load(folder / "model.onnx")
    (folder / "weights").mkdir()
    for number, tensor in enumerate(proto.graph.initializer):
        name = "weights/a.bin" if number % 2 else "b.bin"
        where = folder / name
        start = where.stat().st_size if where.exists() else 0
        with where.open("ab") as file:
            file.write(tensor.raw_data)
        onnx.external_data_helper.set_external_data(tensor, name, start, len(tensor.raw_data))
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
    (folder / "model.onnx").write_bytes(proto.SerializeToString())


def search(*arguments: Any) -> str:
    return ok("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--sampler", "random", *arguments)


def refused(*arguments: Any, says: str, code: int = 2) -> str:
    result = invoke(*arguments)
    assert (result.exit_code, says in result.stderr) == (code, True), result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


def test_a_host_that_has_nothing_works_on_a_study_in_s3(
    hosts: tuple[Host, Host], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    object_stores.use(monkeypatch, "s3")
    bucket = object_stores.new_bucket("s3")
    one, two = hosts
    write_with_external_data(one.here() / "in")
    search("--trials", 3, "--artifacts", bucket)
    assert not any(path.suffix == ".artifacts" for path in one.folder.iterdir())
    inputs = tree(one.folder / "in")
    one.folder.rename(one.folder.with_name("gone"))

    two.here()
    said = ok("worker", "s", "--trials", 5)
    assert "5 evaluations are done" in said
    expected = {Path(name).name: content for name, content in inputs.items() if content}
    assert two.fetched() == expected
    assert list(two.folder.iterdir()) == []
    with Store.open(url, write=False) as store:
        study = store.studies.load("s")
        assert study.config["model"] == study.model_path == str(one.folder / "in/model.onnx")
        assert study.config["artifacts"] == bucket
        assert [(f.role, f.name) for f in store.files.inputs(study.id)] == [
            ("data", "data.npz"), ("model", "model.onnx"), ("model", "b.bin"), ("model", "weights/a.bin")
        ]  # fmt: skip

    before = {path: path.stat().st_mtime_ns for path in (two.cache / "bitfront/inputs").rglob("*.*")}
    assert "exported" in ok("export", "s", "--out", "engine", "--trial", 1)
    ok("compare", "s", 1)
    assert before == {path: path.stat().st_mtime_ns for path in before}  # fetched once
    ok("delete", "s", "--yes")
    assert keys(bucket) == []


def keys(url: str) -> list[str]:
    import boto3

    place = parse_place(url)
    assert isinstance(place, Bucket)
    listed = boto3.client("s3").list_objects_v2(Bucket=place.name)
    return [entry["Key"] for entry in listed.get("Contents", [])]


def test_hosts_that_share_a_folder(hosts: tuple[Host, Host], url: str, tmp_path: Path) -> None:
    one, two = hosts
    write_inputs(one.here() / "in")
    shared = tmp_path / "shared"
    result = invoke("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 2,
                    "--sampler", "random", "--artifacts", f"file://{shared}")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "2 files of model and data, " in result.stderr
    assert f" are in {shared} for other hosts" in result.stderr
    model = (one.folder / "in/model.onnx").read_bytes()
    (one.folder / "in/model.onnx").write_bytes(b"something else by now")
    two.here()
    # There is a file at the recorded path of this host, but it is another one.
    assert "3 evaluations are done" in ok("worker", "s", "--trials", 3)
    assert two.fetched() == {"model.onnx": model}
    (one.folder / "in/model.onnx").write_bytes(model)
    shutil.rmtree(two.cache)
    with Store.open(url, write=False) as store:
        study = store.studies.load("s")
        config = SearchConfig.from_json(study.config, url)
        assert shipping.here(store, study, config, Quiet()) == config  # what is here is used
    assert two.fetched() == {}


def test_a_folder_that_is_not_shared_is_noticed(hosts: tuple[Host, Host], url: str, tmp_path: Path) -> None:
    one, two = hosts
    shared, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    write_inputs(one.here() / "in")
    search("--trials", 2, "--artifacts", shared)
    shared.rename(elsewhere)
    # A host that has model and data itself.
    for mounted in (False, True):
        refused("worker", "s", "--trials", 3, says=f"{shared} holds none of the files that were put there")
        assert shared.exists() is mounted
        shared.mkdir(exist_ok=True)
    assert list(shared.iterdir()) == []
    assert workers_of(url) == 1, "who is refused leaves nothing"
    shared.rmdir()
    elsewhere.rename(shared)
    ok("worker", "s", "--trials", 3)
    shared.rename(elsewhere)
    # One that has neither.
    shutil.copytree(one.folder / "in", two.here() / "in")
    one.folder.rename(one.folder.with_name("gone"))
    message = refused("worker", "s", "--trials", 4, says=f"its model is not here as {one.folder}/in/model.onnx")
    assert f"is not in {shared}, where it was put for other hosts" in message
    assert "Every host has to see the same place; or give --model" in message
    assert two.fetched() == {}
    refused("worker", "s", "--model", "in/nothing.onnx", "--data", "in/data.npz", says="in/nothing.onnx")
    assert workers_of(url) == 2
    # Given by hand they are put there again.
    ok("worker", "s", "--trials", 4, "--model", "in/model.onnx", "--data", "in/data.npz")
    with Store.open(url, write=False) as store:
        assert all((shared / file.digest).is_file() for file in store.files.inputs(store.studies.load("s").id))


def workers_of(url: str) -> int:
    with Store.open(url, write=False) as store:
        return len(store.workers.of_target(store.targets.of_study(store.studies.load("s").id)[0].id))


def test_files_that_another_study_lets_go_of_are_put_again(hosts: tuple[Host, Host], url: str, tmp_path: Path) -> None:
    write_inputs(hosts[0].here() / "in")
    model, data = (str(hosts[0].folder / "in" / name) for name in ("model.onnx", "data.npz"))
    config = SearchConfig(model, data, "s", storage=url, artifacts=str(tmp_path / "shared"))
    artifacts = open_artifacts(config)
    files = shipping.put(artifacts, config, Quiet())
    artifacts.remove(files[0].digest)
    shipping.put_again(artifacts, config, files, Quiet())
    assert [file.digest in artifacts for file in files] == [True, True]


@contextmanager
def shipped(one: Host, bucket: str) -> Iterator[tuple[Store, StudyRecord, SearchConfig]]:
    """A study whose files one host has put into a bucket, and that never ran; then that host is gone."""
    write_inputs(one.here() / "in")
    model, data = (str(one.folder / "in" / name) for name in ("model.onnx", "data.npz"))
    config = SearchConfig(model, data, "s", storage=f"sqlite:///{one.folder.parent / 'a.db'}", artifacts=bucket)
    files = shipping.put(open_artifacts(config), config, Quiet())
    with Store.open(config.storage, create=True) as store:
        number = store.studies.create(STUDY.with_values(name="s", config=config.to_json()))
        store.files.set_inputs(number, files)
        one.folder.rename(one.folder.with_name("gone"))
        yield store, store.studies.load("s"), config


def test_what_arrives_damaged_is_refused(hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    object_stores.use(monkeypatch, "gs")
    bucket = object_stores.new_bucket("gs")
    one, two = hosts
    with shipped(one, bucket) as (store, study, config):
        model = next(file for file in store.files.inputs(study.id) if file.role == "model")
        place = parse_place(bucket)
        assert isinstance(place, Bucket)
        open_remote(place).write(model.digest, io.BytesIO(b"something else"))
        two.here()
        message = f"fetching the study's model model.onnx .*Artifact {model.digest} in {bucket} was changed or damaged"
        with pytest.raises(ArtifactError, match=message):
            shipping.here(store, study, config, Quiet())
        assert two.fetched() == {}


def test_names_in_the_database_lead_nowhere_else(hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    object_stores.use(monkeypatch, "s3")
    one, two = hosts
    with shipped(one, object_stores.new_bucket("s3")) as (store, study, config):
        known = store.files.inputs(study.id)
        two.here()
        for name in ("../model.onnx", "/tmp/model.onnx", "a/../../model.onnx"):
            store.files.set_inputs(study.id, [file.with_values(name=name) for file in known])
            with pytest.raises(ArtifactError, match=f"'{name}' is no path below a folder"):
                shipping.here(store, study, config, Quiet())
        assert two.fetched() == {}
        store.files.set_inputs(study.id, known)
        found = shipping.here(store, study, config, Quiet())
        assert Path(found.model).read_bytes() == two.fetched()["model.onnx"]
        assert Path(found.model).is_relative_to(two.cache)
        # A copy that is damaged is fetched again, whole.
        Path(found.data).write_bytes(b"x")
        assert shipping.here(store, study, config, Quiet()) == found
        assert len(two.fetched()["data.npz"]) == next(f.size_bytes for f in known if f.role == "data")


def test_folders_and_functions_are_not_shipped(
    hosts: tuple[Host, Host], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = hosts
    write_inputs(one.here() / "in")
    (one.folder / "in/shards").mkdir()
    data = dict(np.load(one.folder / "in/data.npz"))
    np.savez(one.folder / "in/shards/1.npz", **{name: array[:40] for name, array in data.items()})
    np.savez(one.folder / "in/shards/2.npz", **{name: array[40:] for name, array in data.items()})
    arguments = ("--study", "folder", "--trials", 2, "--artifacts", tmp_path / "shared", "--sampler", "random")
    result = invoke("search", "in/model.onnx", "--data", "in/shards", *arguments)
    assert result.exit_code == 0, result.output
    assert "in/shards is not a file, so every other host needs it too" in result.stderr
    (one.folder / "sixty_samples.py").write_text(
        "import numpy as np\ndef load():\n    return dict(np.load('in/data.npz'))\n"
    )
    ok("search", "in/model.onnx", "--data", "sixty_samples:load", "--study", "function", *arguments[2:])
    shutil.copytree(one.folder / "in", two.here() / "in")
    shutil.copy(one.folder / "sixty_samples.py", two.folder / "sixty_samples.txt")
    one.folder.rename(one.folder.with_name("gone"))
    monkeypatch.delitem(sys.modules, "sixty_samples")  # a process of another host has imported nothing

    message = refused("worker", "folder", "--trials", 3, says="is a folder or a file of the host that made it")
    assert "Give --data with the same content on this host" in message
    message = refused("worker", "function", "--trials", 3, says="sixty_samples:load is a function")
    assert "Run from the folder that holds its module, install it, or give --data" in message
    (two.folder / "sixty_samples.txt").rename(two.folder / "sixty_samples.py")
    for name, data in (("folder", ("--data", "in/shards")), ("function", ())):
        assert "2 evaluations are done" in ok("worker", name, *data)


def test_a_study_in_a_file_ships_nothing(hosts: tuple[Host, Host]) -> None:
    one, _ = hosts
    copy_finished(one.here())
    with Store.open("sqlite:///bitfront.db", write=False) as store:
        assert store.files.inputs(store.studies.load("small").id) == ()
        assert {artifact.kind for artifact in store.files.all()} == {"ranges", "statistics", "engine"}
    assert not (one.cache / "bitfront" / "inputs").exists()
    assert not (one.cache / "bitfront" / "artifacts").exists()


def test_engines_of_a_study_in_a_file_may_lie_in_s3(hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    object_stores.use(monkeypatch, "s3")
    bucket = object_stores.new_bucket("s3")
    one, _ = hosts
    write_inputs(one.here() / "in")
    search("--trials", 3, "--artifacts", bucket, "--keep-engines", "all")
    assert len(keys(bucket)) == 3 + 2 + 2  # engines, ranges and statistics, model and data
    shutil.rmtree(one.cache)
    assert "exported" in ok("export", "s", "--out", "engine", "--trial", 1)
    assert json.loads((one.folder / "engine/manifest.json").read_text())["trial"] == 1
    ok("delete", "s", "--yes")
    assert keys(bucket) == []


def test_what_is_refused_before_anything_is_made(hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    object_stores.use(monkeypatch, "s3")
    one, _ = hosts
    write_inputs(one.here() / "in")
    words = ("search", "in/model.onnx", "--data", "in/data.npz", "--artifacts")
    message = refused(*words, "s3://no-such-bucket/x", says="--artifacts s3://no-such-bucket/x: looking into")
    assert "NoSuchBucket" in message
    refused(*words, "ftp://host/x", says="expected a folder, file:///folder, s3://bucket/prefix or gs://bucket/prefix")
    message = refused(*words, "s3://me:s3cret@bucket", says="Credentials come from the environment")
    assert "s3cret" not in message
    assert {path.name for path in one.folder.iterdir()} == {"in"}
