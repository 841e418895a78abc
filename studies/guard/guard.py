"""The guard: it answers requests, compares a share of them, and switches engines."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.forks import renew_in_children
from studies.guard import breaker as circuit
from studies.guard.agreement import Agreement, all_finite
from studies.guard.compensation import Compensation
from studies.guard.engines import Arrays, Run, SafeEngine, find_fault, name_engines, open_pair, outputs_kind
from studies.guard.observer import Observer
from studies.guard.options import BOXES, CLASSES, FAST, SAFE, GuardError, GuardOptions
from studies.guard.policy import Policy, PolicyKeeper, Sensor
from studies.guard.reports import TroubleReports, sentence_of
from studies.guard.samples.reservoir import Reservoir
from studies.guard.samples.shadow import Sample, Shadow
from studies.guard.state import Breaker, BreakerState, GuardState, RequestCounts
from studies.guard.state_file import StateKeeper

_COMPARING, _WATCHING = "comparing", "watching"
_LOG = logging.getLogger("bitfront.guard")
_NO_ENGINES: Mapping[str, Run] = MappingProxyType({})

Inputs = Mapping[str, NDArray[Any]]


class Guard:
    """Serves with a fast engine as long as it agrees with a safe one. Any thread may call `run`.

    The fast engine answers requests. A share of its answers is compared with those of the safe engine, in a separate
    thread. If the engines agree too little for several windows in a row, the safe engine answers all requests. Later
    the fast engine is tried on a share of the requests, without answering them, until it has agreed well for some
    windows. If the fast engine raises an error, returns something else than the safe engine's outputs by name, or gives
    NaN or Inf where the safe one gives numbers, the guard switches at once, and the safe engine answers the request.

    In a process that is forked from the one that made it, the guard goes on with threads and counts of its own, and
    engines of `open` are opened again. Engines on a GPU refuse there, because CUDA does. Functions given as engines
    have to work in a forked process.

    Examples:
        >>> guard = Guard.open("export/fast", "export/fp16", state="guard.json")  # doctest: +SKIP
        >>> outputs = guard.run({"image": image})  # doctest: +SKIP

    Args:
        fast, safe: functions from inputs by name to outputs by name, which several threads may call.
        options: see `GuardOptions`.
        state: a file in which the state of the breaker survives a restart, and which several processes may share; None
            to keep it in memory.
        policy: a function that gets the guard's state and returns the name of the engine to use: `fast`, `safe` or one
            of `engines`. It is not called in the way of requests. The circuit breaker can override it.
        engines: further engines by name, compared with the safe one like the fast one.
        sensor: gives what `GuardState.sensors` holds, for example `temperature_c`; asked every `policy_every_s`, before
            the policy.
        tell: a function that is called with a sentence about each event; None to log it as a warning of the logger
            `bitfront.guard`.
        seed: the seed for choosing samples.
        reservoir: keeps some requests of every hour as fresh data; None to keep none. The guard closes it.

    Raises:
        GuardError: the state file is not one of a guard, its folder is missing, or one of `engines` is called `fast` or
            `safe`.
    """

    def __init__(
        self,
        fast: Run,
        safe: Run,
        options: GuardOptions | None = None,
        *,
        state: str | Path | None = None,
        policy: Policy | None = None,
        engines: Mapping[str, Run] = _NO_ENGINES,
        sensor: Sensor | None = None,
        tell: Callable[[str], None] | None = None,
        seed: int | None = None,
        reservoir: Reservoir | None = None,
    ) -> None:
        self._options = options = options or GuardOptions()
        self._engines = name_engines(fast, safe, engines)
        self._tell = tell or _LOG.warning
        self._troubles = TroubleReports(self._tell)
        self._safe = SafeEngine(safe, self._troubles)
        self._seed = seed
        self._random = random.Random(seed)
        self._reservoir = reservoir
        self._keeper = StateKeeper(None if state is None else Path(state), self._troubles)
        self._sampled_first = False
        self._told = self._keeper.breaker.state
        self._telling = Lock()
        self._agreement = Agreement(options.outputs or (None if options.decode is None else BOXES), options.decode)
        self._compensation = Compensation(options.compensate) if options.compensate else None
        self._policy = PolicyKeeper(tuple(self._engines), policy, sensor, options.policy_every_s, self._troubles)
        self._window: list[float] = []
        self._last_window: float | None = None
        self._counts = RequestCounts()
        self._observer: Observer | None = None
        self._shadow: Shadow[Sample] = Shadow(options.queue, self._compare, self._tell_failure, self._look_around)
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        """A lock, a window and random numbers of its own; the parts of the guard see to themselves."""
        self._telling = Lock()
        self._window = []
        self._random = random.Random(None if self._seed is None else f"{self._seed} {os.getpid()}")

    @classmethod
    def open(
        cls,
        fast: str | Path,
        safe: str | Path,
        options: GuardOptions | None = None,
        *,
        device: str | None = None,
        threads: int | None = None,
        **others: Any,
    ) -> Guard:
        """Open a guard for two exported folders: the mix, and an export of the same study in FP16 or FP32.

        Where the options do not say what outputs are, the metric of the study says it if it is a built-in one of
        classes or of values.

        Args:
            device, threads: see `studies.guard.engines.open_pair`.
            others: further arguments of the class.

        Raises:
            GuardError: a folder is no export, or they are of different models.
        """
        options = options or GuardOptions()
        if options.outputs is None and options.decode is None:
            options = replace(options, outputs=outputs_kind(Path(safe)))
        return cls(*open_pair(Path(fast), Path(safe), device, threads), options, **others)

    # -- requests --------------------------------------------------------------------------------------------------

    def run(self, inputs: Inputs) -> Arrays:
        """Answer one request.

        Args:
            inputs: the inputs by name, as the engines take them.

        Returns:
            Outputs by name.

        Raises:
            GuardError: the safe engine was needed but failed.
        """
        observer = self._observer
        if observer is None:
            return self._answer(inputs)[1]
        start = time.perf_counter()
        try:
            engine, answer = self._answer(inputs)
        except Exception:
            observer.on_failure()
            raise
        observer.on_answer(engine, time.perf_counter() - start)
        return answer

    def _answer(self, inputs: Inputs) -> tuple[str, Arrays]:
        """The name of the engine that answered, and its outputs."""
        self._shadow.wake()
        self._counts.add("requests")
        if self._reservoir is not None:
            self._reservoir.offer(inputs)
        name = self._engine_in_service()
        if name == SAFE:
            breaker = self._keeper.breaker
            why = "the policy wants the safe engine" if breaker.state is BreakerState.CLOSED else breaker.reason
            return SAFE, self._offer_sample(inputs, self._safe.answer(inputs, why), SAFE)
        outputs, fault = self._ask(name, inputs)
        if fault:
            reason = f"the {name} engine {fault}"
            answer = self._safe.answer(inputs, reason)
            self._leave(reason)
            return SAFE, answer
        if not all_finite(outputs):
            return SAFE, self._replace_non_finite(inputs, name)
        self._offer_sample(inputs, outputs, name)
        if self._compensation is None or name != FAST:  # the mean error is that of the fast engine alone
            return name, outputs
        return name, self._compensation.apply(outputs)

    def _ask(self, name: str, inputs: Inputs) -> tuple[Arrays, str]:
        """The outputs of an engine, and what is wrong with it if they are none."""
        try:
            outputs = self._engines[name](inputs)
        except Exception as error:
            return {}, f"raised {type(error).__name__}: {error}"
        return outputs, find_fault(outputs, self._safe.names)

    def _engine_in_service(self) -> str:
        return self._policy.chosen if self._keeper.breaker.state is BreakerState.CLOSED else SAFE

    def _replace_non_finite(self, inputs: Inputs, name: str) -> Arrays:
        """Inputs that hold NaN give NaN in every engine: that is no fault of the fast one."""
        answer = self._safe.answer(inputs, f"the {name} engine gave NaN or Inf")
        if all_finite(answer):
            self._leave(f"the {name} engine gave NaN or Inf where the safe one gave numbers")
        return answer

    def _offer_sample(self, inputs: Inputs, outputs: Arrays, engine: str) -> Arrays:
        """Hand a share of the requests to the comparison; returns the outputs as they are."""
        resting = engine == SAFE and self._keeper.breaker.state is not BreakerState.HALF_OPEN
        taken = not resting and self._random.random() < self._options.share
        if self._options.share and not self._sampled_first and not resting:  # it tells the names of the safe outputs
            taken = self._sampled_first = True
        if taken and not self._shadow.offer(Sample.copy_of(inputs, outputs, engine)):
            self._counts.add("dropped")
        return outputs

    # -- beside the requests ---------------------------------------------------------------------------------------

    def _compare(self, sample: Sample) -> None:
        probing = sample.engine == SAFE
        name = self._engine_to_probe() if probing else sample.engine
        other, fault = self._ask(name, sample.inputs) if probing else (self._engines[SAFE](sample.inputs), "")
        if not probing:
            self._safe.check(other, "")
            fault = find_fault(sample.outputs, self._safe.names)
        if fault:
            self._leave(f"tried again, the {name} engine {fault}" if probing else f"the {name} engine {fault}")
            return
        fast, safe = (other, sample.outputs) if probing else (sample.outputs, other)
        if not all_finite(safe):
            raise GuardError("the safe engine gave NaN or Inf, so there is nothing to compare with.")
        agreement = self._agreement.measure(fast, safe)
        if self._compensation is not None and name == FAST:
            self._compensation.add(fast, safe)
        self._counts.add("compared")
        self._remember(agreement)
        threshold = self._choose_threshold()
        self._change(lambda b, now: circuit.add_sample(b, agreement, threshold, self._options, now))
        self._synchronize()
        self._troubles.settle(_COMPARING)
        if self._observer is not None:
            least = 1.0 if self._agreement.kind == CLASSES else threshold
            self._inform(self._observer, sample.inputs, fast, safe, agreement >= least)

    def _inform(self, observer: Observer, inputs: Inputs, fast: Inputs, safe: Inputs, agrees: bool) -> None:
        try:
            observer.on_comparison(inputs, fast, safe, agrees)
            self._troubles.settle(_WATCHING)
        except Exception as error:
            self._troubles.report(_WATCHING, f"computing metrics of a compared sample: {sentence_of(error)}")

    def _engine_to_probe(self) -> str:
        """The engine that will answer once the breaker is closed; the fast one if the policy wants the safe one."""
        return FAST if self._policy.chosen == SAFE else self._policy.chosen

    def _choose_threshold(self) -> float:
        threshold = self._options.threshold
        return self._agreement.default_threshold if threshold is None else threshold

    def _remember(self, agreement: float) -> None:
        self._window.append(agreement)
        if len(self._window) == self._options.window:
            self._last_window = float(np.mean(self._window))
            self._window.clear()

    def _leave(self, reason: str) -> None:
        self._change(lambda b, now: circuit.leave(b, reason, self._options, now))

    def _change(self, change: Callable[[Breaker, float], Breaker]) -> None:
        now = time.time()
        self._keeper.change(lambda b: change(circuit.at(b, self._options, now), now))
        self._tell_state()

    def _tell_state(self) -> None:
        """Tell a state of the breaker that is new in this process, whichever process changed it."""
        breaker = self._keeper.breaker
        with self._telling:
            known, self._told = self._told, breaker.state
        # While the fast engine is left, whoever left it, its errors of before are worth nothing.
        if self._compensation is not None and self._keeper.breaker.state is BreakerState.OPEN:
            self._compensation.forget()
        if known is not breaker.state:
            self._tell(circuit.describe(breaker))

    def _synchronize(self) -> None:
        self._keeper.synchronize()
        self._tell_state()

    def _look_around(self) -> None:
        """What other processes did, what time it is, and what the policy says."""
        self._synchronize()
        known = self._keeper.breaker
        if circuit.at(known, self._options, time.time()) is not known:
            self._change(lambda b, now: b)
        self._policy.ask(self.state)

    def _tell_failure(self, error: BaseException) -> None:
        text = f"comparing a sample: {sentence_of(error)} Requests are answered as before; the sample is left out."
        self._troubles.report(_COMPARING, text)

    # -- looking at it ---------------------------------------------------------------------------------------------

    def state(self) -> GuardState:
        """The current state of the guard."""
        breaker = self._keeper.breaker
        return GuardState(
            breaker.state,
            breaker.reason,
            self._engine_in_service(),
            **self._counts.numbers(),
            agreement=self._last_window,
            sensors=self._policy.sensors,
        )

    @property
    def engines(self) -> tuple[str, ...]:
        """Names of all engines."""
        return tuple(self._engines)

    def observe(self, observer: Observer | None) -> None:
        """Report every request and every comparison to an observer from now on; None ends that."""
        self._observer = observer

    def drain(self) -> None:
        """Wait until all chosen samples are compared, for tests and before a process ends."""
        self._shadow.drain()
        if self._reservoir is not None:
            self._reservoir.drain()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the threads of the guard.

        Args:
            timeout_s: the most seconds to wait for an engine that is comparing a sample. If it takes longer, this is
                told, and its thread is left to end with it, or with the process.
        """
        if not self._shadow.close(timeout_s):
            self._tell(
                f"closing a guard: an engine has not answered within {timeout_s:g} s in a comparison. Its thread is "
                "left behind, and ends when the engine answers or the process ends."
            )
        if self._reservoir is not None:
            self._reservoir.close(timeout_s)
        self._keeper.synchronize()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
