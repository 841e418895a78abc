"""Run a study: ask, evaluate, record, tell, until there is enough; then confirm the finalists."""
