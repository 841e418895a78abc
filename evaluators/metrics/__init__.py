"""Metrics of accuracy: built-in ones, and the user's own as `package.module:attribute`.

Scores outputs that it is given; never runs an engine and never decides whether a loss is too much. Public: `Metric` in
`contract`; `get_metric` and `BUILT_IN` in `registry`; `default_metric` in `default_metric`; `check_labels` in `labels`.
To add a metric, write it as a member of `METRICS` of the file of its kind.
"""
