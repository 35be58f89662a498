"""The units for systemd: sound, and so tied together that nothing they do touches a script."""

from __future__ import annotations

import configparser
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from bed import ROOT

if TYPE_CHECKING:
    from pathlib import Path

UNITS = ("perilogd.service", "perilogd.socket", "perilog-exec.service")
INSTALLED = "/opt/perilogd/bin/"


class _Unit(configparser.RawConfigParser):
    """A unit file: keys are case-sensitive; none of ours is given twice."""

    def __init__(self, name: str) -> None:
        super().__init__(comment_prefixes=("#",), delimiters=("=",), interpolation=None)
        self.read_string((ROOT / "systemd" / name).read_text())

    def optionxform(self, optionstr: str) -> str:
        return optionstr

    def words(self, section: str, *keys: str) -> set[str]:
        return {word for key in keys for word in self.get(section, key, fallback="").split()}


@pytest.fixture
def units(folder: Path) -> list[str]:
    """Paths of copies of the units that start the programs of this virtual environment."""
    paths = []
    for name in UNITS:
        copy = folder / name
        text = (ROOT / "systemd" / name).read_text()
        copy.write_text(text.replace(INSTALLED, f"{sys.prefix}/bin/"))
        paths.append(str(copy))
    return paths


def test_systemd_finds_no_fault(units: list[str]) -> None:
    """Systemd-analyze verify is silent about all units together: every key, value and program is known."""
    done = subprocess.run(["systemd-analyze", "verify", *units], check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_the_broker_is_well_confined(units: list[str]) -> None:
    """Systemd's own rating of the broker's confinement is at most 2.5 of 10 (10 is unconfined)."""
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=25", units[0]]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_stops_and_restarts_stay_where_they_are() -> None:
    """No dependency carries a stop or restart from one service to the other (systemd.unit(5))."""
    carriers = ("Requires", "BindsTo", "PartOf", "Requisite", "PropagatesStopTo", "StopPropagatedFrom")
    for name, other in (("perilogd.service", "perilog-exec"), ("perilog-exec.service", "perilogd")):
        unit = _Unit(name)
        assert not {word for word in unit.words("Unit", *carriers) if word.startswith(f"{other}.service")}
        assert unit.get("Service", "KillMode") == "process"
        assert unit.get("Service", "RuntimeDirectoryPreserve") == "yes"
        assert unit.get("Service", "Restart") in {"always", "on-failure"}


def test_scripts_see_the_host() -> None:
    """The executor's unit confines nothing: scripts would inherit it."""
    sandboxing = ("Private", "Protect", "Restrict", "ReadOnly", "Inaccessible", "NoNew", "Capability")
    keys = [key for key in _Unit("perilog-exec.service")["Service"] if key.startswith(sandboxing)]
    assert set(keys) <= {"Restart", "RestartSec"}


def test_the_socket_is_for_everyone() -> None:
    """Any user may connect: roles come from the kernel's credentials, not from a mode."""
    socket = _Unit("perilogd.socket")
    assert socket.get("Socket", "SocketMode") == "0666"
    assert socket.get("Socket", "ListenStream") == "/run/perilogd/perilogd.sock"


def test_units_and_configuration_agree() -> None:
    """The executor's folder and the broker's user are the same wherever they are written."""
    executor, broker = _Unit("perilog-exec.service"), _Unit("perilogd.service")
    table = tomllib.loads((ROOT / "systemd/executor.toml").read_text())["executor"]
    command = _exec_start(executor)
    assert table["start"] == "systemd"
    assert table["run-dir"] == f"/run/{executor.get('Service', 'RuntimeDirectory')}"
    assert command[command.index("--broker-user") + 1] == broker.get("Service", "User")
    assert _exec_start(broker)[1:] == []  # both read the system's configuration


def _exec_start(unit: _Unit) -> list[str]:
    return unit.get("Service", "ExecStart").split()


def test_the_user_can_be_made() -> None:
    """Systemd-sysusers takes our file, and would make the user that the broker's unit names."""
    command = ["systemd-sysusers", "--dry-run", str(ROOT / "systemd/sysusers.conf")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    user = _Unit("perilogd.service").get("Service", "User")
    assert f"'{user}'" in done.stdout + done.stderr


def test_folders_are_as_the_units_make_them() -> None:
    """The folders of both services have the same owner and mode in tmpfiles.d as in the units."""
    lines = [line.split() for line in (ROOT / "systemd/tmpfiles.conf").read_text().splitlines()]
    made = {words[1]: words[2:4] for words in lines if words[0] == "d"}
    for name in ("perilogd.service", "perilog-exec.service"):
        unit = _Unit(name)
        mode, user = unit.get("Service", "RuntimeDirectoryMode"), unit.get("Service", "User", fallback="root")
        assert made[f"/run/{unit.get('Service', 'RuntimeDirectory')}"] == [mode, user]
