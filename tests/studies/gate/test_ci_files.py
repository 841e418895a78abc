"""The reports that a CI system reads, and the workflow files that are shipped."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from search.values import Target
from studies.gate.check import GateCheck, GateVerdict
from studies.gate.files import junit_text, markdown_text
from studies.gate.report import GateReport
from studies.gate.side import Side
from studies.options.limits import MetricScale
from tests.support.docs_pages import parse
from tests.support.paths import ROOT

CI = ROOT / "examples" / "ci"
SCHEMAS = {"github-actions.yml": "vendor.github-workflows", "gitlab-ci.yml": "vendor.gitlab-ci"}
LOSS = GateCheck(
    "loss", GateVerdict.FAILS, 0.01, 0.03, 0.02, 0.04, 0.005, 0.025, "exact test", "900 samples", "too much"
)
LATENCY = GateCheck(
    "latency", GateVerdict.NOT_JUDGED, 0.03, 0.02, -0.01, 0.05, 0.005, 0.06, "t test", "6 processes", "busy"
)
REPORT = GateReport(
    candidate=Side("new|<net>\x07", Path("/new.onnx"), "onnxruntime"),
    baseline=Side("old", Path("/old.onnx"), "onnxruntime"),
    target=Target("onnxruntime", "a processor", {}, {}, "p20", relative=True),
    metric=MetricScale("top1", ratio=True),
    values={"candidate": 0.7, "baseline": 0.73},
    data="ab",
    checks=(LOSS, LATENCY),
    notes=(),
)


def test_junit_has_a_case_per_check() -> None:
    (suite,) = ElementTree.fromstring(junit_text(REPORT))
    assert suite.attrib == {
        "name": "bitfront gate new|<net>?",
        "tests": "2",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    assert [case.attrib["name"] for case in suite] == ["loss of top1", "latency"]
    assert [(case[0].tag, case[0].attrib["message"]) for case in suite] == [
        ("failure", "too much"),
        ("skipped", "busy"),
    ]
    assert "smallest detectable: 2.5 %" in str(suite[0].findtext("system-out"))


def test_a_check_that_holds_is_a_plain_case() -> None:
    held = replace(REPORT, checks=(replace(LOSS, verdict=GateVerdict.HOLDS),))
    (suite,) = ElementTree.fromstring(junit_text(held))
    assert [part.tag for part in suite[0]] == ["system-out"]


def test_markdown_is_a_table_whatever_files_are_called() -> None:
    lines = markdown_text(REPORT).splitlines()
    assert lines[0] == "### ❌ bitfront gate: fails"
    assert lines[2] == r"new\|\<net\>? against old on a processor"
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {8}
    assert "loss of top1" in table[2]
    assert "-1 % to 5 %" in table[3]


@pytest.mark.parametrize("name", SCHEMAS)
def test_workflow_files_keep_to_their_schemas(name: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[name], str(CI / name)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", SCHEMAS)
def test_workflow_files_call_the_gate_as_it_is(name: str) -> None:
    text = " ".join((CI / name).read_text(encoding="utf-8").split())
    command = text[text.index("bitfront gate engine") :].partition("gate.json")[0]
    verb, given = parse(f"{command.removeprefix('bitfront ')} gate.json")
    assert verb == "gate"
    assert given["baseline"] == "baseline/engine"
