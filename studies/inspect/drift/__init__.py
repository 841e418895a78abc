"""Tells whether fresh data are still like those that a study was calibrated on. It changes nothing."""
