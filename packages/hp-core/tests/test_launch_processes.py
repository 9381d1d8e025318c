# SPDX-License-Identifier: Apache-2.0
"""The processes of a launched job: output, failures, their order, and that nothing is left. No framework here."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import pytest

from hp_core.errors import CommError, ConfigError, LaunchError
from hp_core.launch.failure import Failure, first_failure, from_exception, from_returncode, is_consequence
from hp_core.launch.ports import free_port, port_is_free
from hp_core.launch.report import failure_report


def test_lines_have_their_rank_in_front_and_the_last_partial_one_is_not_lost(capfd, start_job, finish_job):
    source = """
        print(f"hello from {rank}", *sys.argv[1:])
        print("to stderr", file=sys.stderr)
        sys.stdout.write("no newline")
    """
    assert finish_job(start_job(source, args=("--lr", "0.1"))) == {}
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == [
        "[rank 0] hello from 0 --lr 0.1",
        "[rank 0] no newline",
        "[rank 1] hello from 1 --lr 0.1",
        "[rank 1] no newline",
    ]
    assert sorted(err.splitlines()) == ["[rank 0] to stderr", "[rank 1] to stderr"]


def test_lines_come_while_the_rank_runs_and_many_of_them_stay_whole(tmp_path):
    job = tmp_path / "job.py"
    job.write_text(
        textwrap.dedent("""
            import os, time
            for number in range(3000):
                print(os.environ["RANK"], number, "x" * 50)
            print("ready")
            time.sleep(600)
        """)
    )
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        textwrap.dedent("""
            import sys, time
            from hp_core.launch.processes import RankProcesses
            from hp_core.launch.spec import LaunchSpec
            processes = RankProcesses(LaunchSpec(sys.argv[1], num_ranks=2), {0: {"RANK": "0"}, 1: {"RANK": "1"}}, "m")
            sys.stdin.read()
            processes.close()
        """)
    )
    command = [sys.executable, launcher, job]
    seen = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        while sum("ready" in line for line in seen) < 2:  # the ranks never end by themselves
            seen.append(running.stdout.readline())
            assert seen[-1]
        running.communicate()
    for rank in range(2):
        lines = [f"{rank} {number} " + "x" * 50 for number in range(3000)]
        assert [line for line in seen if line.startswith(f"[rank {rank}] ")] == [
            f"[rank {rank}] {line}\n" for line in [*lines, "ready"]
        ]


def test_the_console_rank_writes_without_a_prefix(capfd, start_job, finish_job):
    assert finish_job(start_job("print(f'I am {rank}')", console_rank=0)) == {}
    assert sorted(capfd.readouterr().out.splitlines()) == ["I am 0", "[rank 1] I am 1"]


def test_a_script_runs_as_main_beside_its_own_modules_and_its_threads_outlive_its_last_line(
    tmp_path, capfd, start_job, finish_job
):
    (tmp_path / "neighbour.py").write_text("NAME = 'neighbour'")
    source = """
        import threading
        from neighbour import NAME

        def later():
            time.sleep(0.2)
            print(NAME, __name__, sys.modules["__main__"].NAME)

        threading.Thread(target=later).start()
    """
    assert finish_job(start_job(source, num_ranks=1)) == {}
    assert capfd.readouterr().out == "[rank 0] neighbour __main__ neighbour\n"


def test_a_script_means_what_it_means_without_a_launcher(capfd, start_job, finish_job):
    source = """
        def area(side: int) -> float: ...
        print(area.__annotations__ == {"side": int, "return": float}, os.path.isabs(__file__))
    """
    assert finish_job(start_job(source, num_ranks=1)) == {}
    assert capfd.readouterr().out == "[rank 0] True True\n"


@pytest.mark.parametrize("ending", ["sys.exit(3)", "raise ValueError('of the child')"])
def test_how_a_forked_child_ends_is_not_how_the_rank_ends(capfd, ending, start_job, finish_job):
    source = f"""
        if os.fork() == 0:
            {ending}
        status = os.waitstatus_to_exitcode(os.wait()[1])
        time.sleep(4)  # longer than a rank that has failed is left alone
        print("the child ended with", status)
    """
    assert finish_job(start_job(source, num_ranks=1)) == {}
    out, err = capfd.readouterr()
    assert out.startswith("[rank 0] the child ended with ")
    assert ("ValueError: of the child" in err) == ("raise" in ending)


def test_output_that_cannot_be_written_is_said_and_the_job_goes_on(tmp_path):
    script = tmp_path / "job.py"
    script.write_text("import sys\nfor _ in range(20000): print('x' * 100)\nprint('done', file=sys.stderr)\n")
    code = (
        "import sys, time\nfrom hp_core.launch.processes import RankProcesses\n"
        "from hp_core.launch.spec import LaunchSpec\n"
        "job = RankProcesses(LaunchSpec(sys.argv[1], (), 1), {0: {'RANK': '0'}}, 'mark')\n"
        "while job.poll() is None: time.sleep(0.02)\n"
        "job.close()\n"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, str(script)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.stderr.count("hp run: output is lost, it cannot be written: [Errno 28]") == 1
    assert "[rank 0] done" in done.stderr


def test_a_rank_that_raises_takes_the_others_down_and_its_traceback_is_kept(gone, start_job, finish_job):
    source = """
        def broken():
            raise ValueError("boom")

        if rank == 1:
            broken()
        time.sleep(600)
    """
    begin = time.monotonic()
    processes = start_job(source)
    pids = processes.pids
    failures = finish_job(processes)
    assert time.monotonic() - begin < 10
    assert list(failures) == [1]  # the rank that we ended has not failed
    assert failures[1].summary == "ValueError: boom"
    assert 'raise ValueError("boom")' in failures[1].traceback
    assert "hp_core" not in failures[1].traceback
    assert all(gone(pid) for pid in pids.values())


@pytest.mark.parametrize(
    ("ending", "summary", "exit_code"),
    [
        ("sys.exit(3)", "sys.exit(3)", 3),
        ("sys.exit('no data')", "sys.exit('no data')", 1),
        ("os._exit(5)", "ended with exit code 5", 5),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL (signal 9)", 137),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV (signal 11)", 139),
    ],
)
def test_how_a_rank_ended_is_known(ending, summary, exit_code, start_job, finish_job):
    failures = finish_job(start_job(f"if rank == 0: {ending}\ntime.sleep(600)"))
    assert list(failures) == [0]
    assert failures[0].summary == summary
    assert failures[0].exit_code == exit_code


@pytest.mark.parametrize("ending", ["sys.exit(0)", "sys.exit()", "pass"])
def test_ranks_that_end_well_are_no_failure(ending, start_job, finish_job):
    assert finish_job(start_job(ending)) == {}


def test_a_consequence_seen_before_its_cause_is_not_taken_for_it(start_job, finish_job):
    source = """
        from hp_core.errors import CommError
        if rank == 0:
            raise CommError("connection closed by peer")
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    failures = finish_job(start_job(source))
    assert failures[0].secondary
    assert first_failure(failures.values()).rank == 1


def test_a_failed_rank_that_does_not_end_is_ended(start_job, finish_job):
    source = """
        import threading
        if rank == 0:
            threading.Thread(target=time.sleep, args=(600,)).start()
            raise ValueError("with a thread that stays")
        time.sleep(600)
    """
    begin = time.monotonic()
    failures = finish_job(start_job(source))
    assert time.monotonic() - begin < 10
    assert failures[0].summary == "ValueError: with a thread that stays"


@pytest.mark.parametrize(
    ("closing", "ending", "summary"),
    [
        ("sys.stderr.close()", "sys.exit('no data')", "sys.exit('no data')"),
        ("sys.stdout.close(); sys.stderr.close()", "raise ValueError('boom')", "ValueError: boom"),
        ("sys.stdout = sys.stderr = None", "raise ValueError('boom')", "ValueError: boom"),
        ("os.close(1); os.close(2)", "raise ValueError('boom')", "ValueError: boom"),
        ("os.closerange(3, 64)", "raise ValueError('boom')", "ended with exit code 1"),
    ],
)
def test_a_rank_that_closes_what_it_was_given_still_says_how_it_failed(
    capfd, closing, ending, summary, start_job, finish_job
):
    failures = finish_job(start_job(f"{closing}\n{ending}", num_ranks=1))
    assert failures[0].summary == summary
    assert failures[0].exit_code == 1
    if "closerange" in closing:
        assert "[rank 0] ValueError: boom\n" in capfd.readouterr().err


def test_the_launcher_never_writes_into_a_file_that_got_its_descriptor(tmp_path, start_job, finish_job):
    source = """
        os.closerange(3, 64)
        files = [open(f"{sys.argv[1]}{number}", "w") for number in range(8)]
        raise ValueError("boom")
    """
    finish_job(start_job(source, num_ranks=1, args=(str(tmp_path / "precious"),)))
    assert [path.stat().st_size for path in tmp_path.glob("precious*")] == [0] * 8


def test_ranks_that_the_system_does_not_start_are_an_error_for_users_and_those_started_are_ended(
    monkeypatch, gone, start_job
):
    started = []

    class Scarce(subprocess.Popen):
        def __init__(self, command, **options):
            if len(started) == 2:
                raise OSError(24, "Too many open files")
            super().__init__(command, **options)
            if options.get("pass_fds"):
                started.append(self.pid)

    monkeypatch.setattr(subprocess, "Popen", Scarce)
    with pytest.raises(LaunchError, match=r"only 2 of this host's 4 ranks could be started: .*Too many open files"):
        start_job("time.sleep(600)", num_ranks=4)
    assert len(started) == 2
    assert all(gone(pid) for pid in started)


def test_standard_input_is_empty(capfd, start_job, finish_job):
    assert finish_job(start_job("print(repr(sys.stdin.read()))", num_ranks=1)) == {}
    assert capfd.readouterr().out == "[rank 0] ''\n"


def test_without_an_output_ranks_run_all_the_same(tmp_path):
    script = tmp_path / "job.py"
    script.write_text("print('x' * 100000)\n")
    code = (
        "import sys\nfrom hp_core.launch.processes import RankProcesses\n"
        "from hp_core.launch.spec import LaunchSpec\n"
        "job = RankProcesses(LaunchSpec(sys.argv[1], (), 1), {0: {'RANK': '0'}}, 'mark')\n"
        "while job.poll() is None: pass\n"
        "sys.exit(len(job.poll()))\n"
    )
    command = 'exec "$@" >&- 2>&- <&-'
    done = subprocess.run(["sh", "-c", command, "sh", sys.executable, "-c", code, str(script)], timeout=60)
    assert done.returncode == 0


def chained(inner: Exception, outer: Exception) -> Exception:
    try:
        try:
            raise inner
        except Exception:
            raise outer  # noqa: B904  # the implicit chain is what is tested
    except Exception as error:
        return error


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes before Python 3.11")
def test_notes_do_not_hide_the_message():
    error = ValueError("the message")
    error.add_note("see page 3")
    assert from_exception(1, error).summary == "ValueError: the message"


@pytest.mark.parametrize(
    ("error", "consequence"),
    [
        (CommError("rank 1 never came"), True),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:37255"), True),
        (RuntimeError("NCCL error: remote process exited or there was a network error"), True),
        (ConnectionResetError("connection reset"), True),
        (ValueError("gloo"), False),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
        (RuntimeError("CUDA error: out of memory"), False),
        (chained(CommError("gone"), RuntimeError("step 3 failed")), True),
        (chained(ValueError("loss is NaN"), CommError("gone")), False),
    ],
    ids=lambda value: f"{type(value).__name__}: {value}"[:50] if isinstance(value, Exception) else "",
)
def test_what_counts_as_a_consequence_of_another_ranks_end(error, consequence):
    assert is_consequence(error) is consequence


def test_the_earliest_first_failure_is_reported_and_the_earliest_consequence_where_there_is_nothing_else():
    late = Failure(0, "exception", "late", time_ns=3)
    early = Failure(1, "signal", "early", time_ns=2)
    broken = Failure(2, "exception", "broken", time_ns=1, secondary=True)
    assert first_failure([late, early, broken]) is early
    assert first_failure([broken]) is broken


def test_the_report_ends_with_the_first_failure_and_its_rank():
    def broken():
        raise ValueError("boom")

    try:
        broken()
    except ValueError as error:
        first = from_exception(2, error, own_files={__file__ + "x"})
    after = Failure(0, "exception", "CommError: rank 2 has ended", "long", time_ns=0, secondary=True)
    *others, last = failure_report({0: after, 2: first}, 4).splitlines()
    assert others[0] == "[rank 0] failed as a consequence: CommError: rank 2 has ended"
    assert others[1] == "[rank 2] Traceback (most recent call last):"
    assert others[-1] == "[rank 2] ValueError: boom"
    assert last == "error: rank 2 of 4 failed: ValueError: boom"


def test_the_report_of_a_killed_rank_has_a_hint_and_an_error_for_users_no_traceback():
    killed = failure_report({1: from_returncode(1, -9)}, 2)
    assert killed.startswith(
        "error: rank 1 of 2 was killed by SIGKILL (signal 9): by another process, or by the kernel"
    )
    try:
        raise ConfigError("unknown key 'lrr'; did you mean 'lr'?")
    except ConfigError as error:
        failure = from_exception(0, error)
    assert failure_report({0: failure}, 1) == "error: rank 0 failed: unknown key 'lrr'; did you mean 'lr'?"


def test_free_ports_are_free():
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 10
    assert all(port_is_free(port) for port in ports)
