"""The report of a gate as files that a CI system reads: JUnit XML and a Markdown summary."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from studies.gate.check import GateCheck, GateVerdict
from studies.gate.report import COLUMNS, GateReport

# XML 1.0 cannot hold these, and names of files may.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_MARKS = {GateVerdict.HOLDS: "✅", GateVerdict.FAILS: "❌", GateVerdict.NOT_JUDGED: "⚠️"}


def junit_text(report: GateReport) -> str:
    """A test suite with a test case per check: one that fails is a failure, one that was not judged is skipped."""
    counts = {verdict: sum(check.verdict is verdict for check in report.checks) for verdict in GateVerdict}
    suite = ElementTree.Element(
        "testsuite",
        name=_clean(f"bitfront gate {report.candidate.name}"),
        tests=str(len(report.checks)),
        failures=str(counts[GateVerdict.FAILS]),
        errors="0",
        skipped=str(counts[GateVerdict.NOT_JUDGED]),
    )
    for check in report.checks:
        _add_case(suite, report, check)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _add_case(suite: ElementTree.Element, report: GateReport, check: GateCheck) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname="bitfront.gate", name=_clean(report.label(check)))
    row = report.rows()[report.checks.index(check)]
    if check.verdict is not GateVerdict.HOLDS:
        kind = "failure" if check.verdict is GateVerdict.FAILS else "skipped"
        ElementTree.SubElement(case, kind, message=_clean(check.reason))
    text = "\n".join([f"{_title(name)}: {row[name]}" for name in COLUMNS] + [check.reason])
    ElementTree.SubElement(case, "system-out").text = _clean(text)


def markdown_text(report: GateReport) -> str:
    """A heading with the verdict, a table with a row per check, and what is to be said of them."""
    lines = [
        f"### {_MARKS[report.verdict]} bitfront gate: {report.verdict.value}",
        "",
        f"{_cell(report.candidate.name)} against {_cell(report.baseline.name)} on {_cell(report.target.device)}",
        "",
        "| " + " | ".join(_title(name) for name in COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(_cell(row[name]) for name in COLUMNS) + " |" for row in report.rows()),
        "",
        *(f"- {_cell(text)}" for text in report.sentences()),
        "",
    ]
    return "\n".join(lines)


def _title(name: str) -> str:
    return name.replace("_", " ")


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)


def _cell(text: str) -> str:
    """A text that stays in its cell, and is no markup."""
    flat = " ".join(_clean(text).split())
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", flat)
