"""The simulator's judgement of queues."""
