"""The command line of this source tree, in a process of its own: what benchmarks use where a user would."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks import ROOT

PROGRAM = [sys.executable, "-m", "bitfront"]


class CommandError(Exception):
    """A command of bitfront failed; the message has its output."""


def bitfront(*words: str, shown: bool = False) -> str:
    """Run a command; what it printed.

    Args:
        shown: print it at once instead, and return nothing.

    Raises:
        CommandError: it ended with another exit code than 0.
    """
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths}
    pipe = None if shown else subprocess.PIPE
    done = subprocess.run([*PROGRAM, *words], cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)
    if done.returncode:
        said = f"{done.stderr or ''}{done.stdout or ''}"
        raise CommandError(f"bitfront {' '.join(words)}\nended with exit code {done.returncode}:\n{said}")
    return done.stdout or ""
