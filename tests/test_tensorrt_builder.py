"""What a builder of TensorRT keeps between builds, by the stand-in: an engine, its log, a timing cache."""

from __future__ import annotations

import gc
import hashlib
import json
import weakref
from pathlib import Path
from typing import Any

import pytest

from evaluators.backends.tensorrt import TensorRTBackend
from evaluators.backends.tensorrt_builder import BuilderKnobs, TensorRTBuilder
from networks import loaded, ranged
from test_tensorrt_api import PATHS, V10, assignments, standing_in


def opened(**options: Any) -> TensorRTBuilder:
    return TensorRTBackend("cuda", **options).builder(loaded("residual"), ranged("residual"))


@pytest.mark.parametrize(("version", "typing"), PATHS)
def test_a_plan_that_was_written_over_is_loaded_as_it_is_now(version: str, typing: str, tmp_path: Path) -> None:
    mixes = assignments(loaded("residual"))
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

    mix = assignments(loaded("residual"))[0]
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
        mixes = assignments(loaded("residual"))
        builder.build(builder.lower(mixes[0]), tmp_path / "model.plan")
        fits = iter([True, False])  # another one, whose cache fits no more when the third engine is built
        for mix in mixes[1:3]:
            builder.build(builder.lower(mix), tmp_path / "model.plan")
        gc.collect()
        assert len(makers) == 3
        assert makers[-1]() is builder._timing._config is not None


def test_plugins_of_one_name_from_several_folders_are_told_apart(tmp_path: Path) -> None:
    """A single library's key is the one that stored evaluations have."""
    libraries = {}
    for folder, content in (("a", b"one"), ("b", b"two"), ("c", b"one")):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "lib.so"
        file.write_bytes(content)
        libraries[folder] = str(file)

    def keys(*folders: str) -> dict[str, str]:
        found = BuilderKnobs(plugins=tuple(libraries[folder] for folder in folders)).to_json()
        return {key: value for key, value in found.items() if key.startswith("plugin:")}

    one, two = (hashlib.sha256(content).hexdigest() for content in (b"one", b"two"))
    assert keys("a") == keys("a", "c") == {"plugin:lib.so": one}
    assert keys("a", "b") == keys("b", "a")
    assert set(keys("a", "b")) == {"plugin:lib.so", "plugin:lib.so#2"}
    assert set(keys("a", "b").values()) == {one, two}
