"""Measurements: `python -m staniel.bench` compares our server with its peers; see bench/README.md.

The rooms: `peers/` that comparison, `own/` measurements of our server alone, `harness/` what both need, and `soak/`,
which measures nothing: it kills servers and checks that they keep their promises. Nothing outside imports this package,
and the wheel leaves it out.
"""
