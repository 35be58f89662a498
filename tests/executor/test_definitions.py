"""What may be run, and whose word counts: configuration, reload, stored definitions."""

from __future__ import annotations

from exec_bed import ExecBed


def test_a_reload_counts_when_it_is_committed(bed: ExecBed) -> None:
    """A candidate is read and named by its hash; after the commit it is the configuration in force."""
    bed.action("a", "exit 3")
    peer = bed.start()
    old = bed.loaded()
    assert (peer.hello["config"], peer.hello["faults"]) == (old.hash, [])
    bed.action("b", "exit 4")
    bed.write_config()
    new = bed.loaded()
    answer = peer.ask("prepare", tag="x")
    assert answer == {"tag": "x", "config": new.hash, "faults": []}
    assert bed.connect().greet().hello["config"] == old.hash
    peer = bed.connect().greet()
    assert peer.record(bed.run(peer, "b"))["status"] == 4 << 8  # the candidate's can be run already
    peer.send("commit", config=new.hash)
    peer.send("commit", config=new.hash)
    peer.barrier()
    assert bed.connect().greet().hello["config"] == new.hash


def test_a_faulty_candidate_is_refused_whole(bed: ExecBed) -> None:
    """All faults are told, and the configuration in force stays in force."""
    bed.action("a", "exit 3")
    peer = bed.start()
    old = bed.loaded().hash
    bed.table("[nonsense]\n[limits]\nframe = 'x'")
    bed.write_config()
    answer = peer.ask("prepare", tag=1)
    assert answer["config"] is None
    assert len(answer["faults"]) == 2
    peer.send("commit", config=old)  # in force already: no effect
    peer.barrier()
    assert bed.connect().greet().hello["config"] == old


def test_a_definition_that_was_run_outlives_its_configuration(bed: ExecBed) -> None:
    """After a reload without it, and a restart, an action's epilog can still be run by its hash."""
    bed.action("other", "exit 0")
    kept_tables = list(bed._tables)
    bed.action("a", "exit 5", "epilog", timeout="9m")
    peer = bed.start()
    definition = bed.definition("a")
    peer.record(bed.run(peer, "a", "epilog", 1))
    bed._tables = kept_tables
    bed.write_config()
    config = peer.ask("prepare", tag=1)["config"]
    peer.send("commit", config=config)
    run = bed.run(peer, "a", "epilog", 2, definition=definition)
    assert peer.record(run)["status"] == 5 << 8
    bed.kill()
    peer = bed.start(config=False)
    assert peer.hello["config"] == config
    run = bed.run(peer, "a", "epilog", 3, definition=definition)
    assert peer.record(run)["status"] == 5 << 8
    _, since, deadline = peer.started(run)
    assert deadline == since + 540


def test_definitions_that_nobody_owes_are_forgotten(bed: ExecBed) -> None:
    """Those named in keep, those configured and those of known runs stay; all others go."""
    tables = list(bed._tables)
    for name in ("owed", "running", "forgotten"):
        bed.action(name, "exit 0" if name != "running" else "exec sleep 1000")
    bed.action("configured", "exit 0")
    peer = bed.start()
    names = ("owed", "running", "forgotten", "configured")
    definitions = {name: bed.definition(name) for name in names}
    runs = {name: bed.run(peer, name) for name in names}
    for name in names:
        if name != "running":
            peer.record(runs[name])
    bed._tables = tables
    bed.action("configured", "exit 0")
    bed.write_config()
    peer.send("commit", config=peer.ask("prepare", tag=1)["config"])
    peer.send("keep", definitions=[definitions["owed"]])
    peer.barrier()
    stored = {path.name for path in (bed.exec_dir / "definitions").iterdir()}
    assert stored == {definitions[name] for name in ("owed", "running", "configured")}
    for name in ("owed", "configured", "forgotten"):
        run = bed.run(peer, name, job=2, definition=definitions[name])
        assert peer.record(run)["outcome"] == ("failed" if name == "forgotten" else "ok")


def test_a_script_that_runs_keeps_what_it_started_with(bed: ExecBed) -> None:
    """A reload that changes an action changes no run of it: deadlines and rules stay those of the start."""
    bed.action("a", "exec sleep 1000", timeout="1h")
    peer = bed.start()
    run = bed.run(peer, "a")
    before = peer.started(run)
    bed._tables = []
    bed.action("a", "exec sleep 1000", timeout="1s", on_stuck="kill")
    bed.write_config()
    peer.send("commit", config=peer.ask("prepare", tag=1)["config"])
    entry = bed.connect().greet().listed(run)
    assert entry is not None
    assert entry["deadline"] == before[2]


def test_what_lies_among_the_definitions_is_checked(own_bed: ExecBed) -> None:
    """A stored definition that is broken, or has another hash than its name, is no definition."""
    own_bed.action("a", "exit 0")
    peer = own_bed.start()
    peer.record(own_bed.run(peer, "a"))
    own_bed.stop()
    folder = own_bed.exec_dir / "definitions"
    good = (folder / own_bed.definition("a")).read_bytes()
    (folder / ("1" * 64)).write_bytes(good)
    (folder / ("2" * 64)).write_bytes(b"{")
    (folder / ("3" * 64)).write_bytes(b'{"name": "x"}')
    peer = own_bed.start()
    for digit in "123":
        record = peer.record(own_bed.run(peer, "a", job=int(digit) + 1, definition=digit * 64))
        assert record["status"] == 127 << 8
