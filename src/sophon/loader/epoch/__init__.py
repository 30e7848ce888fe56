"""An epoch under way: engine, finishers, batches."""
