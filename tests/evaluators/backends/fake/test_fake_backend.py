"""The fake backend keeps the contract of engines, and invents the same numbers wherever it is asked."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from evaluators.backends.fake.backend import FakeBackend
from evaluators.backends.fake.builder import FakeBuilder
from evaluators.backends.fake.costs import LayerCosts
from evaluators.backends.fake.options import CAUTION, FakeOptions
from evaluators.backends.fake.session import FakeSession
from evaluators.backends.registry import BACKENDS, kind_named
from evaluators.engine import RefusedError
from search.errors import ConfigError, TargetError
from search.graph.model import Model
from search.values import Answer, Assignment, Precision
from tests.support.networks import feeds, loaded, ranged

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8


def uniform(model: Model, precision: Precision) -> Assignment:
    return Assignment({group.id: precision for group in model.groups})


def lowered_one_by_one(model: Model) -> list[Assignment]:
    """From FP32, one group more in INT8 each time."""
    groups = [group.id for group in model.groups]
    return [Assignment({g: INT8 if i < n else FP32 for i, g in enumerate(groups)}) for n in range(len(groups) + 1)]


def builder(**options: object) -> FakeBuilder:
    return FakeBackend("none", FakeOptions(**options)).builder(loaded("residual"), ranged("residual"))  # type: ignore[arg-type]


def opened(made: FakeBuilder, assignment: Assignment, out: Path) -> FakeSession:
    return made.load(made.build(made.lower(assignment), out).path)


def test_fp32_gives_the_float_model_and_every_lowered_group_adds_error(tmp_path: Path) -> None:
    made, batch = builder(), feeds(loaded("residual"))
    exact = FakeBackend().float_session(made.model).run(batch)
    errors = []
    for assignment in lowered_one_by_one(made.model):
        outputs = opened(made, assignment, tmp_path / "e").run(batch)
        errors.append(sum(float(np.square(outputs[name] - exact[name]).sum()) for name in exact))
        assert all(outputs[name].dtype == exact[name].dtype for name in exact)
    assert errors[0] < 1e-6 < errors[1]  # the float session is not optimized, which moves the last digits
    assert all(before < after for before, after in pairwise(errors))


def test_two_processes_invent_the_same(tmp_path: Path) -> None:
    """A process is a builder here: nothing of what it invents lives longer."""
    mix, batch = lowered_one_by_one(loaded("residual"))[2], feeds(loaded("residual"))
    one, other = (opened(builder(), mix, tmp_path / name) for name in ("one", "other"))
    assert np.array_equal(one.time(50), other.time(50))
    assert all(np.array_equal(array, other.run(batch)[name]) for name, array in one.run(batch).items())
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    another = opened(builder(seed=1), mix, tmp_path / "seed")
    assert abs(np.median(another.time(50)) / np.median(one.time(50)) - 1) > 0.01


def test_builds_of_one_assignment_differ_a_little(tmp_path: Path) -> None:
    made, mix = builder(), uniform(loaded("residual"), INT8)
    times = [float(np.median(opened(made, mix, tmp_path / str(i)).time(2000))) for i in range(2)]
    assert 0 < abs(times[1] / times[0] - 1) < 0.02


def test_latency_is_the_sum_of_what_a_profile_shows(tmp_path: Path) -> None:
    made, mix = builder(), lowered_one_by_one(loaded("residual"))[2]
    engine = made.build(made.lower(mix), tmp_path / "e")
    layers = made.profile(engine.path, feeds(made.model), 1)
    costs = LayerCosts(made.model, 0)
    assert sum(layer.ms for layer in layers) == pytest.approx(costs.latency_ms(mix) - 0.1)
    assert {layer.group for layer in layers if not layer.moves} == set(mix)
    assert any(layer.moves for layer in layers)
    assert not any(part.group is None for part in costs.parts(uniform(made.model, FP32)))
    assert costs.latency_ms(uniform(made.model, INT8)) < costs.latency_ms(uniform(made.model, FP32))


def test_every_group_of_an_audit_obeys_but_those_that_are_told_not_to(tmp_path: Path) -> None:
    groups = [group.id for group in loaded("residual").groups]
    made = builder(faults=(f"disobey:{groups[1]}=int8",))
    mix = uniform(made.model, INT8)
    audit = made.audit(made.build(made.lower(mix), tmp_path / "e"), mix)
    assert {row.group: row.answer for row in audit.rows} == {
        group: Answer.NOT_OBEYED if group == groups[1] else Answer.OBEYED for group in groups
    }
    assert "fp32" in next(row.kernel for row in audit.rows if row.group == groups[1])


def test_refusals_name_the_group_or_do_not(tmp_path: Path) -> None:
    group = loaded("residual").groups[0]
    mix = uniform(loaded("residual"), INT8)
    for action, named in (("refuse", group.id), ("refuse-unnamed", None)):
        made = builder(faults=(f"{action}:^{group.name}$=int8",))
        with pytest.raises(RefusedError) as caught:
            made.build(made.lower(mix), tmp_path / "e")
        assert caught.value.group == named
        made.build(made.lower(uniform(made.model, FP16)), tmp_path / "e")


def test_outputs_that_are_not_finite_are_found_in_their_group(tmp_path: Path) -> None:
    group = loaded("residual").groups[1].id
    made, batch = builder(faults=(f"not-finite:{group}=fp16",)), feeds(loaded("residual"))
    mix = uniform(made.model, FP16)
    assert all(np.isnan(array).all() for array in opened(made, mix, tmp_path / "e").run(batch).values())
    probed = made.probe(mix).run(batch)
    assert [name for name, array in probed.items() if np.isnan(array).any()] == [group]
    assert set(probed) == set(mix)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"fake": "1"}', '{"assignment": 3}'])
def test_a_damaged_engine_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "e").write_text(content)
    with pytest.raises(RefusedError, match="not an engine of the fake backend, or is damaged"):
        builder().load(tmp_path / "e")


def test_an_engine_of_another_seed_is_refused(tmp_path: Path) -> None:
    made = builder()
    engine = made.build(made.lower(uniform(made.model, INT8)), tmp_path / "e")
    assert CAUTION in engine.path.read_text()
    with pytest.raises(RefusedError, match="another model, seed or version"):
        builder(seed=1).load(engine.path)


@pytest.mark.parametrize(
    "text", ["crash", "crash:conv", "crash:=int8", "melt:conv=int8", "crash:(=int8", "crash:c=int4"]
)
def test_a_fault_that_cannot_be_read_is_refused_with_its_form(text: str) -> None:
    with pytest.raises(ConfigError, match="expected ACTION:REGEX=PRECISION, got"):
        FakeBackend("none", FakeOptions(faults=(text,)))


def test_it_has_no_device_and_says_what_it_is() -> None:
    with pytest.raises(TargetError, match="backend fake runs on no device"):
        FakeBackend("cuda")
    kind = kind_named("fake")
    assert not kind.automatic
    assert FakeBackend().notes == (kind.caution,)
    assert "invented" in FakeBackend().target().device
    assert [name for name in BACKENDS.shipped if kind_named(name).caution] == ["fake"]
