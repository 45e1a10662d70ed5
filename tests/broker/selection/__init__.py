"""Items that an operator means by terms, wherever they stand in a queue."""
