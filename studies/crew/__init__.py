"""The processes that work on one study together: heartbeats, leases, and tasks that one process does for all.

`Crew` is what a run asks of them. `Alone` is the only worker of a study on SQLite, `SharedCrew` is one of several on a
server.
"""

from studies.crew.crew import Crew
from studies.crew.shared import Alone, SharedCrew, locked_study

__all__ = ["Alone", "Crew", "SharedCrew", "locked_study"]
