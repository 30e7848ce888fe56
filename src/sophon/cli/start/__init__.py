"""What one begins with: the demo, the doctor, and help for the shell."""
