"""Run many candidates, remember all of them, choose one."""

__version__ = "0.1.0"
