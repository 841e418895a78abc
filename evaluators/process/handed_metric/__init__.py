"""Scoring with a function of the keeper's process: outputs are sent through shared memory, and scores returned.

The evaluator process has a `RemoteMetric`, which makes the calls of `metric_calls.KeeperLine`; its keeper answers them
by a `Scorer`. Neither knows how messages are sent.
"""
