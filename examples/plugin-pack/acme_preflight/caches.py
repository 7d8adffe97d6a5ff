"""Where the ranks keep their caches."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.plugin import Job, Severity, Unresolved, Verdict, failed, passed, rule, unknown

CACHES = ("HF_HOME", "HF_DATASETS_CACHE", "TORCH_HOME", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")


@rule(
    "ACM101",
    "cache-on-home-folder",
    severity=Severity.WARNING,
    otherwise="no file sets the folder of a cache",
    evidence=(("Acme's wiki, page on storage", "https://wiki.example.org/training/storage"),),
)
def cache_on_home_folder(job: Job) -> Iterator[Verdict]:
    """A cache of the ranks is in a home folder.

    What it checks: The folders of Hugging Face's, torch's and Triton's caches, as the job's files set them, are not
    below /home.

    Why it matters: Home folders are on one small server. A few hundred ranks that open their caches there block it for
    all users.

    Example: `export HF_HOME=/home/anna/.cache`.

    Fix: Use /scratch.

    Known limits: A cache that no file sets is in a home folder, too, and is not reported.
    """
    for launch in job.launches:
        for name in CACHES:
            for claim in job.setting(f"env.{name}", launch.scope):
                folders = [str(folder) for folder in claim.alternatives]
                if isinstance(claim.value, Unresolved):
                    yield unknown(launch.id, f"{name} depends on {claim.value.why}", at=claim)
                elif all(folder.startswith("/home/") for folder in folders):
                    yield failed(
                        launch.id,
                        f"`{claim.spelling}`: every rank opens its cache on the server of the home folders.",
                        at=claim,
                        remedy=f"Write {name}=/scratch/$USER/cache.",
                    )
                else:
                    yield passed(launch.id)
