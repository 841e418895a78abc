"""The work of an evaluator process: one class for each kind, on one model, its data and one device.

The classes implement the Protocols of `evaluators.process.line`; `evaluators.process.evaluator` puts them together.
They know nothing of processes, pipes or messages.
"""
