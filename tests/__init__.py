"""The tests. A package, so that tests/queues can never be taken for queues."""
