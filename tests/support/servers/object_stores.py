"""Object stores on this machine: S3 by moto, Google Cloud Storage by its emulator, spoken to by the real clients."""

from __future__ import annotations

import itertools
import logging
import threading
from functools import cache

import pytest

_COUNT = itertools.count()


@cache
def _s3_port() -> int:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_port)


@cache
def _gs_port() -> int:
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True)
    server._api.daemon = True  # else the process would wait for it at its end
    server.start()
    return int(server._api._httpd.socket.getsockname()[1])


def s3_environment() -> dict[str, str]:
    """Variables that name the S3 server on this machine."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{_s3_port()}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "not-so-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def gs_environment() -> dict[str, str]:
    """Variables that name the Google Cloud Storage server on this machine."""
    return {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{_gs_port()}", "GOOGLE_CLOUD_PROJECT": "test"}


def use(patch: pytest.MonkeyPatch, scheme: str) -> None:
    """Let this process speak to the services of this machine, and to no other."""
    for name, value in {"s3": s3_environment, "gs": gs_environment}[scheme]().items():
        patch.setenv(name, value)


def new_bucket(scheme: str) -> str:
    """The URL of an empty place in a bucket of its own; needs `use`."""
    name = f"bucket-{next(_COUNT)}"
    if scheme == "s3":
        import boto3

        boto3.client("s3").create_bucket(Bucket=name)
    else:
        from google.cloud import storage

        storage.Client().create_bucket(name)
    return f"{scheme}://{name}/studies/of team"
