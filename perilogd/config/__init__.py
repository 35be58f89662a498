"""The configuration: read, checked as a whole, and handed out as frozen data.

The names below are all that other packages use. Both processes import this package, the executor
as root: no trio, no structlog, no ClusterShell at import.
"""

from perilogd.config.load import DEFAULT_FILE, load
from perilogd.config.model import Action, Config, ConfigError, Fault, Provider

__all__ = ["DEFAULT_FILE", "Action", "Config", "ConfigError", "Fault", "Provider", "load"]
