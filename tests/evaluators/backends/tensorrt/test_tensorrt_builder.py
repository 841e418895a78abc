"""What a builder of TensorRT keeps between builds, by the stand-in: an engine, its log, a timing cache."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import json
import os
import stat
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from evaluators.backends.tensorrt import timing_cache
from evaluators.backends.tensorrt.backend import TensorRTBackend
from evaluators.backends.tensorrt.builder import TensorRTBuilder
from evaluators.backends.tensorrt.options import TensorRTOptions
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import TENSORRT
from search.graph.model import load_as_given
from search.values import Precision
from tests.support.assignments import uniform, uniform_and_mixed
from tests.support.networks import loaded, ranged, residual_cnn
from tests.support.quantized_files import quantized
from tests.support.tensorrt.stand_in import PATHS, V10, standing_in


@pytest.mark.parametrize(("version", "typing"), PATHS)
def test_a_file_is_built_in_the_precisions_that_it_has(version: str, typing: str, tmp_path: Path) -> None:
    path = tmp_path / "float.onnx"
    onnx.save(residual_cnn(), path)
    asked: list[set[str]] = []

    def build(builder: Any, network: Any, config: Any) -> Any:
        asked.append(set(config._state.get("flags", ())))
        return engines._build(builder, network, config)

    with standing_in(version) as engines:
        engines.fake.behaviours["Builder.build_serialized_network"] = build
        builder = opened(typing=typing)
        for file in (path, quantized(onnx.load(path), tmp_path)):
            builder.build_file(load_as_given(file, batch=4), tmp_path / "given.plan")
    given, own = ({flag for flag in flags if flag in ("INT8", "FP16")} for flags in asked)
    assert given == set(), "INT8 without Q/DQ would need ranges"
    assert own == ({"INT8", "FP16"} if typing == "weak" else set())


def test_a_file_with_fp8_is_allowed_fp8_and_not_int8(tmp_path: Path) -> None:
    """The builder takes one of them."""
    model = loaded("products")
    graph = lower(model, uniform(model, Precision.FP8), ranged("products"), TENSORRT)
    asked: list[set[str]] = []

    def build(builder: Any, network: Any, config: Any) -> Any:
        asked.append(set(config._state.get("flags", ())))
        return engines._build(builder, network, config)

    with standing_in(V10) as engines:
        engines.fake.behaviours["Builder.build_serialized_network"] = build
        opened(typing="weak").build_file(graph, tmp_path / "fp8.plan")
    assert {"FP8", "INT8"} & asked[0] == {"FP8"}


def opened(**options: Any) -> TensorRTBuilder:
    return TensorRTBackend("cuda", TensorRTOptions(**options)).builder(loaded("residual"), ranged("residual"))


@pytest.mark.parametrize(("version", "typing"), PATHS)
def test_a_plan_that_was_written_over_is_loaded_as_it_is_now(version: str, typing: str, tmp_path: Path) -> None:
    mixes = uniform_and_mixed(loaded("residual"))
    read = 0

    def deserialize(runtime: Any, serialized_engine: bytes) -> Any:
        nonlocal read
        read += 1
        return engines._deserialize(runtime, serialized_engine)

    with standing_in(version) as engines:
        engines.fake.behaviours["Runtime.deserialize_cuda_engine"] = deserialize
        builder = opened(typing=typing)
        engine = builder.build(builder.lower(mixes[0]), tmp_path / "model.plan")
        builder.audit(engine, mixes[0])
        session = builder.load(engine.path)
        assert read == 1, "one engine serves the audit and the session"
        session.close()
        writes = [lambda: builder.build(builder.lower(mixes[2]), engine.path), lambda: builder.build_free(engine.path)]
        for write in writes[: 2 if typing == "weak" else 1]:
            builder.audit(engine, mixes[0])
            old = engine.path.read_bytes()
            write()
            session = builder.load(engine.path)
            assert session._engine._state["plan"] == plan_in(engine.path) != plan_in(old)
            session.close()


def plan_in(file: Path | bytes) -> Any:
    data = file.read_bytes() if isinstance(file, Path) else file
    return json.loads(data[data.index(b"{") :])


def test_what_is_said_while_the_builder_is_made_is_no_note_of_the_first_engine(tmp_path: Path) -> None:
    def say(text: str) -> Any:
        def construct(made: Any, logger: Any) -> None:
            logger.log(type(logger).WARNING, text)

        return construct

    def build(builder: Any, network: Any, config: Any) -> Any:
        builder.logger.log(type(builder.logger).WARNING, "of this engine")
        return serialized(builder, network=network, config=config)

    mix = uniform_and_mixed(loaded("residual"))[0]
    with standing_in(V10) as engines:
        serialized = engines.fake.behaviours["Builder.build_serialized_network"]
        engines.fake.behaviours |= {
            "Builder.__init__": say("CUDA lazy loading is not enabled"),
            "Runtime.__init__": say("linked against another cuDNN"),
            "Builder.build_serialized_network": build,
        }
        builder = opened(typing="weak")
        notes = [builder.build(builder.lower(mix), tmp_path / "model.plan").notes for _ in range(2)]
    assert notes == [("warning: of this engine",)] * 2


def test_the_configuration_that_made_a_timing_cache_outlives_it(tmp_path: Path) -> None:
    """Also where the cache on disk is of another device, and a new one is made."""
    makers: list[weakref.ref[Any]] = []
    fits = iter([False])

    def create(config: Any, serialized_timing_cache: Any) -> Any:
        makers.append(weakref.ref(config))
        return engines.fake.create("ITimingCache")

    with standing_in(V10) as engines:
        engines.fake.behaviours |= {
            "IBuilderConfig.create_timing_cache": create,
            "IBuilderConfig.set_timing_cache": lambda config, cache, ignore_mismatch: next(fits, True),
        }
        builder = opened()
        mixes = uniform_and_mixed(loaded("residual"))
        builder.build(builder.lower(mixes[0]), tmp_path / "model.plan")
        fits = iter([True, False])  # another one, whose cache fits no more when the third engine is built
        for mix in mixes[1:3]:
            builder.build(builder.lower(mix), tmp_path / "model.plan")
        gc.collect()
        assert len(makers) == 3
        assert makers[-1]() is builder.timing._config is not None


def test_a_builder_of_other_ranges_knows_the_times_that_the_one_before_learnt(tmp_path: Path) -> None:
    made: list[bytes] = []

    def create(config: Any, serialized_timing_cache: bytes) -> Any:
        made.append(serialized_timing_cache)
        return engines.fake.create("ITimingCache")

    with standing_in(V10) as engines:
        engines.fake.behaviours["IBuilderConfig.create_timing_cache"] = create
        backend = TensorRTBackend("cuda", TensorRTOptions())
        mixes = uniform_and_mixed(loaded("residual"))
        for mix in mixes[:2]:
            builder = backend.builder(loaded("residual"), ranged("residual"))
            builder.build(builder.lower(mix), tmp_path / "model.plan")
    assert made == [b""]


def cached(builder: TensorRTBuilder) -> Path:
    """The file of its timing cache."""
    assert builder.knobs.timing_cache is not None
    return Path(builder.knobs.timing_cache)


def notes_of_builds(builder: TensorRTBuilder, folder: Path, count: int = 3) -> list[tuple[str, ...]]:
    """What is noted on so many engines, each of another assignment, which are written."""
    engines = [builder.build(builder.lower(a), folder / "model.plan") for a in uniform_and_mixed(builder.model)[:count]]
    assert (folder / "model.plan").stat().st_size > 0
    return [engine.notes for engine in engines]


def growing(sizes: list[int]) -> Callable[[Any], bytes]:
    """A cache that is larger every time it is asked for, so that there is always something to write."""

    def serialize(cache: Any) -> bytes:
        sizes.append(len(sizes) + 1)
        return b"t" * len(sizes)

    return serialize


def locked(file: Path) -> str:
    """Root may open the lock of any user, but nobody a folder."""
    Path(f"{file}.lock").mkdir()
    return "Is a directory"


def full(file: Path) -> str:
    file.with_suffix(".partial").symlink_to("/dev/full")
    return "No space left on device"


@pytest.mark.parametrize("spoil", [locked, full])
def test_a_timing_cache_that_cannot_be_written_is_a_note(tmp_path: Path, spoil: Callable[[Path], str]) -> None:
    """And no other try by this builder, nor anything left lying about."""
    sizes: list[int] = []
    with standing_in(V10) as engines:
        engines.fake.behaviours["ITimingCache.serialize"] = growing(sizes)
        builder = opened(timing_cache=str(tmp_path / "times"))
        file = cached(builder)
        file.parent.mkdir()
        reason = spoil(file)
        notes = notes_of_builds(builder, tmp_path)
        assert len(sizes) <= 2, "given up after the first build"
        assert builder.timing_cache(), "builds go on with what is in memory"
    assert len(set(notes)) == 1
    assert len(notes[0]) == 1
    assert notes[0][0].startswith("timing-cache: not kept: ")
    assert reason in notes[0][0]
    assert not file.exists()
    assert not list(file.parent.glob("*.partial"))


def test_a_timing_cache_that_others_keep_locked_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing_cache, "_LOCK_S", 0.1)
    with standing_in(V10):
        builder = opened(timing_cache=str(tmp_path))
        with Path(f"{cached(builder)}.lock").open("w", encoding="utf-8") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            notes = notes_of_builds(builder, tmp_path)
    assert len(set(notes)) == 1
    assert "could not be acquired" in notes[0][0]


def test_a_timing_cache_that_cannot_be_read_is_a_note_and_left_alone(tmp_path: Path) -> None:
    with standing_in(V10):
        builder = opened(timing_cache=str(tmp_path / "times"))
        cached(builder).mkdir(parents=True)
        notes = notes_of_builds(builder, tmp_path)
        unused = opened(timing_cache=str(tmp_path / "times"))
        assert unused.timing_cache() is None
    assert len(set(notes)) == 1
    assert notes[0][0].startswith("timing-cache: not read: ")
    assert [path.name for path in (tmp_path / "times").iterdir()] == [cached(builder).name]


def test_a_timing_cache_that_cannot_be_read_again_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another process added since this one read it would be lost."""
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.suffix == ".timing":
            raise OSError(5, "Input/output error", str(path))
        return read(path)

    with standing_in(V10):
        builder = opened(timing_cache=str(tmp_path))
        builder._config()  # reads the file, which is not there yet
        cached(builder).write_bytes(b"much that another process measured")
        monkeypatch.setattr(Path, "read_bytes", refuse)
        notes = notes_of_builds(builder, tmp_path)
        monkeypatch.undo()
        assert cached(builder).read_bytes() == b"much that another process measured"
    assert [len(each) for each in notes] == [1, 1, 1]
    assert notes[0][0].startswith("timing-cache: not read: [Errno 5] ")
    assert cached(builder).read_bytes() == b"much that another process measured"


def test_a_timing_cache_that_is_kept_says_nothing_and_its_lock_is_everybodys(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with standing_in(V10):
            builder = opened(timing_cache=str(tmp_path / "times"))
            assert notes_of_builds(builder, tmp_path) == [(), (), ()]
    finally:
        os.umask(before)
    file = cached(builder)
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name, f"{file.name}.lock"]
    assert file.read_bytes() == b"timings"
    assert stat.S_IMODE(Path(f"{file}.lock").stat().st_mode) == 0o666


def test_an_engine_that_cannot_be_written_is_no_matter_of_the_timing_cache(tmp_path: Path) -> None:
    (tmp_path / "model.plan").symlink_to("/dev/full")
    with standing_in(V10):
        builder = opened(timing_cache=str(tmp_path / "times"))
        with pytest.raises(OSError, match="No space left on device"):
            builder.build(builder.lower(uniform_and_mixed(builder.model)[0]), tmp_path / "model.plan")


def test_plugins_of_one_name_from_several_folders_are_told_apart(tmp_path: Path) -> None:
    """A single library's key is the one that stored evaluations have."""
    libraries = {}
    for folder, content in (("a", b"one"), ("b", b"two"), ("c", b"one")):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "lib.so"
        file.write_bytes(content)
        libraries[folder] = str(file)

    def keys(*folders: str) -> dict[str, str]:
        found = TensorRTOptions(plugins=tuple(libraries[folder] for folder in folders)).to_json()
        return {key: value for key, value in found.items() if key.startswith("plugin:")}

    one, two = (hashlib.sha256(content).hexdigest() for content in (b"one", b"two"))
    assert keys("a") == keys("a", "c") == {"plugin:lib.so": one}
    assert keys("a", "b") == keys("b", "a")
    assert set(keys("a", "b")) == {"plugin:lib.so", "plugin:lib.so#2"}
    assert set(keys("a", "b").values()) == {one, two}


def test_a_build_begins_with_what_other_processes_have_learnt_by_then(tmp_path: Path) -> None:
    combined: list[Any] = []

    def combine(cache: Any, input_cache: Any, ignore_mismatch: bool) -> bool:
        combined.append(input_cache)
        return True

    with standing_in("8.6.1") as engines:
        engines.fake.behaviours["ITimingCache.combine"] = combine
        one, other = (opened(timing_cache=str(tmp_path)) for _ in range(2))
        mixes = uniform_and_mixed(one.model)
        for builder, mix in ((one, mixes[0]), (other, mixes[1])):
            builder.build(builder.lower(mix), tmp_path / "model.plan")
        combined.clear()
        cached(one).write_bytes(b"changed")
        one.build(one.lower(mixes[2]), tmp_path / "model.plan")
        assert combined, "the file has changed"
        combined.clear()
        one.build(one.lower(mixes[3]), tmp_path / "model.plan")
        assert not combined, "and has not changed since"


def test_a_timing_cache_that_this_version_cannot_read_again_is_not_written(tmp_path: Path) -> None:
    """TensorRT 8.6 refuses one with times of a region that Myelin compiled, and loses all that it holds."""
    read_back: list[Any] = []

    def create(config: Any, serialized_timing_cache: bytes) -> Any:
        made = engines.fake.create("ITimingCache")
        if serialized_timing_cache:
            read_back.append(made)
        return made

    with standing_in("8.6.1") as engines:
        engines.fake.behaviours |= {
            "IBuilderConfig.create_timing_cache": create,
            "ITimingCache.serialize": lambda cache: engines.fake.memory(
                b"" if any(cache is each for each in read_back) else b"timings"
            ),
        }
        builder = opened(timing_cache=str(tmp_path))
        notes = notes_of_builds(builder, tmp_path)
        assert builder.timing_cache() is None
    assert notes == [(), (), ()]
    assert not cached(builder).exists()
