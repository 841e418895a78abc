"""Artifacts in object stores: named by content, whole or absent, checked on arrival, fetched once, gone on release."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from search.errors import ArtifactError, ConfigError
from studies.artifacts.buckets import Remote, open_remote
from studies.artifacts.folder import Artifacts
from studies.options.urls import Bucket, parse_place
from tests.support.servers import object_stores


@pytest.fixture(params=["s3", "gs"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    object_stores.use(monkeypatch, request.param)
    found = parse_place(object_stores.new_bucket(request.param))
    assert isinstance(found, Bucket)
    return found


def host(bucket: Bucket, folder: Path) -> Artifacts:
    """What one host opens: a client and a folder of its own."""
    return Artifacts(folder, open_remote(bucket))


def test_what_one_host_puts_another_finds(bucket: Bucket, tmp_path: Path) -> None:
    data = os.urandom(9 << 20)  # more than one part of an upload
    (tmp_path / "engine").write_bytes(data)
    one, two = host(bucket, tmp_path / "one"), host(bucket, tmp_path / "two")
    one.remote.check()
    digest = one.put_file(tmp_path / "engine", "engine")
    assert digest == hashlib.sha256(data).hexdigest()
    assert digest in two
    assert not (tmp_path / "two").exists()
    assert two.path(digest).read_bytes() == data
    assert two.path(digest).parent == tmp_path / "two"
    assert two.read_bytes(digest) == data
    two.copy(digest, tmp_path / "there" / "model.onnx")
    assert (tmp_path / "there" / "model.onnx").read_bytes() == data
    two.remove(digest)
    two.remove(digest)
    assert digest not in two
    assert not two.remote.has(digest)
    with pytest.raises(ArtifactError, match=f"Artifact {digest} is not in {bucket.url}"):
        two.path(digest)
    with pytest.raises(ArtifactError, match=f"Artifact {digest} is not in {bucket.url}"):
        two.copy(digest, tmp_path / "not there")
    assert not (tmp_path / "not there").exists()


def test_a_file_is_sent_once_and_shared_without_a_copy(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"weights")
    artifacts = host(bucket, tmp_path / "one")
    sent = counted(artifacts)
    for _ in range(2):
        digest = artifacts.share(tmp_path / "model.onnx", "model")
        artifacts.put_bytes(b"ranges", "ranges")
    assert sent == [digest, hashlib.sha256(b"ranges").hexdigest()]
    assert [path.name for path in (tmp_path / "one").iterdir()] == [hashlib.sha256(b"ranges").hexdigest()]
    plain = Artifacts(tmp_path / "folder")
    assert {plain.share(tmp_path / "model.onnx", "model") for _ in range(2)} == {digest}
    assert plain.read_bytes(digest) == b"weights"


def counted(artifacts: Artifacts) -> list[str]:
    """Names that are written from now on."""
    assert artifacts.remote is not None
    found: list[str] = []
    write = artifacts.remote.write

    def noted(name: str, source: object) -> None:
        found.append(name)
        write(name, source)  # type: ignore[arg-type]

    artifacts.remote.write = noted  # type: ignore[method-assign]
    return found


def test_what_arrives_damaged_is_not_kept(bucket: Bucket, tmp_path: Path) -> None:
    one, two = host(bucket, tmp_path / "one"), host(bucket, tmp_path / "two")
    digest = one.put_bytes(b"engine", "engine")
    overwrite(one.remote, digest, tmp_path)
    for use in (two.path, two.read_bytes, lambda name: two.copy(name, tmp_path / "copy")):
        with pytest.raises(ArtifactError, match="changed or damaged"):
            use(digest)
    assert [path.name for path in (tmp_path / "two").iterdir() if not path.name.endswith(".lock")] == []
    assert not (tmp_path / "copy").exists()
    assert one.read_bytes(digest) == b"engine"  # its own copy is whole


def overwrite(remote: Remote | None, name: str, folder: Path) -> None:
    (folder / "other").write_bytes(b"engina")
    assert remote is not None
    with (folder / "other").open("rb") as source:
        remote.write(name, source)


def test_a_damaged_copy_is_fetched_again(bucket: Bucket, tmp_path: Path) -> None:
    artifacts = host(bucket, tmp_path / "one")
    digest = artifacts.put_bytes(b"engine", "engine")
    artifacts.path(digest).write_bytes(b"engina")
    assert artifacts.read_bytes(digest) == b"engine"
    assert artifacts.path(digest).read_bytes() == b"engine"


def test_several_of_one_host_fetch_once(bucket: Bucket, tmp_path: Path) -> None:
    digest = host(bucket, tmp_path / "one").put_bytes(b"engine", "engine")
    others = [host(bucket, tmp_path / "two") for _ in range(4)]
    fetched: list[str] = []
    for one in others:
        read = one.remote.read

        def noted(name: str, out: object, read: object = read) -> bool:
            fetched.append(name)
            return read(name, out)  # type: ignore[operator]

        one.remote.read = noted  # type: ignore[method-assign]
    threads = [threading.Thread(target=one.path, args=(digest,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetched == [digest]


def test_copies_of_what_others_deleted_go_when_they_are_old(bucket: Bucket, tmp_path: Path) -> None:
    artifacts = host(bucket, tmp_path / "one")
    keep, young, old = (artifacts.put_bytes(data, "engine") for data in (b"keep", b"young", b"old"))
    for digest in (keep, old):
        os.utime(artifacts.path(digest), (1, 1))
    artifacts.prune_copies({keep})
    assert {path.name for path in artifacts.folder.iterdir()} == {keep, young}
    assert artifacts.read_bytes(old) == b"old"  # the service has it still


def test_keys_stand_under_the_prefix(bucket: Bucket, tmp_path: Path) -> None:
    digest = host(bucket, tmp_path / "one").put_bytes(b"engine", "engine")
    above = open_remote(Bucket(bucket.scheme, bucket.name, ""))
    assert above.has(f"studies/of team/{digest}")
    assert not above.has(digest)


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_bucket_that_is_not_there_is_named(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    object_stores.use(monkeypatch, scheme)
    artifacts = host(Bucket(scheme, "no-such-bucket", "x"), tmp_path / "one")
    assert artifacts.remote is not None
    with pytest.raises(ArtifactError, match=f"looking into {scheme}://no-such-bucket/x: "):
        artifacts.remote.check()
    with pytest.raises(ArtifactError, match=f"{scheme}://no-such-bucket/x: .*credentials"):
        artifacts.put_bytes(b"engine", "engine")


@pytest.mark.slow
def test_a_service_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    object_stores.use(monkeypatch, "s3")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(ArtifactError, match=r"looking into s3://bucket-x: .*127\.0\.0\.1:9") as caught:
        host(Bucket("s3", "bucket-x", ""), tmp_path).remote.check()
    assert "not-so-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("engines", Path("engines")),
        ("/srv/a b", Path("/srv/a b")),
        ("file:///srv/a%20b", Path("/srv/a b")),
        ("s3://bucket", Bucket("s3", "bucket", "")),
        ("s3://bucket/", Bucket("s3", "bucket", "")),
        ("gs://my.bucket_1/a/b/", Bucket("gs", "my.bucket_1", "a/b")),
    ],
)
def test_places(text: str, expected: Path | Bucket) -> None:
    assert parse_place(text) == expected


@pytest.mark.parametrize(
    "text",
    ["http://host/x", "s3://", "s3://B/x", "file://host/x", "file:///", "gs:///x", "s3://k:pw@bucket", "s3://bkt?x=pw"],
)
def test_places_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a folder, file:///folder, s3://bucket/prefix") as caught:
        parse_place(text)
    assert "pw" not in str(caught.value)
