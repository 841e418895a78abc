"""Testing whether fresh data resemble the calibration data of a study. It changes nothing."""
