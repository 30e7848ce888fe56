"""The order of samples, their ranks, and the progress of a run."""
