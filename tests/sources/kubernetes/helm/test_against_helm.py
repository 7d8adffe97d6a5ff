"""The same templates rendered by Helm's own code, if its Python binding (helm-python-sdk) is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.sources.formats.tree import DirectoryTree
from preflight.sources.kubernetes.helm.chart import Chart
from tests.sources.kubernetes.helm.test_chart import CASES, FILES, chart_files

helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed; `make test-all` does it")


def _by_helm(folder: Path) -> dict[str, str]:
    with helm.Chart.load(str(folder)) as chart:
        found: dict[str, str] = chart.render({}, name="release-name", namespace="default")
        return found


def _written(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(("template", "expected"), CASES)
def test_helm_prints_the_same(template: str, expected: str, tmp_path: Path) -> None:
    _written(tmp_path, chart_files(template))
    assert _by_helm(tmp_path / "c")["c/templates/t.yaml"] == expected


def test_helm_renders_a_chart_of_a_job_the_same(tmp_path: Path) -> None:
    _written(tmp_path, {name: text for name, text in FILES.items() if not name.endswith("README.md")})
    rendered = _by_helm(tmp_path / "chart")
    chart = Chart("chart", DirectoryTree(tmp_path), blanks=True)
    for path in chart.templates:
        ours = chart.render(path)
        assert ours is not None
        theirs = next(text for name, text in rendered.items() if path.endswith(name.partition("/")[2]))
        assert "".join(piece.text for piece in ours.pieces) == theirs
