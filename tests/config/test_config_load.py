"""Loading: defaults, files over files, options, drop-in folders, and what follows from them."""

from __future__ import annotations

import dataclasses
import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config_site import Site
from perilogd.config import Action, ConfigError, load, schema
from perilogd.config.check import report
from perilogd.config.values import _toml

ROOT = Path(__file__).resolve().parents[2]
ALL = """
[broker]
admins = ["daemon", 4242]
guests = "read"
guest-nodes = "n2,n1,n[3-4]"
lease-grace = "1m"
wait-event = "clean"
[limits]
frame = 65536
reruns = 0
[holds]
timeout = "2h"
maximum = { epilog = "3h" }
owner = { holds = 3 }
[journal]
inactive-age-limit = "infinity"
[executor]
environment = []
[nodes]
launcher = ["srun", "-w", "%h"]
[[action]]
name = "mount"
prolog = ["/bin/true", "", "up"]
epilog = ["/bin/true"]
after = ["dws", "dws"]
match = { dw = true, kind = 3, other = false, text = "t" }
timeout = { epilog = "5m" }
kill-timeout = "250ms"
cancel-on-exception = false
on-stuck = "kill"
[[provider]]
name = "dws"
users = ["root"]
match = { dw = "yes" }
holds = ["prolog:dws-setup", "epilog"]
timeout = "5m"
on-disconnect = { then = "fail" }
"""


@pytest.fixture
def site(folder: Path) -> Site:
    """An empty configuration folder."""
    return Site(folder)


def test_defaults(site: Site) -> None:
    """An empty file gives every default, with the paths that follow from each other."""
    site.write("")
    config = site.load()
    assert config.broker.socket == Path("/run/perilogd/perilogd.sock")
    assert config.executor.run_dir == Path("/run/perilogd/exec")
    assert config.journal.path == Path("/var/lib/perilogd/journal.sqlite")
    assert config.broker.admins == (0,)
    assert config.broker.guest_nodes == os.uname().nodename
    assert config.limits.frame == 2**20
    assert config.holds.timeout == {"depend": None, "prolog": 1800.0, "completion": 86400.0, "epilog": 3600.0}
    assert config.holds.owner.timeout == 86400.0
    assert config.nodes.release_after == 0.0
    assert (config.actions, config.providers) == ((), ())
    assert config.policy.holds_per_job == 1000


def test_default_maximum_follows_the_timeout(site: Site) -> None:
    """Where no maximum is written, it is thirty days, or the timeout if that is longer."""
    site.write('[holds]\ntimeout = { prolog = "40d", epilog = "infinity" }')
    day = 86400.0
    assert site.load().holds.maximum == {
        "depend": None,
        "prolog": 40 * day,
        "completion": 30 * day,
        "epilog": None,
    }


def test_everything_written(site: Site) -> None:
    """What is written arrives, in our types."""
    site.write(ALL)
    config = site.load()
    assert config.broker.admins == (1, 4242)
    assert config.broker.guest_nodes == "n[1-4]"
    assert config.broker.lease_grace == 60.0
    assert config.limits.frame == 65536
    assert config.limits.reruns == 0
    assert config.holds.timeout == dict.fromkeys(("depend", "prolog", "completion", "epilog"), 7200.0)
    assert config.holds.maximum["epilog"] == 10800.0
    assert (config.holds.owner.holds, config.holds.owner.nodes) == (3, 100_000)
    assert config.journal.inactive_age_limit is None
    assert config.executor.environment == ()
    assert config.nodes.launcher == ("srun", "-w", "%h")
    (action,) = config.actions
    assert action.commands == {"prolog": ("/bin/true", "", "up"), "epilog": ("/bin/true",)}
    assert action.timeout == {"prolog": 7200.0, "epilog": 300.0}
    assert action.after == ("dws",)
    assert action.match == {"dw": True, "kind": "3", "other": False, "text": "t"}
    assert (action.kill_timeout, action.cancel_on_exception, action.on_stuck) == (0.25, False, "kill")
    (provider,) = config.providers
    assert provider.users == (0,)
    assert provider.holds == (("prolog", "dws-setup"), ("epilog", "dws"))
    assert provider.timeout["depend"] == 300.0
    assert (provider.on_disconnect.grace, provider.on_disconnect.then) == (300.0, "fail")


def test_policy(site: Site) -> None:
    """The lifecycle gets names, phases, order and times, and no command."""
    site.write(ALL)
    config = site.load()
    (action,) = config.policy.actions
    assert action.phases == {"prolog", "epilog"}
    assert action.definition == config.actions[0].definition
    assert action.after == ("dws",)
    assert config.policy.reserved("mount")
    assert config.policy.reserved("dws-setup")
    assert not config.policy.reserved("other")


def test_deleted_key_has_its_default_again(site: Site) -> None:
    """C20: what is no longer written is no longer in force."""
    site.write('[holds]\nabandon-grace = "5s"\n[[action]]\nname = "a"\nprolog = ["/bin/true"]')
    assert site.load().holds.abandon_grace == 5.0
    site.write("")
    config = site.load()
    assert config.holds.abandon_grace == 60.0
    assert config.actions == ()
    assert config.as_table()["holds"]["abandon-grace"] == "60s"


def test_later_files_count(site: Site) -> None:
    """Files of FILE.d come in lexical order: they replace single values, and add actions and providers."""
    site.write(
        '[holds]\ntimeout = { prolog = "1m", epilog = "2m" }\n[[action]]\nname = "a"\nprolog = ["/bin/true"]'
    )
    site.write('[holds]\ntimeout = { prolog = "4m" }\n', "perilogd.toml.d/20.toml")
    site.write(
        '[holds]\ntimeout = { prolog = "3m" }\nabandon-grace = "1s"\n'
        '[[action]]\nname = "b"\nepilog = ["/bin/true"]\n',
        "perilogd.toml.d/10.toml",
    )
    site.write("no TOML", "perilogd.toml.d/30.toml~")
    site.write("no TOML", "perilogd.toml.d/.40.toml")
    config = site.load()
    assert config.holds.timeout == {"depend": None, "prolog": 240.0, "completion": 86400.0, "epilog": 120.0}
    assert config.holds.abandon_grace == 1.0
    assert [action.name for action in config.actions] == ["a", "b"]


def test_options_go_before_the_file(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders named as options replace those of the file, and what follows from them; relative ones too."""
    site.write('[broker]\nsocket = "/a/sock"\nrun-dir = "/a"\nstate-dir = "/b"')
    monkeypatch.chdir(site.folder)
    config = site.load(run_dir=Path("run"), state_dir=Path("/state"))
    assert config.broker.socket == Path("/a/sock")
    assert config.broker.run_dir == site.folder / "run"
    assert config.executor.run_dir == site.folder / "run/exec"
    assert config.journal.path == Path("/state/journal.sqlite")
    assert site.load(socket=Path("/c/sock")).broker.socket == Path("/c/sock")


def test_default_file_need_not_exist(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file of its own, and without one at the usual place, the broker has its defaults."""
    monkeypatch.setattr(sys.modules["perilogd.config.load"], "DEFAULT_FILE", site.file)
    assert load().file == site.file
    site.script("prolog.d/a")
    assert [action.name for action in load().actions] == ["a"]


def test_named_file_must_exist(site: Site) -> None:
    """A file that somebody names is not silently passed over."""
    assert site.faults() == [
        "SITE/perilogd.toml: cannot be read: No such file or directory; expected a configuration file"
    ]


def test_drop_ins(site: Site) -> None:
    """Files of the same name are one action, each after the one before it; leftovers are passed over."""
    site.write('[[action]]\nname = "zero"\nprolog = ["/bin/true"]\nafter = ["20-b"]\n')
    for name in ("prolog.d/10-a", "epilog.d/10-a", "epilog.d/20-b", "completion.d/30-c", "prolog.d/30-c"):
        site.script(name)
    for name in (
        "10-a~",
        ".10-a.swp",
        "10-a.dpkg-old",
        "x.rpmsave",
        "x.rpmnew",
        "x.rpmorig",
        "a.swp",
        ".hidden",
    ):
        site.script(f"prolog.d/{name}", 0o644)
    config = site.load()
    assert [(action.name, list(action.commands), action.after) for action in config.actions] == [
        ("zero", ["prolog"], ("20-b",)),
        ("10-a", ["prolog", "epilog"], ()),
        ("20-b", ["epilog"], ("10-a",)),
        ("30-c", ["prolog", "completion"], ("20-b",)),
    ]
    assert config.actions[1].commands["epilog"] == (f"{site.folder}/epilog.d/10-a",)
    assert config.actions[1].timeout == {"prolog": 1800.0, "epilog": 3600.0}


def test_table_can_be_written_and_read(site: Site) -> None:
    """`as_table` is the whole configuration: written to a file, it is read as the same one."""
    site.write(ALL)
    site.script("prolog.d/a")
    site.script("epilog.d/b")
    config = site.load()
    table = config.as_table()
    arrays = {name: table.pop(name) for name in ("action", "provider")}
    text = "".join(f"{name} = {_toml(section)}\n" for name, section in {**table, **arrays}.items())
    with tempfile.TemporaryDirectory() as folder:
        again = Site(Path(folder))
        again.write(text)
        read = again.load()
    assert read.as_table() == config.as_table()
    assert dataclasses.replace(read, file=config.file) == config
    assert read.hash == config.hash


def test_table_is_a_copy(site: Site) -> None:
    """Who changes the table that he was given changes nothing else."""
    site.write("")
    config = site.load()
    config.as_table()["broker"]["admins"].append("nobody")
    assert config.as_table()["broker"]["admins"] == ["root"]
    assert site.load().as_table()["broker"]["admins"] == ["root"]


def test_hash_names_all_but_the_folders(site: Site) -> None:
    """Two processes agree on the hash whatever folders they were given, and on nothing else that differs."""
    site.write("")
    before = site.load().hash
    assert site.load(run_dir=Path("/r"), state_dir=Path("/s"), socket=Path("/x/sock")).hash == before
    site.write("# a remark\n[limits]\n")
    assert site.load().hash == before
    site.write("[limits]\njobs = 7\n")
    assert site.load().hash != before
    site.write("")
    site.script("prolog.d/a")
    assert site.load().hash != before


def test_definition_names_what_the_executor_needs(site: Site) -> None:
    """An action's hash changes with its scripts and times, and not with order, match or other actions."""
    action = '[[action]]\nname = "a"\nprolog = ["/bin/true"]\n'
    site.write(action)
    config = site.load()
    (before,) = config.actions
    assert config.definition(before.definition) is before
    assert config.definition("0" * 64) is None
    other = '[[action]]\nname = "b"\nepilog = ["/bin/true"]\n'
    site.write(f'{action}after = ["b"]\nmatch = {{ x = true }}\n{other}')
    assert site.load().actions[0].definition == before.definition
    for change in (
        'timeout = "1h"\n',
        'kill-timeout = "1s"\n',
        'on-stuck = "kill"\n',
        'epilog = ["/bin/true"]\n',
    ):
        site.write(action + change)
        assert site.load().actions[0].definition != before.definition
    site.write(action.replace("true", "false"))
    assert site.load().actions[0].definition != before.definition


def test_stored_action_is_the_same(site: Site) -> None:
    """A definition that was put away runs as it would have, and has the same hash."""
    site.write(ALL)
    (action,) = site.load().actions
    again = Action.from_stored(action.to_stored())
    assert again.definition == action.definition
    assert (again.commands, again.timeout, again.kill_timeout) == (
        action.commands,
        action.timeout,
        action.kill_timeout,
    )


@pytest.mark.parametrize(
    "stored", [{}, {"name": "a"}, {"name": "a", "commands": 3}, {"name": "a", "commands": []}]
)
def test_damaged_definition(stored: dict[str, object]) -> None:
    """What is no stored action is refused as such."""
    with pytest.raises(ValueError, match=r"^not a stored action: "):
        Action.from_stored(stored)


def test_user_of_the_executor(site: Site) -> None:
    """An executor that is not root can run scripts as the user that it is."""
    uid = os.geteuid() or 1
    user = pwd.getpwuid(uid).pw_name
    site.write(f'[[action]]\nname = "a"\nprolog = ["/bin/true"]\nuser = "{user}"')
    assert site.load(uid=uid).actions[0].user == user


def test_systemd_means_a_root_executor(site: Site) -> None:
    """With start = "systemd" scripts are judged as root's executor will judge them, whoever reads."""
    site.write(
        '[executor]\nstart = "systemd"\n[[action]]\nname = "a"\nprolog = ["/bin/true"]\nuser = "daemon"'
    )
    if os.geteuid() == 0:
        assert site.load().actions[0].user == "daemon"
    else:
        assert f"SITE: belongs to uid {os.geteuid()} " in "\n".join(site.faults())


def test_report(site: Site) -> None:
    """A good configuration is reported with who takes part in jobs, and how."""
    site.write(ALL)
    site.script("epilog.d/a")
    site.script("epilog.d/b")
    good, text = report(site.file)
    assert good
    assert text == (
        f"{site.file}: no faults\n"
        "  action mount: prolog /bin/true  up; epilog /bin/true; after dws\n"
        f"  action a: epilog {site.folder}/epilog.d/a\n"
        f"  action b: epilog {site.folder}/epilog.d/b; after a\n"
        "  provider dws: prolog:dws-setup; epilog:dws"
    )


def test_report_of_faults(site: Site) -> None:
    """A bad configuration is reported with all of its faults, file by file."""
    site.write("[broker]\nguests = 1\n")
    site.write("[limits]\njobs = 0\n[journal]\npath = 1\n", "perilogd.toml.d/a.toml")
    good, text = report(site.file)
    assert not good
    assert text == (
        "3 faults in the configuration:\n"
        f"{site.file}\n"
        '  [broker] guests: found 1; expected one of "submit", "read", "none"\n'
        f"{site.file}.d/a.toml\n"
        "  [limits] jobs: found 0; expected an integer from 1 to 1000000000\n"
        "  [journal] path: found 1; expected an absolute path"
    )


def test_schema_and_types_agree(site: Site) -> None:
    """Each key of the description is an attribute of the typed configuration, and the other way round."""
    site.write("")
    config = site.load()
    for name, section in schema.SECTIONS.items():
        attributes = {field.name for field in dataclasses.fields(getattr(config, name))}
        assert {key.replace("-", "_") for key in section.keys} == attributes


def test_import_is_light() -> None:
    """The executor runs as root: reading a configuration imports none of the broker's libraries."""
    program = (
        "import sys; from pathlib import Path; from perilogd.config import load, ConfigError\n"
        "from perilogd.config import check\n"
        "heavy = {'trio', 'structlog', 'ClusterShell', 'msgpack', 'sqlite3', 'asyncio', 'ssl'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    output = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True)
    assert output == "[]\n"


WRITTEN: st.SearchStrategy[object] = st.recursive(
    st.none().map(lambda _: {})
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.sampled_from(
        ["1h", "0", "infinity", "1MiB", "/bin/true", "submit", "root", "n[1-3]", "DW_*", "prolog:x"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc-é\n", min_size=1), inner, max_size=3)
    ),
    max_leaves=5,
)
KEYS = [(name, key) for name, section in schema.SECTIONS.items() for key in section.keys] + [
    (name, key)
    for name, table in (("action", schema.ACTION), ("provider", schema.PROVIDER))
    for key in table.keys
]


@given(st.sampled_from(KEYS), WRITTEN)
def test_any_value_for_any_key(key: tuple[str, str], value: object) -> None:
    """Whatever is written for a key, it is taken, or a fault names file, table, key and value; never more."""
    name, written = key
    array = name in ("action", "provider")
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        header = f"[[{name}]]" if array else f"[{name}]"
        named = 'name = "x"\n' if array and written != "name" else ""
        site.write(f"{header}\n{named}{written} = {_toml(value)}\n")
        try:
            table = site.load().as_table()
        except ConfigError as error:
            for fault in error.faults:
                assert fault.file == str(site.file)
                assert fault.place.startswith(header)
                assert "expected" in fault.text
                assert "\n" not in str(fault)
        else:
            section = table[name][0] if array else table[name]
            spread = isinstance(section[written], dict) and not isinstance(value, dict)
            assert set(section[written].values()) == {value} if spread else written in section
