"""Hooks: work of a run beside its evaluations, each when it is due."""
