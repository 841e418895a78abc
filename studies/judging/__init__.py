"""Judging measurements: limits, front, ties, picks, and the standing of a study.

`standing.Standing` is one target's evaluations under limits, read by `study_lookup.standing_of`. What it says of one
evaluation is a `points.Point`; `point_lists` gives the front, the picks and what a table names. `rules` are pure
functions of columns, `sentences` the words for what they find, `findings` and `status` what else is known of a study.
`search_events.SearchEvents` is what a running search tells.

Reads the store and writes nothing; measures nothing and knows of no terminal.
"""

from studies.judging.points import Point
from studies.judging.search_events import SearchEvents
from studies.judging.standing import Standing, best_point, front_points, pick_points
from studies.judging.study_lookup import standing_of

__all__ = ["Point", "SearchEvents", "Standing", "best_point", "front_points", "pick_points", "standing_of"]
