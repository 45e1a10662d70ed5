"""Operations on queues: moves, undo, purges, redrives, deletions, pauses."""
