"""The storage node: runs the first ops of samples next to the data and sends the results."""
