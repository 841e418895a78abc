"""The thresholds of `bitfront sensitivity`, as rows of the option table."""
