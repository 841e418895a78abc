"""README and docs say what the program does: verbs, options, commands, links, files, Python examples."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import runpy
import shlex
import sys
import typing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bitfront import verbs
from bitfront.cli import main
from bitfront.cli.reference import write_reference
from evaluators.backends.capabilities.restricted import shipped_capability
from evaluators.backends.registry import BACKENDS
from search.errors import ConfigError
from studies.options.config import SearchConfig, option_rows, option_table
from studies.options.read_options import change_config, check_config, read_config
from tests.support.docs_pages import FENCE, PROGRAM, VERBS, blocks, parse, read
from tests.support.paths import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = [ROOT / "README.md", *PAGES]
GUIDES = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs" / "development").glob("*.md")]
OPTIONS = ROOT / "docs" / "options.md"
CAPABILITIES = ROOT / "docs" / "capabilities.md"
TOPICS = {"index", "how-it-fits", "tensorrt", "sampler", "data", "metrics", "benchmarks", "calibration-cache", "docker"}
TOPICS |= {"recovery", "python", "json", "api", "quickstart", "faq", "glossary", "comparison"}
TOPICS |= {"handover", "options", "backends", "workers", "targets", "artifacts", "servers", "kubernetes", "guard"}
TOPICS |= {"monitoring", "capabilities", "install", "environments", "trust", "formats"}
OTHER_PROGRAMS = {"--rm", "--gpus", "--build-arg", "--onnx", "--int8", "--calib"}  # docker and trtexec
OTHER_PROGRAMS |= {
    "--scale",
    "--no-deps",
    "--from-literal",
    "--type",
    "--patch",
    "--username",
    "--dbname",
}  # its compose
OTHER_PROGRAMS |= {"--single-transaction"}  # mysqldump
OTHER_PROGRAMS |= {"--profiling", "--export"}  # trtexec, before a capital letter
OTHER_PROGRAMS |= {"--model-repository", "--load", "--strongly"}  # Triton; trtexec, whose options have capital letters
OTHER_PROGRAMS |= {"--name"}
OTHER_PROGRAMS |= {"--precision-constraints", "--trt-network-postprocess-script", "--nodes", "--calibration", "--high"}
OTHER_PROGRAMS |= {"--quick", "--table", "--write", "--methods"}  # benchmarks
OTHER_PROGRAMS |= {"--preload"}  # gunicorn
USERS_OWN = (
    "handover/",
    "engine",
    "demo",
    "site/",
    "bitfront.db",
    "photos",
    "reviews/",
    "texts/",
    "nvcr.io/",
    "triton/",
    "/work",
    "/studies",
    "/tmp",
)  # what users make, not part of the repository
OPTION_ROW = r"^\| \[?`(--[a-z0-9-]+)"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def options_of(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name.startswith("--")}


def options(verb: str) -> set[str]:
    return options_of(VERBS[verb])


def metavars(verb: str) -> list[str]:
    return [p.metavar for p in VERBS[verb].params if p.param_type_name == "argument"]


def page(verb: str) -> str:
    return read(ROOT / "docs" / f"{verb}.md")


def without_output(path: Path) -> str:
    """A page without pasted output, but with the command lines in it."""
    return FENCE.sub(lambda m: "\n".join(shell_lines(m[2])) if m[1] == "text" else m[0], read(path))


def shell_lines(block: str) -> list[str]:
    return [
        line.removeprefix("$ ") for line in block.splitlines() if line.startswith(("$ ", "bitfront ", "docker run "))
    ]


def command_lines() -> list[tuple[str, str]]:
    """Every `bitfront …` line of a fenced block, also inside `docker run`, by page; usage lines are none."""
    found = []
    for path in TEXTS:
        for line in [line for block in blocks(path, "", "text") for line in shell_lines(block)]:
            image = "bitfront:gpu " if "bitfront:gpu " in line else "bitfront:cpu "
            _, program, arguments = line.partition(image if line.startswith("docker") else "bitfront ")
            if program and arguments and "[options]" not in line:
                found.append((path.name, arguments))
    return found


def trees() -> list[tuple[str, ast.Module]]:
    return [(path.name, ast.parse(block)) for path in TEXTS for block in blocks(path, "python")]


def test_every_verb_has_a_page_and_every_page_a_verb():
    assert {path.stem for path in PAGES} == VERBS.keys() | TOPICS


def test_help_index_and_site_have_the_same_groups():
    groups: dict[str, list[str]] = {}
    for verb, row in main.VERBS.items():
        groups.setdefault(row.panel, []).append(verb)
    index = read(ROOT / "docs" / "index.md")
    tables = re.findall(r"^\| (.*) \| \|\n\|---\|---\|\n((?:\| \[.*\n)+)", index, re.MULTILINE)
    assert {name: re.findall(r"\[(\w+)\]\(", rows)[: len(groups[name])] for name, rows in tables} == groups
    commands = read(ROOT / "mkdocs.yml").partition("  - Commands:\n")[2].partition("  - Reference:")[0]
    site = re.split(r"^ {6}- (.+):\n", commands, flags=re.MULTILINE)[1:]
    named = {name: re.findall(r"- (\w+): \1\.md", rows) for name, rows in zip(site[::2], site[1::2], strict=True)}
    assert named == groups


def test_the_page_of_options_is_made_from_their_table():
    written = read(OPTIONS)
    assert written == write_reference(), "make it again: python -m bitfront.cli.reference > docs/options.md"


def test_every_guide_begins_with_three_steps_and_ends_with_the_next():
    guides = read(ROOT / "mkdocs.yml").partition("  - Guides:\n")[2].partition("  - Concepts:")[0]
    pages = re.findall(r": ([\w-]+\.md)$", guides, re.MULTILINE)
    assert pages
    for name in pages:
        text = read(ROOT / "docs" / name)
        assert re.match(r"# .+\n\n1\. .+\n2\. .+\n3\. .+\n\n", text), name
        assert re.fullmatch(r"Next: .*\]\([\w-]+\.md\).*\.", text.rstrip().rpartition("\n")[2]), name


def test_index_links_every_page():
    for path in PAGES:
        assert path.stem == "index" or f"]({path.name})" in read(ROOT / "docs" / "index.md")


@pytest.mark.parametrize("verb", VERBS)
def test_page_lists_exactly_the_options_of_its_verb(verb):
    listed = re.findall(OPTION_ROW, page(verb), re.MULTILINE)
    listed += re.findall(OPTION_ROW, read(OPTIONS), re.MULTILINE) if verb == "search" else []
    for names in re.findall(r"^As of \[\w+\]\([\w.#-]+\): (.*)\.$", page(verb), re.MULTILINE):
        listed += re.findall(r"`(--[a-z0-9-]+)`", names)
    assert sorted(listed) == sorted(options(verb) - {"--help", "--help-all"})
    assert all(f"`{metavar}`" in page(verb) for metavar in metavars(verb))


@pytest.mark.parametrize("verb", VERBS)
def test_page_has_its_exit_codes_and_its_function(verb):
    assert page(verb).startswith(f"# bitfront {verb}\n")
    assert "\n## Exit codes\n" in page(verb)
    assert f"verbs.{verb}" in page(verb)


def test_the_page_of_options_names_every_choice():
    rows = dict(re.findall(r"^\| \[?`--([a-z0-9-]+)[^`]*`\S* \| (.*)$", read(OPTIONS), re.MULTILINE))
    choices = {
        "backend": ("auto", *BACKENDS.names()),
        **{row.name: row.kind.choices for row in option_rows() if row.kind.choices},
    }
    for option, values in choices.items():
        assert [value for value in values if not re.search(rf"\b{value}\b", rows[option])] == [], option


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_no_text_names_an_option_that_does_not_exist(path):
    known = options_of(PROGRAM).union(*map(options, VERBS)) | {"--help"} | OTHER_PROGRAMS
    assert set(OPTION.findall(without_output(path))) <= known


def test_there_are_command_lines_of_every_verb():
    assert {shlex.split(arguments, comments=True)[0] for _, arguments in command_lines()} == set(VERBS)


@pytest.mark.parametrize(("name", "arguments"), command_lines(), ids=lambda value: value)
def test_command_lines_parse(name, arguments, tmp_path, monkeypatch):
    verb, given = parse(arguments)
    if given.get("capabilities"):  # the file is read at once
        monkeypatch.chdir(tmp_path)
        Path(*given["capabilities"]).write_text(blocks(CAPABILITIES, "toml")[0], encoding="utf-8")
    if verb == "search" and given["config"] is not None:
        return
    known = {key: value for key, value in given.items() if key.replace("_", "-") in option_table() and verb != "demo"}
    if "latency-budget 2.5" in arguments and "2.5ms" not in arguments:
        with pytest.raises(ConfigError):  # shown because it is refused
            read_config(known)
        return
    read_config({"model": "model.onnx", "data": "data.npz", **{k: v for k, v in known.items() if v}})


def test_toml_examples_are_configurations(tmp_path):
    found = [block for path in TEXTS if path != CAPABILITIES for block in blocks(path, "toml")]
    assert found
    for block in found:
        file = tmp_path / "study.toml"
        file.write_text(block, encoding="utf-8")
        read_config({}, file)


@pytest.mark.parametrize("path", [*TEXTS, *GUIDES, ROOT / "CHANGELOG.md"], ids=lambda path: path.name)
def test_links_resolve(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", read(path)):
        if workflow := re.match(r"\.\./\.\./actions/workflows/([\w.]+)(/badge\.svg)?$", target):  # GitHub's own pages
            assert (ROOT / ".github/workflows" / workflow[1]).exists()
        elif not target.startswith("https://"):
            file, _, anchor = target.partition("#")
            there = path.parent / file if file else path
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), target


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", read(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [*TEXTS, *GUIDES], ids=lambda path: path.name)
def test_files_and_folders_named_exist(path):
    prose = FENCE.sub("", read(path))
    named = [token for token in re.findall(r"`([\w./-]+)`", prose) if "/" in token.strip("-")]
    for token in named:
        if not token.startswith(USERS_OWN) and "NAME" not in token and "VERB" not in token:
            assert (ROOT / token).exists(), token


def test_scripts_of_command_lines_exist_and_take_the_options():
    lines = [line for path in TEXTS for block in blocks(path, "", "text") for line in block.splitlines()]
    calls = [shlex.split(line) for line in lines if line.startswith("python examples/")]
    assert calls
    for _, script, *words in calls:
        source = read(ROOT / script)
        assert all(f'"{word}"' in source for word in words if word.startswith("--")), script


def test_the_tour_lists_every_folder():
    listed = re.findall(r"^\| `([\w/]+/)` \|", read(ROOT / "docs/development/tour.md"), re.MULTILINE)
    packages = {f"{path.parent.name}/" for path in ROOT.glob("*/__init__.py")}
    assert packages <= set(listed)


def test_the_readme_is_short_and_its_figures_are_those_of_the_stored_results():
    text = read(ROOT / "README.md")
    assert len(text.split()) <= 900
    told = [
        [cell.strip("* ") for cell in line.split("|")[2:-1]]
        for line in re.findall(r"^\|.* ms, .*\|$", text, re.MULTILINE)
    ]
    stored = json.loads(read(ROOT / "benchmarks/results/h200_modelopt.json"))
    page = read(ROOT / "benchmarks/results/h200.md").split("## Beside NVIDIA ModelOpt")[1]
    expected = []
    for rows in stored.values():
        found = {row["engine"]: (row["latency"].split()[0], row["loss, points"].split()) for row in rows}
        assert all(f"{ms} ms" in page for ms, _ in found.values())
        _, *others = [
            f"{Decimal(ms):.3f} ms, {abs(Decimal(loss)):.1f}±{Decimal(half):.1f}"
            for engine in ("fp32", "fp16", "TensorRT's own choice", "ModelOpt", "the pick")
            for ms, (loss, _, half) in [found[engine]]
        ]
        expected.append([f"{Decimal(found['fp32'][0]):.3f} ms", *others])
    assert told == expected


def test_the_readme_has_of_each_model_the_file_of_the_others_that_it_names_and_what_is_bold_is_ahead():
    stored = json.loads(read(ROOT / "benchmarks/results/real_models.json"))
    runs, expected = stored["runs"], set()
    for model, timed in stored["times"].items():
        ms = {method: sum(each) / len(each) for method, each in timed["ms"].items()}
        lost = {method: runs[f"{model}/{method}"]["loss"] for method in ms if method != "fp32"}
        others = [method for method in lost if method != "best" and not method.startswith("bitfront")]
        keeping = [method for method in others if lost[method] <= 0.01]
        other = min(keeping, key=ms.__getitem__) if keeping else min(others, key=lost.__getitem__)
        ahead = lost["best"] <= 0.01 and all(ms["best"] < ms[method] for method in keeping)
        cells = [
            f"{ms['fp32'] / ms[method]:.2f}×, {100 * run['loss']:.2f}±{50 * (run['high'] - run['low']):.2f}"
            for method in (other, "bitfront-auto", "best")
            for run in [runs[f"{model}/{method}"]]
        ]
        pick = f"{cells[2]} (FP32)" if runs[f"{model}/best"]["trial"] == 0 else f"**{cells[2]}**" if ahead else cells[2]
        expected.add(" | ".join([f"({ms['fp32']:.1f})", *cells[:2], pick]))
    rows = re.findall(r"^\| [^|]+ (\([\d.]+\) \| [\d.]+×, .+) \|$", read(ROOT / "README.md"), re.MULTILINE)
    assert set(rows) == expected
    assert len(rows) == 10


def test_the_documentation_is_short():
    pages = [*PAGES, *(ROOT / "docs" / "development").glob("*.md")]
    assert sum(len(read(path).split()) for path in pages) <= 45000


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", read(ROOT / "Makefile"), re.MULTILINE))
    named = {
        name for path in [*TEXTS, *GUIDES] for name in re.findall(r"(?:`|^)make ([a-z-]+)", read(path), re.MULTILINE)
    }
    assert {"demo", "test"} <= named <= targets


def test_extras_exist():
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    extras = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    installs = [found for path in TEXTS for found in re.findall(r"pip install '\.\[([\w,]+)\]'", read(path))]
    named = {name for names in installs for name in names.split(",")}
    further = re.search(r"^Further extras: (.*?)\. ", read(ROOT / "docs/install.md"), re.MULTILINE)
    assert further is not None
    assert named | set(re.findall(r"`(\w+)`", further[1])) <= extras.keys()
    assert named


# Python examples ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "tree"), trees(), ids=lambda value: value if isinstance(value, str) else "")
def test_python_examples_fit_the_functions(name, tree):
    results: dict[str, Any] = {}
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Call) and called(statement):
            check_call(statement)
        if isinstance(statement, ast.Call) and ast.unparse(statement.func) == "SearchConfig":
            made = eval(ast.unparse(statement), {"SearchConfig": SearchConfig})
            check_config(made, needs_data=bool(made.data))
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call) and called(statement.value):
            results.update(bound(statement.targets[0], returned(called(statement.value))))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            type_of(node, results)


def called(call: ast.Call) -> str:
    """The name of the function of `bitfront.verbs` that is called, or empty."""
    function = call.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "verbs":
        return function.attr
    return ""


def check_call(call: ast.Call) -> None:
    function = getattr(verbs, called(call))
    keywords = {keyword.arg or "": keyword.value for keyword in call.keywords}
    inspect.signature(function).bind(*call.args, **keywords)
    for value in (*call.args, *keywords.values()):
        if isinstance(value, ast.Dict):
            change_config(SearchConfig("model.onnx", "data.npz"), ast.literal_eval(value))


def returned(name: str) -> Any:
    """The type of what a function of `bitfront.verbs` returns; modules import such types for type checkers alone."""
    function = getattr(verbs, name)
    tree = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    kinds: dict[str, Any] = {}
    for statement in guarded:
        exec("\n".join(map(ast.unparse, statement.body)), kinds)
    return typing.get_type_hints(function, localns=kinds)["return"]


def bound(target: ast.expr, kind: Any) -> dict[str, Any]:
    if isinstance(target, ast.Tuple):
        return {e.id: k for e, k in zip(target.elts, typing.get_args(kind), strict=True) if isinstance(e, ast.Name)}
    assert isinstance(target, ast.Name)
    return {target.id: kind}


def type_of(node: ast.expr, results: dict[str, Any]) -> Any:
    """Follow `finished.standing.picks` through the types; None where they are not known. Fails on a missing name."""
    if isinstance(node, ast.Name):
        return results.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    kind = type_of(node.value, results)
    if not isinstance(kind, type):
        return None
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    assert node.attr in fields or hasattr(kind, node.attr), f"{kind.__name__} has no {node.attr}"
    try:
        return typing.get_type_hints(kind).get(node.attr)
    except NameError:  # a name that is imported for type checkers only
        return None


def test_pictures_are_of_this_version_and_of_the_example_as_it_is(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script adds to it
    told = json.loads(read(ROOT / "docs/pictures/made_from.json"))
    script = runpy.run_path(str(ROOT / "docs/development/pictures.py"))
    assert told == script["origin"](), "python docs/development/pictures.py FOLDER makes them again"


def test_transcripts_are_of_this_version_and_of_what_is_run_and_every_one_is_known(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script adds to it
    script = runpy.run_path(str(ROOT / "docs/development/transcripts.py"))
    told = json.loads(read(ROOT / "docs/development/transcripts.json"))
    found = script["describe_pages"]()
    stale = [
        command for name in found for command in found[name] if told.get(name, {}).get(command) != found[name][command]
    ]
    assert not stale, "python docs/development/transcripts.py FOLDER makes them again"
    assert told == found
    shown = [command for blocks in script["find_blocks"]().values() for command, _ in blocks]
    asked = [*script["ASKED"]["invented"], *(each for case in script["EXAMPLES"].values() for each in case["commands"])]
    assert sorted(shown) == sorted(asked), "docs/development/transcripts.toml names each transcript once, and no others"
    prompts = [line for page in script["PAGES"] for line in re.findall(r"^\$ (.*)$", read(page), re.MULTILINE)]
    assert sorted(prompts) == sorted(shown), "a line with a prompt begins a block that goes on with its output"


def test_readme_names_the_formats_of_each_target():
    files = {
        "ONNX Runtime, CPU": ["onnxruntime-cpu"],
        "OpenVINO, CPU": ["openvino-cpu"],
        "ONNX Runtime, CUDA": ["onnxruntime-cuda"],
        "TensorRT 8.6": ["tensorrt", "tensorrt-weak", "tensorrt-8"],
        "TensorRT 10.x": ["tensorrt", "tensorrt-weak"],
        "TensorRT 10.x and 11.x, strongly typed": ["tensorrt"],
    }
    table = dict(re.findall(r"^\| ([^|]+) \| ((?:[A-Z]+\d[^|]*, )*FP32) \|", read(ROOT / "README.md"), re.MULTILINE))
    named = {target: {word.lower() for word in re.split(r", |/", table[target])} for target in files}
    run = {target: shipped_capability(*parts).ops.items() for target, parts in files.items()}
    assert named == {target: {"fp32", *(p.label for p, ops in each if ops)} for target, each in run.items()}
