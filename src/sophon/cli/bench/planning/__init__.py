"""`sophon bench` commands about planning."""
