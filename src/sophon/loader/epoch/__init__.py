"""A running epoch: engine, finishers, batches."""
