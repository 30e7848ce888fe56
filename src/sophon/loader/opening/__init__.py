"""What is checked when a data set is opened."""
