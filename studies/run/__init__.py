"""Running a study: ask, evaluate, record and tell until it is complete, then confirm the finalists."""
