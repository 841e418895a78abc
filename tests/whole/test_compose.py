"""Compose and Kubernetes files keep to their schemas, and the scripts of the image do what these rely on."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from studies.store.store import Store, close_optuna, optuna_storage
from tests.support.command_line import environment, write_inputs
from tests.support.crashes.shared_study import assert_whole, rows, until
from tests.support.docs_pages import parse
from tests.support.paths import ROOT
from tests.support.servers.databases import PASSWORD, free_port, postgresql_url

pytestmark = pytest.mark.slow

DOCKER = ROOT / "docker"
COMPOSE = DOCKER / "compose.yaml"
KUBERNETES = ROOT / "docs" / "kubernetes.md"
SCRIPTS = {name: DOCKER / name for name in ("one-gpu", "study", "healthy")}
TOOLS = {"bitfront", "on-gpu"}
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
FILES = [DOCKER / "kubernetes" / f"{name}.yaml" for name in ("database", "volume", "workers", "export")]
MANIFESTS = [part for path in FILES for part in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def test_the_compose_file_keeps_to_the_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_service_is_healthy_by_a_check_of_its_own_and_tools_by_none() -> None:
    assert {"database", "worker", "dashboard"} == SERVICES.keys() - TOOLS
    for name, service in SERVICES.items():
        check = service["healthcheck"]
        assert check == {"disable": True} if name in TOOLS else check["test"][0] == "CMD", name
        assert service.get("profiles", []) == (["tools"] if name in TOOLS else []), name
        assert name == "database" or service["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert SERVICES["worker"]["healthcheck"]["test"] == ["CMD", "healthy"]


def test_workers_reserve_gpus_and_take_one_each() -> None:
    for name in ("worker", "on-gpu"):
        (device,) = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        assert SERVICES[name]["entrypoint"][0] == "one-gpu"
    assert all("deploy" not in SERVICES[name] for name in ("database", "dashboard", "bitfront"))


def test_volumes_have_names_and_databases_are_not_offered_to_everybody() -> None:
    named = yaml.safe_load(COMPOSE.read_text())["volumes"].keys()
    mounted = {mount for service in SERVICES.values() for mount in service["volumes"]}
    assert named == {"database", "studies"}
    assert mounted == {
        "database:/var/lib/postgresql/data",
        "${BITFRONT_STUDIES:-studies}:/studies",
        "${BITFRONT_WORK:?export BITFRONT_WORK, the folder with study.toml, model and data}:/work",
    }
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith(("127.0.0.1:", "${BITFRONT_DB_BIND:-127.0.0.1}:")) for port in ports)


def test_secrets_come_from_the_environment_and_variables_are_documented() -> None:
    text = COMPOSE.read_text(encoding="utf-8")
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            assert ("PASSWORD" in name) == str(value).startswith("${BITFRONT_DB_PASSWORD:?"), name
    variables = set(re.findall(r"\$\{(BITFRONT_\w+)", text))
    required = set(re.findall(r"\$\{(BITFRONT_\w+):\?", text))
    page = (ROOT / "docs/docker.md").read_text(encoding="utf-8")
    documented = {
        name: row
        for row in page.splitlines()
        for name in re.findall(r"^\| .*", row) and re.findall(r"`(BITFRONT_\w+)`", row)
    }
    assert documented.keys() == variables
    assert {name for name, row in documented.items() if "| required |" in row} == required


def test_what_object_stores_ask_for_is_handed_on() -> None:
    named = set(re.findall(r"`((?:AWS|GOOGLE)_\w+)`", (ROOT / "docs/artifacts.md").read_text(encoding="utf-8")))
    assert len(named) >= 4
    for name in ("worker", "bitfront", "on-gpu"):
        given = SERVICES[name]["environment"]
        assert all(given.get(variable, "") is None for variable in named), name  # none: as it is on the host
        assert given["BITFRONT_ARTIFACTS"] == "${BITFRONT_ARTIFACTS:-/studies/artifacts}"


def test_the_image_has_the_scripts() -> None:
    copied = re.search(r"^COPY (.*) /usr/local/bin/$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert copied is not None
    assert {ROOT / name for name in copied[1].split()} == set(SCRIPTS.values())
    assert all(os.access(path, os.X_OK) for path in SCRIPTS.values())
    for name in ("one-gpu", "study"):
        subprocess.run(["sh", "-n", SCRIPTS[name]], check=True)


# -- one-gpu -------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with two GPUs, as far as nvidia-smi is concerned; the folder of locks."""
    if shutil.which("flock") is None:
        pytest.skip("flock is not installed; it is part of util-linux")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/nvidia-smi"
    program.write_text(
        "#!/bin/sh\n[ \"$*\" = '--query-gpu=uuid --format=csv,noheader' ] && printf 'GPU-a\\nGPU-b\\n'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("BITFRONT_GPUS", str(tmp_path / "locks"))
    monkeypatch.setenv("BITFRONT_GPU_WAIT_S", "0.05")
    return tmp_path / "locks"


def claim() -> subprocess.Popen[str]:
    """Says on which GPU it is, and stays until its input ends."""
    command = [SCRIPTS["one-gpu"], "sh", "-c", "echo on $CUDA_VISIBLE_DEVICES; read line"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_each_container_gets_a_gpu_that_no_other_has(gpus: Path) -> None:
    first, second = claim(), claim()
    third = None
    try:
        assert {said(first), said(second)} == {"on GPU-a", "on GPU-b"}
        third = claim()
        assert third.stderr is not None
        assert "every GPU of this host is taken" in third.stderr.readline()
        first.send_signal(signal.SIGKILL)  # its lock goes with it
        assert said(third) in ("on GPU-a", "on GPU-b")
        assert {path.name for path in gpus.iterdir()} == {"GPU-a", "GPU-b"}
    finally:
        for process in filter(None, (first, second, third)):
            process.kill()
            process.communicate()


def test_a_host_without_a_gpu_is_said_so(gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (gpus.parent / "bin/nvidia-smi").write_text("#!/bin/sh\necho 'no devices were found' >&2\nexit 6\n")
    done = subprocess.run([SCRIPTS["one-gpu"], "true"], capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stderr) == (6, "no devices were found\n")


# -- study, healthy, dashboard -------------------------------------------------------------------------------------


@pytest.fixture
def container(tmp_path: Path) -> tuple[dict[str, str], str]:
    """The environment of a worker's container, whose URL has no password; and the URL with it."""
    url = postgresql_url()
    write_inputs(tmp_path)
    (tmp_path / "study.toml").write_text(
        'model = "model.onnx"\ndata = "data.npz"\ntrials = 6\nsampler = "random"\nbackend = "onnxruntime"\n'
    )
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/bitfront"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from bitfront.cli import main as cli; cli.main()" "$@"\n')
    program.chmod(0o755)
    settings = {
        "PATH": os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "BITFRONT_STORAGE": url.replace(f":{PASSWORD}@", "@"),
        "PGPASSWORD": PASSWORD,
        "BITFRONT_STUDY": "resnet",
        "BITFRONT_CONFIG": str(tmp_path / "study.toml"),
        "BITFRONT_ARTIFACTS": str(tmp_path / "engines"),
    }
    return environment(settings), url


def test_workers_make_the_study_or_join_it_and_are_healthy_meanwhile(
    container: tuple[dict[str, str], str], tmp_path: Path
) -> None:
    env, url = container

    def start(number: int) -> subprocess.Popen[bytes]:
        with (tmp_path / f"out{number}").open("ab") as out:
            return subprocess.Popen([SCRIPTS["study"]], cwd=tmp_path, env=env, stdout=out, stderr=out)

    def healthy() -> bool:
        return subprocess.run([sys.executable, SCRIPTS["healthy"]], env=env, capture_output=True).returncode == 0

    assert not healthy()
    workers = [start(number) for number in range(2)]
    codes: list[int] = []
    try:
        until(lambda: rows(url, "select 1 from bf_worker") and healthy())
        while workers:
            for number, worker in enumerate(list(workers)):
                if worker.poll() is None:
                    time.sleep(0.05)
                    continue
                workers.remove(worker)
                codes.append(worker.returncode)
                if worker.returncode and len(codes) < 6:  # as Compose and Kubernetes do
                    workers.append(start(number))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    text = "".join(path.read_text() for path in tmp_path.glob("out*"))
    assert codes.count(0) == 2, text
    assert set(codes) <= {0, 2}, text
    assert "Traceback" not in text
    assert PASSWORD not in text
    assert_whole(url, 6)
    assert len(rows(url, "select name from bf_worker")) == 2
    assert not healthy()


def test_a_database_that_is_away_is_waited_for(container: tuple[dict[str, str], str], tmp_path: Path) -> None:
    env, _ = container

    def started(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([SCRIPTS["study"]], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=400)

    away = f"postgresql+psycopg://bitfront@127.0.0.1:{free_port()}/t0"
    done = started({**env, "BITFRONT_STORAGE": away, "BITFRONT_TRIES": "2", "BITFRONT_PAUSE_S": "0.05"})
    assert (done.returncode, done.stderr.count("Cannot open the database")) == (2, 2)
    # One that answers and has no tables yet is not waited for: `search` says what is wrong, or makes the study.
    (tmp_path / "model.onnx").unlink()
    done = started(env)
    assert done.returncode == 2
    assert "model.onnx" in done.stderr
    assert "is empty" not in done.stderr


def test_the_dashboard_is_healthy_when_it_answers(container: tuple[dict[str, str], str], tmp_path: Path) -> None:
    env, url = container
    Store.open(url, create=True).close()
    close_optuna(optuna_storage(url))
    port = free_port()
    service = SERVICES["dashboard"]
    places = {"0.0.0.0": "127.0.0.1", "8080": str(port)}
    command = [places.get(word, word) for word in service["entrypoint"]]
    check = [word.replace("8080", str(port)) for word in service["healthcheck"]["test"][1:]]
    with subprocess.Popen([*command, env["BITFRONT_STORAGE"]], env=env, stderr=subprocess.DEVNULL) as dashboard:
        try:
            until(lambda: subprocess.run(check, env=env, capture_output=True).returncode == 0)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/studies", timeout=400) as answer:
                assert json.load(answer)["study_summaries"] == []
        finally:
            dashboard.kill()


# -- Kubernetes ----------------------------------------------------------------------------------------------------


def test_the_manifests_keep_to_kubernetes_schemas() -> None:
    import kubernetes_validate

    kinds = ["Service", "StatefulSet", "PersistentVolumeClaim", "Job", "Job"]
    assert [manifest["kind"] for manifest in MANIFESTS] == kinds
    for manifest in MANIFESTS:
        for version in ("1.29", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(manifest, version, strict=True)


def test_what_the_manifests_refer_to_is_there() -> None:
    service, database, claim_, job, _ = MANIFESTS
    pod = job["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    variables = {entry["name"]: entry for entry in worker["env"]}
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert worker["command"] == ["study"]
    assert f"@{service['metadata']['name']}/" in variables["BITFRONT_STORAGE"]["value"]
    assert service["spec"]["selector"] == database["spec"]["template"]["metadata"]["labels"]
    assert database["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim_["metadata"]["name"]
    secret = variables["PGPASSWORD"]["valueFrom"]["secretKeyRef"]
    (made,) = re.findall(r"kubectl create secret generic (\S+) --from-literal=(\w+)=", KUBERNETES.read_text())
    assert made == (secret["name"], secret["key"])
    assert job["spec"]["parallelism"] > 1
    assert "completions" not in job["spec"]
    assert f"job/{job['metadata']['name']} " in KUBERNETES.read_text()


def test_the_export_has_what_the_workers_have_and_a_command_that_parses() -> None:
    *_, job, export = (manifest["spec"]["template"]["spec"] for manifest in MANIFESTS[-2:])
    (worker,), (exporter,) = job["containers"], export["containers"]
    for name in ("image", "workingDir", "resources", "volumeMounts"):
        assert exporter[name] == worker[name], name
    assert all(export[name] == job[name] for name in ("nodeSelector", "securityContext", "volumes"))
    assert all(entry in worker["env"] for entry in exporter["env"])
    assert parse(shlex.join(exporter["command"][1:]))[1]["out"] == Path("/studies/engine")
