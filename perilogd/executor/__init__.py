"""perilog-exec: starts, signals, limits and reaps scripts, and nothing else.

It decides nothing about jobs. Its modules, from the outside in: main (the process), loop (epoll, sockets, the
order of work), channel and wire (what is said to the broker), supervisor (the runs and what happens to them),
run (one run), reports; definitions (what may be run), launcher and spawn (how it is begun), environment and
results (what a script gets and leaves), output, records (files), processes, adopt (what another executor has
left). Only wire is meant for other packages.
"""
