"""Candidates on their way through building and measuring, in one process or in several."""
