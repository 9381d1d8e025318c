# SPDX-License-Identifier: Apache-2.0
"""``hp run``: jobs under torch's elastic agent, from the command line and from Python."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from hp_core.errors import LaunchError
from hp_core.launch.engine import launch
from hp_core.launch.ports import free_port
from hp_core.launch.spec import LaunchSpec
from hp_core.platform.host_cores import num_cores

HP = [sys.executable, "-c", "from hp_core.cli import main; main()", "run"]

COLLECTIVE = """
    import os, sys, time
    import torch
    import hp_core.comm as comm

    mode = sys.argv[1]
    comm.init_backend("cpu")
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            failing_now()
            raise ValueError("boom in backward")


    def boom(*args, **kwargs):
        failing_now()
        raise ValueError(f"boom in {mode}")


    def failing_now():
        with open(sys.argv[2], "w") as file:
            file.write(str(time.time()))


    if comm.rank() == 1:
        if mode == "forward":
            model.register_forward_pre_hook(boom)
        if mode == "hook":
            model.weight.register_hook(boom)
        if mode == "optimizer":
            optimizer.step = boom
    for step in range(3):
        if mode == "killed" and comm.rank() == 1 and step == 1:
            failing_now()
            os.kill(os.getpid(), 9)
        out = model(torch.ones(2, 4))
        if mode == "backward" and comm.rank() == 1:
            out = Broken.apply(out)
        out.sum().backward()
        for parameter in model.parameters():
            comm.all_reduce(parameter.grad)
        optimizer.step()
        if step == 1:
            print("the second step is done", flush=True)
"""


def write(path: Path, source: str) -> str:
    path.write_text(textwrap.dedent(source))
    return str(path)


@pytest.fixture(scope="module")
def collective(tmp_path_factory) -> str:
    return write(tmp_path_factory.mktemp("launch") / "collective.py", COLLECTIVE)


def test_a_script_runs_on_every_rank_with_its_arguments_and_they_meet(tmp_path):
    script = write(
        tmp_path / "job.py",
        """
        import os, sys
        import torch
        import hp_core.comm as comm
        comm.init_backend("cpu")
        total = comm.all_reduce(torch.tensor([comm.rank() + 1.0]))
        print(sys.argv[1:], total.item(), os.environ["LOCAL_WORLD_SIZE"], os.environ["OMP_NUM_THREADS"])
        """,
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [*HP, "-n", "2", script, "-n", "5", "--lr=0.1", "-m"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    threads = max(1, num_cores() // 2)
    assert done.returncode == 0, done.stderr
    said = f"['-n', '5', '--lr=0.1', '-m'] 3.0 2 {threads}"
    assert sorted(done.stdout.splitlines()) == [f"[rank 0] {said}", f"[rank 1] {said}"]
    assert f"hp run: OMP_NUM_THREADS={threads} for each of 2 ranks" in done.stderr


@pytest.mark.parametrize("mode", ["forward", "backward", "hook", "optimizer"])
def test_a_rank_that_raises_while_the_others_wait_ends_the_job_and_is_named_last(collective, mode, capfd, tmp_path):
    failed_at = tmp_path / "failed_at"
    code = launch(LaunchSpec(collective, (mode, str(failed_at)), num_ranks=2))
    assert time.time() - float(failed_at.read_text()) < 10
    last = [line for line in capfd.readouterr().err.splitlines() if line]
    assert code == 1
    assert last[-1] == f"error: rank 1 of 2 failed: ValueError: boom in {mode}"
    assert last[-2] == f"[rank 1] ValueError: boom in {mode}"
    traceback = last[max(n for n, line in enumerate(last) if "Traceback" in line) :]
    assert all(line.startswith("[rank 1] ") for line in traceback[:-1])
    assert any("collective.py" in line for line in traceback)


def test_a_rank_that_is_killed_ends_the_job_within_ten_seconds_and_is_named_last(collective, capfd, tmp_path):
    failed_at = tmp_path / "failed_at"
    code = launch(LaunchSpec(collective, ("killed", str(failed_at)), num_ranks=2))
    assert time.time() - float(failed_at.read_text()) < 10
    out, err = capfd.readouterr()
    assert code == 137
    assert err.splitlines()[-1].startswith("error: rank 1 of 2 was killed by SIGKILL (signal 9): ")
    assert "the second step is done" not in out


def test_all_end_within_ten_seconds_of_the_failure_even_those_that_ignore_sigterm(tmp_path):
    script = write(
        tmp_path / "job.py",
        """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.environ["RANK"] == "1":
            print(time.time(), flush=True)
            raise ValueError("boom")
        time.sleep(600)
        """,
    )
    done = subprocess.run([*HP, "-n", "3", script], capture_output=True, text=True, timeout=120)
    assert time.time() - float(done.stdout.split()[-1]) < 10
    assert done.returncode == 1


def test_the_exit_code_of_a_rank_is_that_of_the_job_and_a_job_starts_again_as_often_as_it_may(tmp_path, capfd):
    script = write(
        tmp_path / "job.py",
        """
        import os, sys
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        print("attempt", attempt)
        if os.environ["RANK"] == "0" and attempt < int(sys.argv[1]):
            sys.exit(3)
        """,
    )
    assert launch(LaunchSpec(script, ("9",), num_ranks=2)) == 3
    assert capfd.readouterr().err.splitlines()[-1] == "error: rank 0 of 2 failed: sys.exit(3)"
    assert launch(LaunchSpec(script, ("1",), num_ranks=2, max_restarts=1)) == 0
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == [f"[rank {rank}] attempt {attempt}" for rank in (0, 1) for attempt in (0, 1)]
    assert "hp run: starting again (0 more left)" in err


def test_a_module_runs_with_its_own_port_and_environment(tmp_path, capfd, monkeypatch):
    (tmp_path / "pack").mkdir()
    write(tmp_path / "pack" / "__init__.py", "")
    write(
        tmp_path / "pack" / "job.py",
        """
        import os, sys
        from . import __name__ as parent
        print(__name__, parent, sys.argv[1:], os.environ["MASTER_PORT"], os.environ["HP_X"])
        """,
    )
    monkeypatch.chdir(tmp_path)
    port = free_port()
    spec = LaunchSpec("pack.job", ("--a",), 1, is_module=True, master_port=port, env={"HP_X": "given"})
    assert launch(spec) == 0
    assert capfd.readouterr().out == f"[rank 0] __main__ pack ['--a'] {port} given\n"


def test_two_hosts_meet_at_an_endpoint(tmp_path):
    source = "import os; print(*(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'GROUP_RANK')))"
    script = write(tmp_path / "job.py", source)
    where = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "job"]
    hosts = [
        subprocess.Popen([*HP, "-n", "2", *where, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [host.communicate(timeout=120) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    lines = sorted(line for out, _ in said for line in out.splitlines())
    assert lines == [f"[rank {rank}] {rank} 4 {rank // 2}" for rank in range(4)]


def test_hosts_of_a_static_rendezvous_have_the_numbers_that_they_are_given(tmp_path):
    source = "import os; print(*(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'GROUP_RANK')))"
    script = write(tmp_path / "job.py", source)
    where = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-backend", "static"]
    hosts = [
        subprocess.Popen(
            [*HP, *where, "--node-rank", node, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for node in ("1", "0")
    ]
    said = [host.communicate(timeout=120) for host in hosts]
    assert [out for out, _ in said] == ["[rank 1] 1 2 1\n", "[rank 0] 0 2 0\n"], said


def test_settings_of_the_rendezvous_reach_it(tmp_path):
    script = write(tmp_path / "job.py", "print('started')")
    where = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-conf", "join_timeout=2"]
    begin = time.monotonic()
    job = subprocess.run([*HP, *where, script], capture_output=True, text=True, timeout=120)
    assert time.monotonic() - begin < 60  # ten minutes, if it did not
    assert job.returncode != 0
    assert job.stdout == ""
    assert "error: the ranks did not meet" in job.stderr.splitlines()[-1]
    assert "Traceback" not in job.stderr


def test_output_that_is_lost_is_a_failure_of_the_job(tmp_path):
    script = write(tmp_path / "job.py", "print('x')")
    with open("/dev/full", "w") as full:
        done = subprocess.run([*HP, script], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    last = "error: the ranks ended well, but output of theirs is lost: [Errno 28] No space left on device"
    assert done.stderr.splitlines()[-1] == last


def test_a_job_within_a_rank_of_a_job_has_its_own_ranks_whatever_the_environment_says(tmp_path):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    inner = write(
        tmp_path / "inner.py",
        f"""
        import os
        print(*(os.environ[name] for name in {names}), os.environ["MASTER_ADDR"] == "nowhere.invalid")
        """,
    )
    outer = write(
        tmp_path / "outer.py",
        f"""
        import os, subprocess, sys
        print(*(os.environ[name] for name in {names}), flush=True)
        sys.exit(subprocess.call([*{HP}, "-n", "2", {inner!r}]))
        """,
    )
    stale = {"RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "5", "MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": "1"}
    environment = {**os.environ, **stale, "TORCHELASTIC_RESTART_COUNT": "4", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*HP, outer], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[rank 0] 0 1 0 1 0",
        "[rank 0] [rank 0] 0 2 0 2 0 False",
        "[rank 0] [rank 1] 1 2 1 2 0 False",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "0", "{script}"], "-n 0: a job needs at least 1 rank"),
        (["-n", "-1", "{script}"], "-n -1: a job needs at least 1 rank"),
        ([""], "the name of the script is empty (''): give the path of a Python file, or -m MODULE"),
        (["-m", " "], "the name of the module is empty (' '): give a module's name after -m"),
        (["nowhere.py"], "script 'nowhere.py' does not exist"),
        (["{folder}"], "is a folder: give the path of a Python file"),
        (["-m", "no_such_module_at_all.x"], "no module named 'no_such_module_at_all'"),
        (["--master-port", "{busy}", "{script}"], "--master-port {busy} is in use: give another"),
        (["--master-port", "70000", "{script}"], "a port is a number from 1 to 65535"),
        (["--rdzv-conf", "join_timeout", "{script}"], "--rdzv-conf join_timeout: give NAME=VALUE"),
        (["--node-rank", "1", "{script}"], "--node-rank 1 is for --rdzv-backend static with an --rdzv-endpoint"),
        (
            ["--nnodes", "2", "--rdzv-endpoint", "h:1", "--rdzv-backend", "static", "{script}"],
            "--rdzv-backend static needs --node-rank, another on each host, from 0 to 1",
        ),
        (["--nnodes", "two", "{script}"], "--nnodes two: give a number of hosts"),
        (["--nnodes", "2", "{script}"], "--nnodes 2 needs --rdzv-endpoint HOST:PORT"),
        (["--master-port", "9", "--rdzv-endpoint", "host:9", "{script}"], "--master-port is for jobs on one host"),
        (["--max-restarts", "-1", "{script}"], "--max-restarts -1: give 0 or more"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_with_the_fix(tmp_path, arguments, message):
    script = write(tmp_path / "job.py", "print('started')")
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        names = {"script": script, "folder": str(tmp_path), "busy": str(taken.getsockname()[1])}
        command = [*HP, *(argument.format(**names) for argument in arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert message.format(**names) in line


def test_a_port_in_use_when_communication_starts_is_one_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        source = f"""
            import os
            os.environ.update(MASTER_PORT="{port}", TORCHELASTIC_USE_AGENT_STORE="False")
            import hp_core.comm as comm
            comm.init_backend("cpu", timeout_s=60)
            """
        script = write(tmp_path / "job.py", source)
        job = subprocess.run([*HP, "-n", "2", script], capture_output=True, text=True, timeout=60)
    assert job.returncode == 1
    assert "Traceback" not in job.stderr
    expected = (
        f"error: rank 0 of 2 failed: rank 0: address already in use: the job's store cannot listen at port {port}; "
    )
    assert job.stderr.splitlines()[-1].startswith(expected), job.stderr


def test_without_torch_the_error_says_what_to_install(tmp_path):
    script = write(tmp_path / "job.py", "print('started')")
    hidden = "import sys; sys.modules['torch'] = None; from hp_core.cli import main; main()"
    command = [sys.executable, "-c", hidden, "run", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == (
        "error: hp run needs torch: pip install 'hp-core[torch]'; start ranks of MindSpore without it, each with RANK, "
        "WORLD_SIZE, MASTER_ADDR and MASTER_PORT set\n"
    )


def test_a_rendezvous_that_cannot_be_reached_is_an_error_for_users(tmp_path):
    script = write(tmp_path / "job.py", "print('started')")
    with pytest.raises(LaunchError, match="--rdzv-backend nonsense"):
        launch(LaunchSpec(script, num_nodes="2", rdzv_backend="nonsense", rdzv_endpoint="127.0.0.1:1"))
