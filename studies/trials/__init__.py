"""Optuna's side of a study: its trials, what they are told, and what was forecast of them."""
