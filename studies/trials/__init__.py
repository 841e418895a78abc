"""The trials of a study in Optuna: proposals, results and forecasts."""
