"""The script `run.py` of an export, which runs the engine with its runtime and numpy alone.

`compose.run_script` joins an engine class of this folder with `command.py`. Both are parts of a script that a user
reads and copies from, so they import nothing of bitfront.
"""

from evaluators.backends.run_script.compose import RUN_SCRIPT, run_script

__all__ = ["RUN_SCRIPT", "run_script"]
