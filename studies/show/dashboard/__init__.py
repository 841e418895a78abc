"""optuna-dashboard with our front: its own answers, completed by what a study knows now. Changes no study."""

from studies.show.dashboard.server import serve

__all__ = ["serve"]
