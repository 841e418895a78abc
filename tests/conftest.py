"""Settings of the whole suite."""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine must not fail a test: neither slow examples nor slow draws say anything about the code. Examples are
# the same at every run, so that a change fails for what it changed; `--hypothesis-profile=random` looks for new ones.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("bitfront", settings.get_profile("random"), derandomize=True)
settings.load_profile("bitfront")

# A shell that starts pytest in the background has it ignore Ctrl-C, and so would the commands that tests press it in.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Measurements take turns by a lock in the folder of temporary files: the tests of this process wait for nobody else's.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # tmp_path stays where pytest has it
os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="bitfront-test-")
atexit.register(shutil.rmtree, os.environ["TMPDIR"], ignore_errors=True)
tempfile.tempdir = None
# What this user has allowed studies to run is no affair of tests, nor they of it.
os.environ["XDG_STATE_HOME"] = os.path.join(os.environ["TMPDIR"], "state")

# BLAS reads it once, as NumPy is imported: on small matrices its threads only wait for each other, busily.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Every worker of pytest-xdist imports all tests, and SymPy is a tenth of that: it waits as in the product's processes.
from evaluators.late_imports import import_late  # noqa: E402

import_late()

# After these are set, for what they bring in may ask for it.
from studies.store.store import Store  # noqa: E402
from tests.support.layers import SECOND_LAYER, SLOW_PLACES, SLOW_TESTS, SLOWEST  # noqa: E402
from tests.support.made_once import make_once  # noqa: E402
from tests.support.study_rows import SERVERS, STUDY, TARGET, fresh_url  # noqa: E402
from tests.support.tensorrt.gpu_turns import pytest_runtest_protocol  # noqa: E402, F401

make_once()
TESTS = f"{Path(__file__).parent.as_posix()}/"


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        on_server = any(parameter in SERVERS for parameter in parameters if isinstance(parameter, str))
        if on_server or item.path.stem.removeprefix("test_") in SECOND_LAYER:
            item.add_marker(pytest.mark.long)
        name = item.name.partition("[")[0]
        if item.path.as_posix().removeprefix(TESTS).startswith(SLOW_PLACES) or name in SLOW_TESTS:
            item.add_marker(pytest.mark.slow)
    if "BITFRONT_PEERS" not in os.environ:
        for item in items:
            if item.get_closest_marker("peers"):
                item.add_marker(pytest.mark.skip(reason="needs other quantizers: make test-peers"))
    names = [f"test_{name}" for name in SLOWEST]
    items.sort(key=lambda item: names.index(item.path.stem) if item.path.stem in names else len(names))


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An SQLite file that holds no study; `studies/store/contract` has one of every kind of database."""
    return fresh_url("sqlite", tmp_path, with_tables=True)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url, create=True) as store:
        yield store


@pytest.fixture
def target(store: Store) -> int:
    return store.targets.add(store.studies.create(STUDY), TARGET, "demo/cpu")


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a search keeps for later ones of this user is kept for one file of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def what_is_there_stays() -> None:
    """Modules and collected tests, and what earlier files left: 0.2 s per look through them, at each session opened."""
    gc.collect()
    gc.freeze()
