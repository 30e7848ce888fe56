"""The command line: parse, call one function, render. The only place that prints."""
