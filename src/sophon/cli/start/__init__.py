"""Commands to start with: the demo, the doctor, and shell completion."""
