"""Measurements of our server alone, each a command of its own: `python -m staniel.bench.own.core`.

`baseline.json` has the instruction counts that `core` compares with. Other servers are compared with in `peers/`.
"""
