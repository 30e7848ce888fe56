"""Statistics, bad samples and explanations."""
