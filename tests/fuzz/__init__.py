"""Requests that no sound client sends, against real broker processes.

`corpus` has sound requests: those that real clients sent (`captures.txt`) and a plausible one of
every key and version served. `mutate` damages their bytes; `attack` sends them and counts what the
broker dispatched. `grammar` writes requests field by field from their declarations, with values at
the edges of fields (`edges`, `bent_batches`), against three brokers beside a producer that must not
notice (`cluster_siege`); `aim` keeps out what a broker would rightly obey.

`python -m tests.fuzz --frames 200000` is the long run, `--grammar` that of the grammar; the modules
of tests are samples.
"""
