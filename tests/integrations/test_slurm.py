"""What is given to Slurm's administrators and users, with Slurm's own daemons on virtual nodes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.fixtures import require_virtual_nodes
from tests.cluster.node import Node, wait_until
from tests.cluster.slurm import Slurm, require_slurm, slurm

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "integrations" / "slurm"
PATHS = os.pathsep.join(str(path) for path in (ROOT, ROOT / "checks", ROOT / "rules"))
#: preflight as a command: it is installed in no folder of the nodes.
COMMAND = f'#!/bin/sh\nPYTHONPATH={PATHS} exec {sys.executable} -m preflight "$@"\n'
JOB = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --chdir=/
#SBATCH --output=/dev/null
#SBATCH --time=5
touch /run/ran-$SLURM_JOB_ID
srun torchrun --nnodes=NODES --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=$(hostname):29500 train.py
"""
GOOD, BROKEN = JOB.replace("NODES", "2"), JOB.replace("NODES", "8")
#: What every node has to be, for the prolog: a job of one node, and a site's own check, here of a folder.
NODE = "#!/bin/bash\n#SBATCH --nodes=1\ntorchrun --nproc_per_node=1 train.py\n"
CHECK = """\
[[check]]
id = "ACM201"
name = "folder-missing"
command = ["test", "-d", "PATH"]
severity = "error"
message = "The folder is not there."
remedy = "Mount it."
evidence = "https://wiki.example.org/training/storage"
"""


def put(node: Node, inside: str, text: str, mode: int = 0o644) -> None:
    """A file of the node's own."""
    node.write_text(inside, text)
    node.path(inside).chmod(mode)


@pytest.fixture(scope="module")
def running() -> Iterator[Slurm]:
    """Slurm over two nodes, with the prolog and the plugin in place, and preflight as /srv/preflight."""
    require_virtual_nodes()
    require_slurm()
    with Cluster(2) as cluster:
        for node in (cluster.head, *cluster.nodes):
            put(node, "/srv/preflight", COMMAND, 0o755)
            put(node, "/srv/prolog", (FOLDER / "prolog").read_text(), 0o755)
            put(node, "/etc/preflight/node.sbatch", NODE)
            put(node, "/etc/preflight/train.py", "import argparse\n")
        submit(cluster.head, "tell")
        with slurm(cluster, extra=("JobSubmitPlugins=lua", "Prolog=/srv/prolog")) as started:
            yield started


def submit(head: Node, mode: str, command: str = "/srv/preflight") -> None:
    """Put the plugin in place, as a site would that edits its first lines."""
    text = (FOLDER / "job_submit.lua").read_text()
    for name, value in (("MODE", mode), ("COMMAND", command), ("SPOOL", "/run/spool")):
        assert f'os.getenv("PREFLIGHT_SUBMIT_{name}")' in text
        text = text.replace(f'os.getenv("PREFLIGHT_SUBMIT_{name}")', f'"{value}"')
    # A deadline that a machine with much else to do keeps, too.
    text = text.replace("local DEADLINE_S = 2", f"local DEADLINE_S = {1 if 'slow' in command else 8}")
    head.path("/run/spool").mkdir(exist_ok=True)
    put(head, "/etc/slurm/job_submit.lua", text)
    # slurmctld reads it again when its time is another, in whole seconds.
    later = time.time() + next(_LATER)
    os.utime(head.path("/etc/slurm/job_submit.lua"), (later, later))


_LATER = iter(range(10, 10_000, 10))


def sbatch(running: Slurm, text: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Submit a script from the head; jobs are cancelled at once."""
    head = running.cluster.head
    put(head, "/srv/job/job.sbatch", text)
    put(head, "/srv/job/train.py", "import argparse\n")
    words = command or ("sbatch", "job.sbatch")
    environment = {"PATH": f"{FOLDER}:/srv:/usr/sbin:/usr/bin:/sbin:/bin"}
    done = head.run(list(words), cwd="/srv/job", env=environment, timeout=60)
    for job in running.jobs():
        head.run(["scancel", job])
    return done


# --- psbatch ---


@pytest.fixture
def plain(running: Slurm) -> Slurm:
    """Slurm with a plugin that takes every job."""
    put(running.cluster.head, "/etc/slurm/job_submit.lua", PLAIN)
    later = time.time() + next(_LATER)
    os.utime(running.cluster.head.path("/etc/slurm/job_submit.lua"), (later, later))
    return running


PLAIN = """\
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("text", "words", "submitted", "code"),
    [
        (GOOD, ("psbatch", "--job-name=x", "job.sbatch", "argument"), True, 0),
        (BROKEN, ("psbatch", "job.sbatch"), False, 1),
        ("#!/bin/bash\nsleep 1\n", ("psbatch", "-N1", "job.sbatch"), True, 0),
        (GOOD, ("psbatch", "--nodes", "2", "job.sbatch"), False, 2),
        (GOOD, ("psbatch",), False, 2),
        (BROKEN, ("env", "PSBATCH_PREFLIGHT=/no/such/preflight", "psbatch", "job.sbatch"), True, 0),
        (BROKEN, ("env", "PSBATCH_PREFLIGHT=preflight lint --ignore WLD", "psbatch", "job.sbatch"), True, 0),
        # The two commands of the documentation, as they stand there.
        (GOOD, ("sh", "-c", "preflight lint job.sbatch && sbatch job.sbatch"), True, 0),
        (BROKEN, ("sh", "-c", "preflight lint job.sbatch && sbatch job.sbatch"), False, 1),
    ],
)
def test_what_is_submitted(plain: Slurm, text: str, words: tuple[str, ...], submitted: bool, code: int) -> None:
    done = sbatch(plain, text, *words)
    assert (("Submitted batch job" in done.stdout), done.returncode) == (submitted, code), done.stderr


@pytest.mark.cluster
def test_nodes_are_looked_at_before_a_job_is_submitted(plain: Slurm) -> None:
    look = "preflight check job.sbatch --on slurm --trust-job --until node --select NOD,ALC,WLD"
    done = sbatch(plain, GOOD, "sh", "-c", f"{look} && sbatch job.sbatch")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 nodes" in done.stdout + done.stderr and "Submitted batch job" in done.stdout


# --- the plugin ---


@pytest.mark.cluster
def test_the_plugin_tells_the_user_and_takes_the_job(running: Slurm) -> None:
    submit(running.cluster.head, "tell")
    done = sbatch(running, BROKEN)
    assert done.returncode == 0 and "Submitted batch job" in done.stdout
    assert "WLD001" in done.stderr
    assert re.search(r"your script:\d+", done.stderr) and not re.search(r"\d+-\d+\.sbatch", done.stderr)
    assert not list(running.cluster.head.path("/run/spool").iterdir())
    assert "WLD001" not in sbatch(running, GOOD).stderr


@pytest.mark.cluster
def test_the_plugin_refuses_where_it_is_told_to(running: Slurm) -> None:
    submit(running.cluster.head, "refuse")
    done = sbatch(running, BROKEN)
    assert done.returncode != 0 and "WLD001" in done.stderr and not done.stdout
    assert "Submitted" in sbatch(running, GOOD).stdout


@pytest.mark.cluster
def test_the_plugin_spools_and_starts_nothing(running: Slurm) -> None:
    submit(running.cluster.head, "spool", "/no/such/preflight")
    assert "Submitted" in sbatch(running, BROKEN).stdout
    (spooled,) = running.cluster.head.path("/run/spool").iterdir()
    assert spooled.suffix == ".sbatch" and "--nnodes=8" in spooled.read_text()
    spooled.unlink()


@pytest.mark.cluster
@pytest.mark.parametrize("command", ["/no/such/preflight", "/srv/slow", "/srv/crash"])
def test_the_plugin_never_stands_in_the_way(running: Slurm, command: str) -> None:
    head = running.cluster.head
    put(head, "/srv/slow", "#!/bin/sh\nexec sleep 60\n", 0o755)
    put(head, "/srv/crash", "#!/bin/sh\necho Traceback\nexit 5\n", 0o755)
    submit(head, "refuse", command)
    began = time.monotonic()
    assert "Submitted" in sbatch(running, BROKEN).stdout
    assert time.monotonic() - began < 20


@pytest.mark.cluster
def test_the_plugin_takes_jobs_when_there_is_no_room(running: Slurm) -> None:
    submit(running.cluster.head, "refuse")
    running.cluster.head.path("/run/spool").rename(running.cluster.head.path("/run/away"))
    assert "Submitted" in sbatch(running, BROKEN).stdout


# --- the prolog, under slurmd ---


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("path", "drain", "state"), [("/usr", "yes", "idle"), ("/no/such", "no", "idle"), ("/no/such", "yes", "drained")]
)
def test_slurm_drains_a_node_only_where_that_is_asked_for(plain: Slurm, path: str, drain: str, state: str) -> None:
    node = plain.cluster.node("node1")
    put(node, "/etc/preflight/node.toml", CHECK.replace("PATH", path))
    log = node.path("/run/prolog.log")
    log.unlink(missing_ok=True)
    options = "--site-rules /etc/preflight/node.toml --select ACM,NOD"
    conf = f"PREFLIGHT=/srv/preflight PREFLIGHT_LOG=/run/prolog.log PREFLIGHT_OPTIONS='{options}'\n"
    put(node, "/etc/preflight/prolog.conf", f"{conf}PREFLIGHT_DRAIN={drain}\n")
    try:
        plain.cluster.head.run(["srun", "--nodelist=node1", "--immediate=20", "true"], timeout=40)
        wait_until(lambda: log.exists() and "preflight ended with" in log.read_text(), 20, "the prolog's log")
        expected = 0 if path == "/usr" else 1
        assert f"preflight ended with {expected}" in log.read_text(), log.read_text()
        wait_until(lambda: plain.states()["node1"].startswith(state), 20, f"node1 to be {state}")
    finally:
        put(node, "/etc/preflight/prolog.conf", "PREFLIGHT=true PREFLIGHT_LOG=/dev/null\n")
        plain.cluster.head.run(["scancel", "--user=root"])
        plain.cluster.head.run(["scontrol", "update", "nodename=node1", "state=resume"])
        plain.idle()


# --- the prolog by itself: whatever is wrong, it ends with 0 and in time ---


def prolog(folder: Path, conf: str, preflight: str = "#!/bin/sh\nexit 1\n", **more: str) -> tuple[int, str, float]:
    """Exit code, log, and seconds taken of the prolog in the environment that slurmd gives."""
    command = folder / "preflight"
    command.write_text(preflight)
    command.chmod(0o755)
    settings = f"PREFLIGHT={command} PREFLIGHT_LOG={folder / 'log'} PREFLIGHT_DRAIN=yes\n{conf}"
    (folder / "conf").write_text(settings)
    environment = {"PREFLIGHT_CONF": str(folder / "conf"), "SLURM_JOB_ID": "7", "PREFLIGHT_LIMIT_S": "10", **more}
    began = time.monotonic()
    done = subprocess.run(
        ["/bin/sh", str(FOLDER / "prolog")], env=environment, capture_output=True, timeout=30, check=False
    )
    assert done.stdout == b""
    log = folder / "log"
    return done.returncode, log.read_text() if log.exists() else "", time.monotonic() - began


def test_a_no_go_drains_where_that_is_asked_for(tmp_path: Path) -> None:
    code, log, _ = prolog(tmp_path, "", '#!/bin/sh\necho "seen: $*"\nexit 1\n')
    assert code == 1
    assert "seen: check --on local --hosts localhost --until node" in log
    assert "job 7: preflight ended with 1" in log


@pytest.mark.parametrize(
    ("conf", "preflight"),
    [
        ("PREFLIGHT_DRAIN=no", "#!/bin/sh\nexit 1\n"),
        ("", "#!/bin/sh\nexit 0\n"),
        ("", "#!/bin/sh\nexit 2\n"),
        ("", "#!/bin/sh\nexit 3\n"),
        ("", "#!/bin/sh\nexit 5\n"),
        ("", "#!/bin/sh\nkill -SEGV $$\n"),
        ("", "#!/no/such/interpreter\n"),
        ("PREFLIGHT=/no/such/preflight", ""),
        ("PREFLIGHT_LOG=/no/such/folder/log", "#!/bin/sh\nexit 1\n"),
        ("exit 1", ""),
        ("if then (", ""),
        ("kill -9 $$", ""),
    ],
)
def test_nothing_else_drains(tmp_path: Path, conf: str, preflight: str) -> None:
    code, _, _ = prolog(tmp_path, conf, preflight)
    assert code == 0


@pytest.mark.parametrize("limit", ["1", "nonsense; exit 1"])
def test_a_preflight_that_hangs_is_ended_and_the_job_starts(tmp_path: Path, limit: str) -> None:
    hang = f"#!/bin/sh\necho $$ > {tmp_path / 'pid'}\ntrap '' TERM INT HUP\nsleep {30 if limit == '1' else 0.2}\n"
    code, _, took = prolog(tmp_path, "", hang, PREFLIGHT_LIMIT_S=limit)
    assert code == 0 and took < 8
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or _is_over(pid), 5, "it to be gone")


def _is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_user_cannot_reach_the_shell_through_the_plugin() -> None:
    text = (FOLDER / "job_submit.lua").read_text()
    (line,) = [line for line in text.splitlines() if "io.popen(" in line]
    assert "popen(line)" in line
    made = text[text.index("local line = string.format(") : text.index("local pipe")]
    assert "script" not in made and "job_desc" not in made
