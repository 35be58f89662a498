"""The `perilog` command for people: help, tables, following a job, running an application.

One module for each group of commands, imported when one of them is called. Nothing here may be
needed by the verbs that scripts call: those are answered by `perilog.front` without this package.
"""
