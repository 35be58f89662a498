"""What `perilog check` and `perilogd --check` tell about a configuration.

The report for people is made here; all judging is done by `load`.
"""

from __future__ import annotations

from pathlib import Path

from perilogd.config.load import load
from perilogd.config.model import Action, ConfigError, Provider


def report(path: Path | None = None) -> tuple[bool, str]:
    """Check a configuration and its scripts as the daemon would.

    Args:
        path: the configuration file; None: the default one, if it exists.

    Returns:
        Whether it can be used, and a text: all faults, or who takes part in jobs and how.
    """
    try:
        config = load(path)
    except ConfigError as error:
        return False, str(error)
    absent = "" if config.file.exists() else " (not there: what is not written has its default)"
    lines = [f"{config.file}: no faults{absent}"]
    lines += map(_action, config.actions)
    lines += map(_provider, config.providers)
    return True, "\n".join(lines)


def _action(action: Action) -> str:
    scripts = [f"{phase} {' '.join(command)}" for phase, command in action.commands.items()]
    return _line("action", action.name, scripts, action.after)


def _provider(provider: Provider) -> str:
    return _line(
        "provider", provider.name, [f"{phase}:{name}" for phase, name in provider.holds], provider.after
    )


def _line(what: str, name: str, parts: list[str], after: tuple[str, ...]) -> str:
    order = [f"after {', '.join(after)}"] if after else []
    return f"  {what} {name}: {'; '.join([*parts, *order]) or 'no holds'}"
