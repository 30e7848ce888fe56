"""What is measured and planned while a loader runs."""
