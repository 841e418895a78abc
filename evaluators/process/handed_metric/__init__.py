"""Scoring by a function of the keeper's process: outputs go there through shared memory, scores come back.

The evaluator process has a `RemoteMetric`, which makes the calls of `metric_calls.KeeperLine`; its keeper answers them
by a `Scorer`. Neither knows how messages are sent.
"""
