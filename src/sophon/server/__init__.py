"""Near storage: runs the first ops of samples beside the data and sends the results."""
