"""perilogd: a broker for the edges of a batch job.

Only the version lives here. Nothing may be imported at this level, so that every process of
the project (broker, executor) loads no more than it uses.
"""

__version__ = "0.1.0"
