"""The simulator's judgement of jobs."""
