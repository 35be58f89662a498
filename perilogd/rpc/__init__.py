"""MessagePack-RPC over a Unix socket: frames, arguments, connections, watches.

How requests come in and replies go out lives below here. What a method does, who owns a job and
what is written to disk do not: the broker brings those as functions.
"""
