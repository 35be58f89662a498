"""The broker: validate → append → apply → act, in one trio thread.

`core` is that loop. `writer` commits what was appended and lets out what waited for it, `runs` knows
which script is where, `link` talks to perilog-exec, `timers` keeps deadlines, `drains` the nodes out
of service, `restore` brings back what the journal remembers. Requests come in through `perilogd.methods`;
the rules of a job's life are in `perilogd.lifecycle` and nowhere else.
"""
