"""On the module path of evaluator processes under test, which are patched before they import anything else."""

import sys

if any("evaluators.process.server" in argument for argument in sys.orig_argv):
    from evaluators.late_imports import import_late

    import_late()  # the process does so itself, but after what is imported here

    from tests.support.evaluator_patches.quick import patch_evaluator

    patch_evaluator()
