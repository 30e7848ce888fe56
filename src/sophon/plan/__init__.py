"""Planning where work is done: cost model, resources, policies and plans.

Pure: the same input gives the same output, byte for byte; nothing here reads a clock or a socket.
"""
