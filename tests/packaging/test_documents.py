"""The documents: they stand alone, agree with the code, and lead nowhere that does not exist."""

from __future__ import annotations

import re
import subprocess
import tomllib
from typing import TYPE_CHECKING

import perilogd
from bed import ROOT
from perilog.cli.main import COMMANDS
from perilogd.config import schema

if TYPE_CHECKING:
    from pathlib import Path

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
MANUALS = sorted((ROOT / "docs/man").iterdir())


def _anchors(page: Path) -> set[str]:
    """Return the fragments that a page's headings can be linked by, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    """Every link to a file of the tree names one that is there, and a heading that it has."""
    for page in PAGES:
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            if "://" in link:
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in _anchors(target), f"{page.name}: {link}"


def test_every_key_is_documented() -> None:
    """docs/configuration.md and perilogd.toml(5) name every key that this version takes."""
    page = (ROOT / "docs/configuration.md").read_text()
    manual = (ROOT / "docs/man/perilogd.toml.5").read_text().replace("\\-", "-")
    for table in (*schema.SECTIONS.values(), schema.ACTION, schema.PROVIDER):
        for name in table.keys:
            assert f"`{name}`" in page, name
    for header in ("broker", "limits", "holds", "journal", "executor"):
        for name in schema.SECTIONS[header].keys:
            assert re.search(rf"\b{name}\b", manual), name


def test_every_command_is_documented() -> None:
    """perilog(1) names every command that there is."""
    manual = (ROOT / "docs/man/perilog.1").read_text()
    for name in COMMANDS:
        assert re.search(rf"\b{name}\b", manual), name


def test_the_example_configuration_is_right() -> None:
    """The example in docs/configuration.md has only tables and keys that there are."""
    text = (ROOT / "docs/configuration.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    tables = tomllib.loads(example)
    for table in tables.pop("action"):
        assert table.keys() <= schema.ACTION.keys.keys()
    for table in tables.pop("provider"):
        assert table.keys() <= schema.PROVIDER.keys.keys()
    for header, table in tables.items():
        assert table.keys() <= schema.SECTIONS[header].keys.keys()


def test_versions_agree() -> None:
    """The package, its metadata and the manual pages carry one version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == perilogd.__version__
    for manual in MANUALS:
        assert f'"perilogd {perilogd.__version__}"' in manual.read_text().splitlines()[0]


def test_make_alone_lists_what_it_can_do() -> None:
    """`make` without a target prints every target, and does nothing."""
    printed = subprocess.check_output(["make", "-C", str(ROOT), "--no-print-directory"], text=True)
    listed = [line.split()[1] for line in printed.splitlines()]
    assert listed == ["help", "venv", "check", "test", "demo", "bench", "clean"]


def test_a_missing_python_is_explained(tmp_path: Path) -> None:
    """.ci/make-venv says what to install where no suitable Python is found, and leaves nothing behind."""
    command = [str(ROOT / ".ci/make-venv"), str(tmp_path / "venv"), "/bin/false"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "apt-get install python3 python3-venv" in done.stderr
    assert not (tmp_path / "venv").exists()
