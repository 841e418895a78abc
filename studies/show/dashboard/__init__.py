"""optuna-dashboard with the front and picks of bitfront. It changes no study."""

from studies.show.dashboard.server import serve

__all__ = ["serve"]
