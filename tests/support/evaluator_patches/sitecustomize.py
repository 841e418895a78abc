"""On the module path of evaluator processes under test: latencies are measured in milliseconds, not in seconds.

Tests of what surrounds a measurement need no steady numbers, and on a busy machine steady ones take up to ten seconds.
"""

import os
import sys

if any("evaluators.process.server" in argument for argument in sys.orig_argv):
    import psutil

    from evaluators.late_imports import import_late

    import_late()  # the process does so itself, but after what is imported here

    from evaluators.measure import latency

    latency.MAX_WARM_UP_S = 0.01
    latency.BLOCK_MS = 0.5
    measure_once = latency._measure_once

    def once(session, baseline, plan):  # type: ignore[no-untyped-def]
        quick = latency.replace(plan, seconds=0.005, min_samples=20)
        return latency.replace(measure_once(session, baseline, quick), warnings=())

    latency._measure_once = once
    together_once = latency._together_once

    def all_once(everyone, baseline, rounds, plan, alive):  # type: ignore[no-untyped-def]
        found = together_once(everyone, baseline, 5, plan, alive)
        return {name: latency.replace(each, warnings=()) for name, each in found.items()}

    latency._together_once = all_once
    latency._unmended = lambda *_: ()
    cpu_percent = psutil.cpu_percent
    psutil.cpu_percent = lambda interval, percpu: cpu_percent(0.01, percpu)

    if "BITFRONT_TEST_DOUBTFUL" in os.environ:
        from tests.support.evaluator_patches import doubtful_latency  # noqa: F401
    if "BITFRONT_TEST_SLOW_START" in os.environ:
        from tests.support.evaluator_patches import slow_start  # noqa: F401
    if "BITFRONT_TEST_EVER_SLOWER" in os.environ:
        from tests.support.evaluator_patches import ever_slower  # noqa: F401
    if "BITFRONT_TEST_CUDA" in os.environ:
        from tests.support.evaluator_patches import named_cuda  # noqa: F401
    if "BITFRONT_TEST_TOY" in os.environ:
        from tests.support.evaluator_patches import toy_precision

        toy_precision.add()
    if "BITFRONT_TEST_TENSORRT" in os.environ:
        from tests.support.evaluator_patches import pretended_tensorrt  # noqa: F401
