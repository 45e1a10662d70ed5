"""Style that runs: the rules of docs/contributing/code.md that no linter knows."""
