"""`sophon bench …` of planning."""
