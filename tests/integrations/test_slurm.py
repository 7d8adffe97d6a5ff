"""The integrations for Slurm's administrators and users, tested with real daemons on virtual nodes."""

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
from tests.processes import is_gone

pytestmark = pytest.mark.thorough


ROOT = Path(__file__).resolve().parents[2]


FOLDER = ROOT / "integrations" / "slurm"


PATHS = os.pathsep.join(str(path) for path in (ROOT, ROOT / "checks", ROOT / "rules"))


#: preflight as a command: it is not installed on the nodes.
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


#: A requirement on every node: a site check, here of a folder.
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
    """Write a file of the node."""
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
            put(node, "/srv/health-check", (FOLDER / "health-check").read_text(), 0o755)
        submit(cluster.head, "tell")
        with slurm(cluster, extra=("JobSubmitPlugins=lua", "Prolog=/srv/prolog")) as started:
            yield started


def submit(head: Node, mode: str, command: str = "/srv/preflight") -> None:
    """Install the plugin, with edited first lines as at a site."""
    text = (FOLDER / "job_submit.lua").read_text()
    for name, value in (("MODE", mode), ("COMMAND", command), ("SPOOL", "/run/spool")):
        assert f'os.getenv("PREFLIGHT_SUBMIT_{name}")' in text
        text = text.replace(f'os.getenv("PREFLIGHT_SUBMIT_{name}")', f'"{value}"')
    # A deadline that a busy machine also keeps.
    text = text.replace("local DEADLINE_S = 2", f"local DEADLINE_S = {1 if 'slow' in command else 8}")
    head.path("/run/spool").mkdir(exist_ok=True)
    put(head, "/etc/slurm/job_submit.lua", text)
    # slurmctld reloads it if its modification time differs, in whole seconds.
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
    """Slurm with a plugin that accepts every job."""
    put(running.cluster.head, "/etc/slurm/job_submit.lua", PLAIN)
    later = time.time() + next(_LATER)
    os.utime(running.cluster.head.path("/etc/slurm/job_submit.lua"), (later, later))
    return running


PLAIN = """\
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""


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
        # The two commands of the documentation, unchanged.
        (GOOD, ("sh", "-c", "preflight lint job.sbatch && sbatch job.sbatch"), True, 0),
        (BROKEN, ("sh", "-c", "preflight lint job.sbatch && sbatch job.sbatch"), False, 1),
    ],
)
def test_submitted_script(plain: Slurm, text: str, words: tuple[str, ...], submitted: bool, code: int) -> None:
    done = sbatch(plain, text, *words)
    assert (("Submitted batch job" in done.stdout), done.returncode) == (submitted, code), done.stderr


def test_nodes_are_checked_before_a_job_is_submitted(plain: Slurm) -> None:
    look = "preflight check job.sbatch --on slurm --trust-job --until node --select NOD,ALC,WLD"
    done = sbatch(plain, GOOD, "sh", "-c", f"{look} && sbatch job.sbatch")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 nodes" in done.stdout + done.stderr and "Submitted batch job" in done.stdout


# --- the plugin ---


def test_plugin_warns_the_user_and_accepts_the_job(running: Slurm) -> None:
    submit(running.cluster.head, "tell")
    done = sbatch(running, BROKEN)
    assert done.returncode == 0 and "Submitted batch job" in done.stdout
    assert "WLD001" in done.stderr
    assert re.search(r"your script:\d+", done.stderr) and not re.search(r"\d+-\d+\.sbatch", done.stderr)
    assert not list(running.cluster.head.path("/run/spool").iterdir())
    assert "WLD001" not in sbatch(running, GOOD).stderr


def test_plugin_rejects_jobs_if_configured(running: Slurm) -> None:
    submit(running.cluster.head, "refuse")
    done = sbatch(running, BROKEN)
    assert done.returncode != 0 and "WLD001" in done.stderr and not done.stdout
    assert "Submitted" in sbatch(running, GOOD).stdout


def test_the_plugin_spools_and_starts_nothing(running: Slurm) -> None:
    submit(running.cluster.head, "spool", "/no/such/preflight")
    assert "Submitted" in sbatch(running, BROKEN).stdout
    (spooled,) = running.cluster.head.path("/run/spool").iterdir()
    assert spooled.suffix == ".sbatch" and "--nnodes=8" in spooled.read_text()
    spooled.unlink()


@pytest.mark.parametrize("command", ["/no/such/preflight", "/srv/slow", "/srv/crash"])
def test_plugin_failure_never_blocks_a_job(running: Slurm, command: str) -> None:
    head = running.cluster.head
    put(head, "/srv/slow", "#!/bin/sh\nexec sleep 3600\n", 0o755)
    put(head, "/srv/crash", "#!/bin/sh\necho Traceback\nexit 5\n", 0o755)
    submit(head, "refuse", command)
    assert "Submitted" in sbatch(running, BROKEN).stdout


def test_plugin_accepts_jobs_when_the_spool_is_full(running: Slurm) -> None:
    submit(running.cluster.head, "refuse")
    running.cluster.head.path("/run/spool").rename(running.cluster.head.path("/run/away"))
    assert "Submitted" in sbatch(running, BROKEN).stdout


# --- the prolog, under slurmd ---


@pytest.mark.parametrize(
    ("path", "drain", "state"), [("/usr", "yes", "idle"), ("/no/such", "no", "idle"), ("/no/such", "yes", "drained")]
)
def test_slurm_drains_a_node_only_if_configured(plain: Slurm, path: str, drain: str, state: str) -> None:
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


# --- the health check ---


def health_check(plain: Slurm, options: str, drain: str = "yes") -> str:
    """Run the program on node1 as slurmd does; its log. A test of slurmd's own timer would wait for minutes."""
    node = plain.cluster.node("node1")
    log = node.path("/run/health.log")
    log.unlink(missing_ok=True)
    conf = f"PREFLIGHT=/srv/preflight PREFLIGHT_LOG=/run/health.log PREFLIGHT_OPTIONS='{options}'\n"
    put(node, "/etc/preflight/health-check.conf", f"{conf}PREFLIGHT_DRAIN={drain}\n")
    done = node.run(["/srv/health-check"], env={"SLURMD_NODENAME": "node1"}, timeout=60)
    assert done.returncode == 0, done.stderr
    return log.read_text()


def test_the_health_check_drains_and_resumes(plain: Slurm) -> None:
    try:
        assert "node1: preflight ended with 1" in health_check(plain, "--expect cpus=100000", "no")
        assert plain.states()["node1"].startswith("idle")
        health_check(plain, "--expect cpus=100000")
        assert plain.states()["node1"].startswith("drain")
        shown = plain.control("show", "node", "node1", "--oneliner")
        assert "Reason=preflight: error[NOD005] cpus of node1 is" in shown
        # Nothing but a go resumes it.
        assert "node1: preflight ended with 3" in health_check(plain, "--golden other")
        assert plain.states()["node1"].startswith("drain")
        assert "node1: preflight ended with 0" in health_check(plain, "--expect cpus>=1")
        assert plain.states()["node1"].startswith("idle")
    finally:
        plain.cluster.head.run(["scontrol", "update", "nodename=node1", "state=resume"])
        plain.idle()


def test_the_health_check_leaves_a_drain_of_an_administrator(plain: Slurm) -> None:
    with plain.drained(plain.cluster.node("node1")):
        health_check(plain, "--expect cpus>=1")
        assert plain.states()["node1"].startswith("drain")
        health_check(plain, "--expect cpus=100000")
        assert "Reason=bad cable" in plain.control("show", "node", "node1", "--oneliner")
    plain.idle()


def test_the_health_check_changes_nothing_without_the_controller(plain: Slurm) -> None:
    node = plain.cluster.node("node1")
    put(node, "/srv/silent/scontrol", "#!/bin/sh\n[ $1 = show ] && exit 1\ntouch /run/updated\n", 0o755)
    put(node, "/srv/check-in-silence", "#!/bin/sh\nPATH=/srv/silent:$PATH exec /srv/health-check\n", 0o755)
    conf = "PREFLIGHT=/srv/preflight PREFLIGHT_LOG=/run/health.log PREFLIGHT_OPTIONS='--expect cpus=100000'\n"
    put(node, "/etc/preflight/health-check.conf", f"{conf}PREFLIGHT_DRAIN=yes\n")
    done = node.run(["/srv/check-in-silence"], env={"SLURMD_NODENAME": "node1"}, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "node1: preflight ended with 1" in node.path("/run/health.log").read_text()
    assert not node.path("/run/updated").exists()


# --- the prolog alone: it always ends with 0 and in time ---


def prolog(folder: Path, conf: str, preflight: str = "#!/bin/sh\nexit 1\n", **more: str) -> tuple[int, str, float]:
    """Exit code, log and duration of the prolog in slurmd's environment."""
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


def test_no_go_drains_if_configured(tmp_path: Path) -> None:
    code, log, _ = prolog(tmp_path, "", '#!/bin/sh\necho "seen: $*"\nexit 1\n')
    assert code == 1
    assert f"seen: nodes --on local --hosts {os.uname().nodename} --until node" in log
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
def test_hanging_preflight_is_killed_and_the_job_starts(tmp_path: Path, limit: str) -> None:
    hang = f"#!/bin/sh\necho $$ > {tmp_path / 'pid'}\ntrap '' TERM INT HUP\nsleep {30 if limit == '1' else 0.2}\n"
    code, _, took = prolog(tmp_path, "", hang, PREFLIGHT_LIMIT_S=limit)
    assert code == 0 and took < 8
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: is_gone(pid), 5, "it to be gone")


def test_a_user_cannot_reach_the_shell_through_the_plugin() -> None:
    text = (FOLDER / "job_submit.lua").read_text()
    (line,) = [line for line in text.splitlines() if "io.popen(" in line]
    assert "popen(line)" in line
    made = text[text.index("local line = string.format(") : text.index("local pipe")]
    assert "script" not in made and "job_desc" not in made


# The script that lints the scripts spooled at submission.


SPOOL = ROOT / "integrations" / "slurm" / "spool"


SPOOL_JOB = """\
#!/bin/bash
#SBATCH --nodes=2
srun torchrun --nnodes=NODES --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=n1:29500 train.py
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A spool folder, and preflight on the path."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "preflight").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m preflight "$@"\n')
    (tmp_path / "bin" / "preflight").chmod(0o755)
    (tmp_path / "spool").mkdir()
    return tmp_path


def run(folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the script once."""
    paths = os.pathsep.join(str(path) for path in (ROOT, ROOT / "checks", ROOT / "rules"))
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "PYTHONPATH": paths, **more}
    words = [str(SPOOL), str(folder / "spool"), str(folder / "log")]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_faults_are_logged_and_the_spool_is_emptied(folder: Path) -> None:
    (folder / "spool" / "1-1.sbatch").write_text(SPOOL_JOB.replace("NODES", "8"))
    (folder / "spool" / "1-2.sbatch").write_text(SPOOL_JOB.replace("NODES", "2"))
    (folder / "spool" / "1-3.sbatch").write_text("#!/bin/bash\nhostname\n")
    (folder / "spool" / "1-4.sbatch.part").write_text("#!/bin/ba")
    assert run(folder).returncode == 0
    log = (folder / "log").read_text()
    assert "1-1.sbatch: exit code 1" in log and "WLD001" in log
    assert "1-2.sbatch" not in log and "1-3.sbatch" not in log
    assert [path.name for path in (folder / "spool").iterdir()] == ["1-4.sbatch.part"]


def test_preflight_failure_is_logged(folder: Path) -> None:
    (folder / "spool" / "1-1.sbatch").write_text(SPOOL_JOB)
    assert run(folder, PREFLIGHT_LINT="false").returncode == 0
    assert "1-1.sbatch: exit code 1" in (folder / "log").read_text()


def test_missing_folder_is_reported(folder: Path) -> None:
    (folder / "spool").rmdir()
    done = run(folder)
    assert done.returncode == 2 and "an existing folder" in done.stderr
