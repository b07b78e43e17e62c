"""Verification of any Kafka endpoint: clients write and read while a person injects faults; then a judge checks the recorded
answers.

The package shares no code with the broker (an import contract proves it), so that an error of the broker's code cannot hide
itself. `history` is the recorded run. `judge` and `registers` find its violations, and `page` prints the result. These are pure.
`recorder` keeps the history in a directory, `clients` are the workloads, `run` starts and ends them.
"""
