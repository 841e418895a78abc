"""Object stores for artifacts of hosts that share no folder: S3 through Optuna's store, and Google Cloud Storage.

An artifact's key is its digest under the URL's prefix. Both services show an object when all of it has arrived, and
not before. Credentials come from the environment, as the services' own tools take them, never from a URL.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, BinaryIO, Protocol

from search.errors import ArtifactError, ConfigError
from search.installation import install_command
from studies.options.urls import Bucket

# obstore was tried, with 60 lines fewer and Azure. It reads AWS profiles only through boto3, follows no redirect to a
# bucket's region, ignores AWS_CA_BUNDLE, hangs in processes that are forked after its first use, refuses federated
# credentials of Google's, and no emulator of Google's service that pip installs answers all of its requests.
CHUNK_BYTES = 1 << 20
CONNECT_S = 10


class Remote(Protocol):
    """Objects by name. Safe to use from several threads. Every method raises ArtifactError where the service fails."""

    bucket: Bucket

    def check(self) -> None:
        """See that the bucket is there and may be read."""

    def has(self, name: str) -> bool: ...

    def read(self, name: str, out: BinaryIO) -> bool:
        """Write an object's bytes to `out`, piece by piece; False when there is no such object."""

    def write(self, name: str, source: BinaryIO) -> None:
        """Store what is left to read of a file; it appears whole or not at all."""

    def remove(self, name: str) -> None:
        """Delete an object; nothing happens when it is gone already."""


def open_remote(bucket: Bucket) -> Remote:
    """A client of the bucket's service.

    Raises:
        ConfigError: its package is not installed.
    """
    try:
        remote: Remote = _STORES[bucket.scheme](bucket)
        return remote
    except ImportError as error:
        extra = "s3" if bucket.scheme == "s3" else "gcs"
        raise ConfigError(
            f"--artifacts {bucket.url}: its package is not installed: {error}. Install it: {install_command(extra)}"
        ) from error


class S3:
    """S3, and what speaks its protocol: AWS_ENDPOINT_URL names another service than Amazon's."""

    def __init__(self, bucket: Bucket) -> None:
        import boto3
        from botocore.config import Config
        from optuna.artifacts import Boto3ArtifactStore

        self.bucket = bucket
        with _report_errors("opening", bucket):
            config = Config(connect_timeout=CONNECT_S, retries={"mode": "standard", "max_attempts": 5})
            self._client = boto3.client("s3", config=config)
        # Without Optuna's copy in memory: a model may have gigabytes. What is handed in may be closed by boto3.
        self._store = Boto3ArtifactStore(bucket.name, self._client, avoid_buf_copy=True)

    def check(self) -> None:
        with _report_errors("looking into", self.bucket):
            self._client.list_objects_v2(Bucket=self.bucket.name, Prefix=self.bucket.prefix, MaxKeys=1)

    def has(self, name: str) -> bool:
        from botocore.exceptions import ClientError

        with _report_errors("looking into", self.bucket):
            try:
                self._client.head_object(Bucket=self.bucket.name, Key=self.bucket.key(name))
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in ("404", "NoSuchKey", "NotFound"):
                    return False
                raise
        return True

    def read(self, name: str, out: BinaryIO) -> bool:
        from optuna.artifacts.exceptions import ArtifactNotFound

        with _report_errors("reading from", self.bucket):
            try:
                body = self._store.open_reader(self.bucket.key(name))
            except ArtifactNotFound:
                return False
            with closing(body):
                shutil.copyfileobj(body, out, CHUNK_BYTES)
        return True

    def write(self, name: str, source: BinaryIO) -> None:
        with _report_errors("writing to", self.bucket):
            self._store.write(self.bucket.key(name), source)

    def remove(self, name: str) -> None:
        with _report_errors("deleting from", self.bucket):
            self._store.remove(self.bucket.key(name))


class GoogleCloud:
    """Google Cloud Storage by its own client: Optuna's store holds a whole file in memory, both ways."""

    def __init__(self, bucket: Bucket) -> None:
        from google.cloud import storage

        self.bucket = bucket
        with _report_errors("opening", bucket):
            self._client = storage.Client()
            self._objects = self._client.bucket(bucket.name)

    def check(self) -> None:
        with _report_errors("looking into", self.bucket):
            list(self._client.list_blobs(self._objects, prefix=self.bucket.prefix, max_results=1))

    def has(self, name: str) -> bool:
        with _report_errors("looking into", self.bucket):
            return bool(self._objects.blob(self.bucket.key(name)).exists())

    def read(self, name: str, out: BinaryIO) -> bool:
        from google.api_core.exceptions import NotFound

        with _report_errors("reading from", self.bucket):
            try:
                self._objects.blob(self.bucket.key(name)).download_to_file(out)
            except NotFound:
                return False
        return True

    def write(self, name: str, source: BinaryIO) -> None:
        from google.cloud.storage.retry import DEFAULT_RETRY

        with _report_errors("writing to", self.bucket):
            # Sent twice it is the same object, so any failure may be tried again.
            self._objects.blob(self.bucket.key(name)).upload_from_file(source, retry=DEFAULT_RETRY)

    def remove(self, name: str) -> None:
        from google.api_core.exceptions import NotFound

        with _report_errors("deleting from", self.bucket):
            try:
                self._objects.delete_blob(self.bucket.key(name))
            except NotFound:
                return


_STORES: dict[str, Any] = {"s3": S3, "gs": GoogleCloud}


@contextmanager
def _report_errors(action: str, bucket: Bucket) -> Iterator[None]:
    """Turn what a service's client raises into ArtifactError; what the local disk raises stays as it is."""
    try:
        yield
    except Exception as error:
        # By the package that defines it: neither client has one base class for all that it raises.
        packages = ("botocore", "boto3", "s3transfer", "urllib3", "google", "requests")
        kinds = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
        if not kinds & set(packages):
            raise
        text = " ".join(str(error).split()).rstrip(".")
        raise ArtifactError(
            f"{action} {bucket.url}: {type(error).__name__}: {text}. Check the name of the bucket, the "
            "credentials in the environment and the network. Then try again."
        ) from error
