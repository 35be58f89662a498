"""The process perilog-exec: options, folder, lock, signals, and its re-exec."""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from exec_bed import ROOT, ExecBed, Peer, acting_as, eventually, wait_for_end

if TYPE_CHECKING:
    from exec_bed import Signpost


def run_briefly(bed: ExecBed, *options: str) -> subprocess.CompletedProcess[str]:
    """Run an executor that is expected to end by itself, as the tests' own user."""
    return subprocess.run(
        [*bed.command, *options], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


def again(bed: ExecBed, peer: Peer) -> Peer:
    """Have the executor re-exec itself, and return a new connection to it."""
    os.kill(bed.pid, signal.SIGHUP)
    assert peer.closing_words() is None
    return bed.connect().greet()


def test_a_reexec_keeps_pid_children_and_their_true_statuses(bed: ExecBed, signpost: Signpost) -> None:
    """SIGHUP: same process, same epoch, and scripts that run or have ended are still its own children."""
    go = bed.folder / "go"
    os.mkfifo(go)
    bed.action("a", f"echo up > {signpost}; read x < {go}; exit 7", timeout="1h")
    bed.action("b", "exit 9")
    peer = bed.start()
    run, ended = bed.run(peer, "a"), bed.run(peer, "b")
    assert signpost.line() == "up"
    old_record = peer.record(ended)
    before = peer.started(run)
    old = peer.hello
    peer = again(bed, peer)
    assert (peer.hello["pid"], peer.hello["epoch"]) == (old["pid"], old["epoch"])
    listed = peer.listed(run)
    assert listed is not None
    assert (listed["state"], listed["pid"], listed["since"], listed["deadline"]) == ("running", *before)
    listed = peer.listed(ended)
    assert listed is not None
    assert listed["record"] == old_record
    peer = again(bed, peer)  # and once more
    go.write_text("go\n")
    record = peer.record(run)
    assert (record["outcome"], record["status"]) == ("failed", 7 << 8)
    assert record["max_rss"] > 0  # so it was reaped by its parent
    assert "error" not in record


def test_a_script_that_ends_during_a_reexec_has_its_true_status(bed: ExecBed, signpost: Signpost) -> None:
    """An end between the old program and the new one waits for the new one, whatever the moment."""
    go = bed.folder / "go"
    os.mkfifo(go)
    bed.action("a", f"echo up > {signpost}; read x < {go}; exit 7")
    peer = bed.start()
    for job in range(1, 6):
        run = bed.run(peer, "a", job=job)
        assert signpost.line() == "up"
        os.kill(bed.pid, signal.SIGHUP)
        go.write_text("go\n")
        peer.closing_words()
        peer = bed.connect().greet()
        entry = peer.listed(run) or {}
        record = entry.get("record") or peer.record(run)
        assert (record["outcome"], record["status"]) == ("failed", 7 << 8)


def test_a_cancel_goes_on_across_a_reexec(bed: ExecBed, signpost: Signpost) -> None:
    """What was told to end stays told, once, and on-stuck follows."""
    bed.action(
        "a",
        f"trap 'echo term > {signpost}' TERM; echo up > {signpost}; while :; do sleep 1000 & wait; done",
        kill_timeout="700ms",
        on_stuck="kill",
    )
    peer = bed.start()
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    peer.send("cancel", id=run, reason="cancel")
    assert signpost.line() == "term"
    peer.barrier()
    peer = again(bed, peer)
    record = (peer.listed(run) or {}).get("record") or peer.record(run)
    assert (record["outcome"], record["status"]) == ("canceled", 9)
    assert signpost.silent()


def test_a_reexec_reads_the_configuration_and_listens_without_a_gap(bed: ExecBed) -> None:
    """The socket stays the same one, and what is installed and configured now is what runs then."""
    bed.action("a", "exit 0")
    peer = bed.start()
    inode = (bed.exec_dir / "exec.sock").stat().st_ino
    bed.action("b", "exit 0")
    bed.table(f'[executor]\nrun-dir = "{bed.folder}/elsewhere"')  # takes effect at the next start
    bed.write_config()
    peer = again(bed, peer)
    assert (bed.exec_dir / "exec.sock").stat().st_ino == inode
    assert peer.hello["config"] == bed.loaded().hash
    assert peer.record(bed.run(peer, "b"))["outcome"] == "ok"
    assert not [fd for fd in _descriptors(bed.pid) if fd.startswith("/") and not fd.startswith(_EXPECTED)]


#: What an executor may have open, apart from sockets and the like.
_EXPECTED = ("/dev/null", "/proc/", "/tmp/")


def _descriptors(pid: int) -> list[str]:
    return [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]


def test_a_stop_leaves_scripts_running(bed: ExecBed, signpost: Signpost) -> None:
    """SIGTERM ends the executor at once with 0; no script gets a signal, and the next executor finds it."""
    bed.action("a", f"echo up > {signpost}; exec sleep 1000")
    peer = bed.start()
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    assert bed.stop() == 0
    peer = bed.start()
    entry = peer.listed(run)
    assert entry is not None
    assert entry["state"] == "running"
    os.kill(entry["pid"], 0)


def test_a_second_executor_refuses_to_work_in_the_same_folder(own_bed: ExecBed) -> None:
    """Two executors would begin scripts twice; the second one ends and says why, and the first goes on."""
    own_bed.action("a", "exit 0")
    peer = own_bed.start()
    refused = run_briefly(own_bed)
    assert refused.returncode == 1
    assert "another perilog-exec works in" in refused.stderr
    assert peer.record(own_bed.run(peer, "a"))["outcome"] == "ok"


@pytest.mark.parametrize("kind", ["writable", "parent"])
def test_a_folder_that_others_can_write_is_refused(own_bed: ExecBed, kind: str) -> None:
    """Whoever can put files into the folder, or another folder in its place, could forge runs."""
    own_bed.action("a", "exit 0")
    own_bed.write_config()
    own_bed.exec_dir.mkdir(parents=True)
    (own_bed.exec_dir if kind == "writable" else own_bed.run_dir).chmod(0o777)
    refused = run_briefly(own_bed)
    assert refused.returncode == 2
    assert "cannot be the executor's folder" in refused.stderr
    assert "[executor] run-dir" in refused.stderr


@pytest.mark.parametrize(
    ("name", "root", "text"),
    [
        ("no-such-user", 2, "no such user: no-such-user"),
        ("daemon", None, "only root can let another user in"),
    ],
)
def test_broker_user_must_be_one_who_can_be_let_in(
    own_bed: ExecBed, name: str, root: int | None, text: str
) -> None:
    """--broker-user names a user; anybody else than oneself needs root."""
    own_bed.action("a", "exit 0")
    if os.geteuid() == 0 and root is None:
        peer = own_bed.start("--broker-user", name)
        socket_file = (own_bed.exec_dir / "exec.sock").stat()
        daemon = pwd.getpwnam(name).pw_uid
        assert (socket_file.st_uid, socket_file.st_mode & 0o777) == (daemon, 0o600)
        assert peer.hello["uid"] == 0
        with acting_as(daemon), socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(own_bed.exec_dir / "exec.sock"))
            assert Peer(sock).greet().hello["uid"] == 0
    else:
        own_bed.write_config()
        refused = run_briefly(own_bed, "--broker-user", name)
        assert refused.returncode == 2
        assert text in refused.stderr


def test_a_stranger_is_refused_though_the_socket_lets_him(own_bed: ExecBed) -> None:
    """SO_PEERCRED decides; where nobody can become another user, the mode of the socket is what counts."""
    own_bed.action("a", "exit 0")
    peer = own_bed.start()
    path = own_bed.exec_dir / "exec.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    if os.geteuid() == 0:
        path.chmod(0o666)
        code = (
            "import socket, sys\n"
            "s = socket.socket(socket.AF_UNIX)\ns.settimeout(30)\n"
            "s.connect(sys.argv[1])\n"
            "try:\n    s.sendall(bytes.fromhex(sys.argv[2]))\n    print(s.recv(100))\n"
            "except (BrokenPipeError, ConnectionResetError):\n    print(b'')\n"
        )
        hello = b"\x92\xa5hello\x82\xa8protocol\x01\xa7journal\xa1x"
        told = subprocess.run(
            ["/usr/bin/python3", "-IS", "-c", code, str(path), hello.hex()],
            user=65534,
            group=65534,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout == "b''\n"
        eventually(lambda: "uid 65534 was refused" in own_bed.log.read_text())
    assert peer.record(own_bed.run(peer, "a"))["outcome"] == "ok"


def test_a_faulty_configuration_does_not_keep_the_executor_from_its_runs(
    bed: ExecBed, signpost: Signpost
) -> None:
    """With nothing in force it still finds its folder, goes on with its runs, and runs what it ran before."""
    bed.table(f'[executor]\nrun-dir = "{bed.exec_dir}"')
    bed.action("a", f"echo up > {signpost}; exec sleep 1000")
    bed.action("b", "exit 3", "epilog")
    peer = bed.start()
    run, definition = bed.run(peer, "a"), bed.definition("b")
    assert signpost.line() == "up"
    epilog = bed.run(peer, "b", "epilog", 1)
    peer.record(epilog)
    bed.stop()
    bed.table("[nonsense]")
    peer = bed.start()
    assert peer.hello["config"] == ""
    assert any("nonsense" in fault for fault in peer.hello["faults"])
    entry = peer.listed(run)
    assert entry is not None
    assert entry["state"] == "running"
    stored = bed.run(peer, "b", "epilog", 2, definition=definition)
    assert peer.record(stored)["status"] == 3 << 8
    unknown = bed.run(peer, "b", "epilog", 3, definition="0" * 64)
    assert peer.record(unknown)["status"] == 127 << 8


def test_check_tells_about_the_configuration(own_bed: ExecBed) -> None:
    """--check judges as the daemon would, touches nothing, and tells by its exit code."""
    own_bed.action("a", "exit 0")
    own_bed.write_config()
    good = run_briefly(own_bed, "--check")
    assert (good.returncode, own_bed.run_dir.exists()) == (0, False)
    own_bed.table("[nonsense]")
    own_bed.write_config()
    bad = run_briefly(own_bed, "--check")
    assert bad.returncode == 2
    assert "nonsense" in bad.stdout


def test_the_log_can_be_json(own_bed: ExecBed) -> None:
    """--log-format json: one object a line."""
    own_bed.action("a", "exit 0")
    own_bed.start("--log-format", "json")
    lines: list[dict[str, Any]] = [json.loads(line) for line in own_bed.log.read_text().splitlines()]
    assert {"timestamp", "level", "event"} <= set(lines[0])


def test_what_an_executor_was_started_with_does_not_reach_scripts(bed: ExecBed, signpost: Signpost) -> None:
    """Descriptors and ignored signals of whoever started the executor end with it."""
    bed.action("a", f"ls /proc/self/fd | wc -l > {signpost}; exec sleep 1000")
    bed.write_config()
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    wrapper = bed.script("start", f"trap '' HUP USR1\nexec {' '.join(bed.command)}")
    process = bed._popen([str(wrapper)], pass_fds=[writer])
    try:
        os.close(writer)
        peer = bed.connect().greet()
        run = bed.run(peer, "a")
        assert signpost.line() in {"4", "5"}  # ls has one of its own, and the shell may have its script
        status = Path(f"/proc/{peer.started(run)[0]}/status").read_text()
        ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
        assert int(ignored, 16) & 0x7FFFFFFF == 0
    finally:
        process.kill()
        process.wait()
        os.close(reader)
    for pid in bed.left():
        pidfd = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pidfd)
