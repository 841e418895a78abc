"""The tests: folders mirror the packages, `support/` holds what tests share."""
