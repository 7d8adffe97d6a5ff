"""The checks that come with preflight: what a job requires of its nodes, judged from facts about the nodes.

A check is a function under `@check`, or under a decorator based on it such as `@gpu_check`, in any module of this
package. `PACK` finds the modules by their file names and imports none of them.
"""

from __future__ import annotations

from pathlib import Path

from preflight._util import toml
from preflight.plugins.pack import Pack, modules

#: Packages and modules that serve one stage only, so that a run without this stage does not load them.
_STAGES = {
    "preflight_checks.links": "link",
    "preflight_checks.charts.link_matrices": "link",
    "preflight_checks.smoke": "smoke",
    "preflight_checks.charts.rank_timelines": "smoke",
}

#: The symptom tables that `preflight diagnose` matches logs against, in order of precedence.
_SYMPTOMS = tuple(
    f"data/symptoms/{name}.toml"
    for name in (
        *("runs", "completions", "accelerators", "clusters", "hangs", "nccl", "memory", "gpu", "meeting", "gloo"),
        *("programs", "schedulers", "mpi", "paddle", "fatal", "endings"),
    )
)

#: The items that `preflight doctor` examines on its own machine.
_DOCTOR = ("preflight_checks.doctor:frameworks", "preflight_checks.doctor:gpus", "preflight_checks.doctor:tools")

#: Every function that makes charts of the measurements, in the order in which a report shows them.
_CHARTS = (
    "preflight_checks.charts.node_tables:nodes",
    "preflight_checks.charts.node_tables:versions",
    "preflight_checks.charts.link_matrices:links",
    "preflight_checks.charts.rank_timelines:steps",
    "preflight_checks.charts.rank_timelines:step_times",
    "preflight_checks.charts.rank_timelines:stragglers",
    "preflight_checks.charts.server_bars:placement",
    "preflight_checks.charts.server_bars:holdings",
    "preflight_checks.charts.server_bars:traffic",
)

#: Every function that reads what a run measured, for comparison with other runs.
_MEASUREMENTS = (
    "preflight_checks.charts.node_tables:measure_nodes",
    "preflight_checks.charts.link_matrices:measure_links",
    "preflight_checks.charts.rank_timelines:measure_ranks",
)

PACK = Pack(
    items=modules(__name__, str(Path(__file__).parent), without="probes"),
    areas=toml.beside(__file__, "data/areas.toml"),
    stages=_STAGES,
    symptoms=_SYMPTOMS,
    charts=_CHARTS,
    doctor=_DOCTOR,
    properties=("preflight_checks.host.requirements:properties",),
    measurements=_MEASUREMENTS,
)
