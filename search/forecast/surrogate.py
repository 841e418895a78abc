"""The two models that predict latency and loss of an assignment before it is built, with their uncertainty.

Latency is a base, plus a cost per group, plus a cost per edge where the precision changes. Loss is a monotone map of
noise, and noise is a sum over groups. Both have costs that a solver can minimise exactly (`mean`, `draw`).
"""

from search.forecast.latency_model import LatencyModel, fit_latency
from search.forecast.loss_model import LossModel, fit_loss
from search.forecast.quality import Quality, is_poor, quality

__all__ = ["LatencyModel", "LossModel", "Quality", "fit_latency", "fit_loss", "is_poor", "quality"]
