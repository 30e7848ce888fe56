"""Which sample comes when and on which rank, and how far a run has come."""
