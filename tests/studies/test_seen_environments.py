"""Whether an installation is one that was seen to work, and how it differs from the nearest one that was."""

from __future__ import annotations

import pytest

from studies.seen_environments import CUDA, PAGE, SEEN, SeenEnvironment, describe_environment
from tests.support.paths import ROOT


def test_the_page_has_the_list_and_no_other_row() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    table = page.partition("|---|---|---|---|\n")[2].partition("\n\n")[0]
    rows = []
    for seen in SEEN:
        others = [f"{name} {version}" for name, version in seen.versions.items() if name != "python"]
        when = f"{seen.last.day} {seen.last:%B %Y}"
        rows.append(f"| {when} | {seen.machine} | {seen.versions['python']} | {', '.join(others)} |")
    assert table.splitlines() == rows


@pytest.mark.parametrize("seen", SEEN, ids=lambda seen: f"{seen.last} {seen.machine}")
def test_every_environment_of_the_list_is_recognised(seen: SeenEnvironment) -> None:
    python, cuda = f"{seen.versions['python']}.7", seen.versions.get(CUDA)
    packages = {name: version for name, version in seen.versions.items() if name not in ("python", CUDA)}
    told = describe_environment(python, {**packages, "numpy": "9.9"}, cuda and f"{cuda}.1")
    assert told.startswith("as seen on ")
    assert told.endswith(f"; see {PAGE}")


@pytest.mark.parametrize(
    ("python", "packages", "cuda", "told"),
    [
        ("3.12.3", {"onnxruntime": "1.33.0"}, None, ["Xeon", "onnxruntime 1.33.0 is newer than 1.32.0"]),
        ("3.13.0", {"onnxruntime": "1.32.0"}, None, ["python 3.13.0 is newer than 3.12"]),
        (
            "3.10.13",
            {"tensorrt-cu12": "10.11.0", "tensorrt-cu12-bindings": "10.11.0", "onnxruntime": "1.23.2"},
            "12.8",
            ["H200", "tensorrt 10.11.0 is newer than 8.6.0", f"{CUDA} 12.8 is older than 13"],
        ),
        (
            "3.12.3",
            {"onnxruntime": "1.32.0", "openvino": "2026.5.0"},
            None,
            ["openvino 2026.5.0 is newer than 2026.4.1"],
        ),
        (
            "3.10.13",
            {"tensorrt": "8.6.0", "onnxruntime": "1.23.2", "openvino": "2026.4.1"},
            "13.0",
            ["openvino 2026.4.1 was not installed there"],
        ),
    ],
)
def test_what_differs_is_named(python: str, packages: dict[str, str], cuda: str | None, told: list[str]) -> None:
    text = describe_environment(python, packages, cuda)
    assert text.startswith("differs from what was seen on ")
    assert [part for part in told if part not in text] == []


def test_nothing_is_compared_without_a_backend() -> None:
    assert describe_environment("3.11.7", {"numpy": "2.4.6"}, None).startswith("no backend's package is installed")
