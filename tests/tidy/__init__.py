"""Style that runs: the rules of CONTRIBUTING.md that no linter knows."""
