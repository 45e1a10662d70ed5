"""Measurements: `python -m staniel.bench` compares our server with its peers; see bench/README.md.

`peers/` has that comparison, `own/` measurements of our server alone, `harness/` what both need, and `soak/`, which
measures nothing: it kills servers and checks that they keep their promises. No other package imports this one, and the
wheel leaves it out.
"""
