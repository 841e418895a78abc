"""Settings of the whole suite."""

from hypothesis import HealthCheck, settings

# A busy machine must not fail a test: neither slow examples nor slow draws say anything about the code.
settings.register_profile("bitfront", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bitfront")
