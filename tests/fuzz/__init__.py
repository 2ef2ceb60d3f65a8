"""Frames that no sound client sends, against a real broker process.

`corpus` has sound requests: those that real clients sent (`captures.txt`) and a plausible one of
every key and version served. `mutate` damages them, `attack` sends them and counts what the broker
dispatched. `python -m tests.fuzz --frames 200000` is the long run, `test_broker_survives` a sample.
"""
