"""A place for configuration files and scripts, as the tests of perilogd.config use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from perilogd.config import Config, ConfigError, load

if TYPE_CHECKING:
    from pathlib import Path


class Site:
    """A configuration folder.

    Args:
        folder: an empty folder that only its owner can write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "perilogd.toml"

    def write(self, text: str, name: str = "perilogd.toml") -> Path:
        """Write a file of the folder, mode 0644, in place of what was there."""
        return self._make(name, text, 0o644)

    def script(self, name: str, mode: int = 0o755) -> Path:
        """Write a script that does nothing."""
        return self._make(name, "#!/bin/sh\n", mode)

    def _make(self, name: str, text: str, mode: int) -> Path:
        path = self.folder / name
        for parent in reversed(path.relative_to(self.folder).parents[:-1]):
            (self.folder / parent).mkdir(exist_ok=True)
            (self.folder / parent).chmod(0o755)
        path.write_text(text)
        path.chmod(mode)
        return path

    def load(self, **options: Any) -> Config:
        """Return the configuration as it is written now."""
        return load(self.file, **options)

    def faults(self, **options: Any) -> list[str]:
        """Return the faults of what is written now, the folder's own path as SITE."""
        with pytest.raises(ConfigError) as caught:
            self.load(**options)
        return [str(fault).replace(str(self.folder), "SITE") for fault in caught.value.faults]
