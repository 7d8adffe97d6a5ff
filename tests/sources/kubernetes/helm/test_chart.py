"""A chart of a job: its launcher comes from a ConfigMap, its numbers from values and the installing command."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, NoteKind, Unresolved
from preflight.sources.base import Reading, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.kubernetes.helm.chart import Chart, chart_folder, commands_in, convert_setting
from preflight.sources.kubernetes.workloads import KubernetesSource

VALUES = """\
replicas: 1
gpus: 32
perNode: 8
queue: null
launcher: ""
env:
  - name: NCCL_DEBUG
    value: WARN
"""
JOB = """\
{{- $nodes := div .Values.gpus .Values.perNode | max 1 }}
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {{ include "chart.name" . }}
  {{- with .Values.queue }}
  labels:
    kueue.x-k8s.io/queue-name: {{ . | quote }}
  {{- end }}
spec:
  replicatedJobs:
    - name: workers
      replicas: 1
      template:
        spec:
          parallelism: {{ $nodes }}
          completions: {{ $nodes }}
          template:
            spec:
              volumes:
                - name: scripts
                  configMap:
                    name: "{{ .Release.Name }}-scripts"
              containers:
                - name: train
                  image: example/train:1
                  command: [bash, -c]
                  args:
                    - |
                      echo ready
                      bash /scripts/launch.sh {{ range .Values.extra }}{{ . }} {{ end }}
                  env:
                    - name: NODES
                      value: "{{ $nodes }}"
                    {{- toYaml .Values.env | nindent 20 }}
                  volumeMounts:
                    - name: scripts
                      mountPath: /scripts
                  resources:
                    limits:
                      nvidia.com/gpu: {{ .Values.perNode }}
"""
SCRIPTS = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: "{{ .Release.Name }}-scripts"
data:
  launch.sh: |-
{{- if .Values.launcher }}
{{ .Values.launcher | nindent 4 }}
{{- else }}
    echo "no launcher" && exit 1
{{- end }}
"""
README = """\
# Train

```bash
helm install my-train . -f values.yaml \\
  --set-file launcher=launch.sh \\
  --set queue=${QUEUE} \\
  --set extra[0]=--epochs=3
```
"""
LAUNCH = """\
#!/bin/bash
export OMP_NUM_THREADS=8
torchrun --nnodes="${NODES}" --nproc-per-node=8 \\
  --node-rank="${JOB_COMPLETION_INDEX}" train.py "$@"
"""
FILES = {
    "chart/Chart.yaml": "apiVersion: v2\nname: chart\nversion: 1.0.0\n",
    "chart/values.yaml": VALUES,
    "chart/README.md": README,
    "chart/launch.sh": LAUNCH,
    "chart/templates/_names.tpl": '{{ define "chart.name" }}{{ .Release.Name | trunc 20 }}-job{{ end }}',
    "chart/templates/job.yaml": JOB,
    "chart/templates/scripts.yaml": SCRIPTS,
}


def _read(files: dict[str, str], path: str = "chart/templates/job.yaml") -> Reading:
    file = SourceFile(path, files[path], "", len(files[path]))
    assert KubernetesSource().recognises(file)
    return KubernetesSource().read(file, MemoryTree(files))


def test_a_launch_is_found_in_the_mounted_script() -> None:
    reading = _read(FILES)
    (launch,) = reading.launches
    assert (launch.id, launch.launcher, launch.arguments) == ("chart/launch.sh:3", "torchrun", ("--epochs=3",))
    said = {c.quantity: c for c in reading.claims if c.scope == launch.scope and c.source == "torchrun"}
    assert said["nodes"].value == Known(4)
    assert (said["processes_per_node"].span.path, said["processes_per_node"].span.line) == ("chart/launch.sh", 3)
    assert [(item.target, item.role) for item in reading.references if item.target == "chart/launch.sh"]


def test_claims_point_to_the_template_and_the_values() -> None:
    reading = _read(FILES)
    (gpus,) = [claim for claim in reading.claims if claim.quantity == "pod_gpus"]
    assert gpus.value == Known(8)
    assert (gpus.span.path, gpus.span.line) == ("chart/templates/job.yaml", 41)
    assert gpus.origin is not None
    assert (gpus.origin.path, gpus.origin.line) == ("chart/values.yaml", 3)
    (pods,) = [claim for claim in reading.claims if claim.quantity == "pod_replicas"]
    assert (pods.value, pods.span.line) == (Known(4), 16)
    debug = next(claim for claim in reading.claims if claim.quantity == "env.NCCL_DEBUG")
    assert (debug.span.path, debug.span.line) == ("chart/values.yaml", 8)


def test_without_the_command_the_values_of_the_chart_decide() -> None:
    files = {name: text for name, text in FILES.items() if not name.endswith("README.md")}
    reading = _read(files)
    assert reading.launches == ()
    (pods,) = [claim for claim in reading.claims if claim.quantity == "pod_replicas"] or [None]
    assert pods is None or pods.value == Known(4)


def test_a_value_that_only_the_command_line_sets_is_unresolved() -> None:
    files = {**FILES, "chart/README.md": README.replace("--set queue=${QUEUE}", "--set gpus=$GPUS")}
    reading = _read(files)
    pods = next(claim for claim in reading.claims if claim.quantity == "pod_replicas")
    assert isinstance(pods.value, Unresolved)


def test_a_damaged_template_is_read_with_unresolved_placeholders() -> None:
    files = {**FILES, "chart/templates/job.yaml": JOB.replace("{{- $nodes := div", "{{- $nodes := (div")}
    reading = _read(files)
    assert any(note.kind is NoteKind.MALFORMED and note.span.line == 1 for note in reading.notes)


def test_a_damaged_values_file_does_not_raise() -> None:
    assert _read({**FILES, "chart/values.yaml": "a: [1\nb: }\n"}).claims is not None
    assert _read({**FILES, "chart/values.yaml": ""}).claims is not None


def test_values_of_an_outer_chart_win() -> None:
    inner = {name.replace("chart/", "all/charts/chart/"): text for name, text in FILES.items()}
    outer = {"all/Chart.yaml": "name: all\nversion: 1.0.0\n", "all/values.yaml": "chart: {gpus: 64}\nglobal: {a: b}\n"}
    chart = Chart("all/charts/chart", MemoryTree({**inner, **outer}))
    found = chart.render("all/charts/chart/templates/job.yaml")
    assert found is not None
    assert "parallelism: 8" in "".join(piece.text for piece in found.pieces)


def test_a_template_belongs_to_the_nearest_chart_above_it() -> None:
    tree = MemoryTree(FILES)
    assert chart_folder("chart/templates/deep/er/a.yaml", tree) == "chart"
    assert chart_folder("other/templates/a.yaml", tree) is None
    assert chart_folder("chart/values.yaml", tree) is None


def test_commands_in_readmes() -> None:
    text = "$ helm upgrade --install r ./c -n team --set a=1,b.c={x,y} --set-string d=2 -f a.yaml,b.yaml\nhelm list\n"
    (command,) = commands_in(SourceFile("README.md", text, "", 0))
    assert (command.name, command.chart, command.namespace) == ("r", "./c", "team")
    assert command.settings == [("--set", "a=1,b.c={x,y}"), ("--set-string", "d=2"), ("-f", "a.yaml,b.yaml")]


@pytest.mark.parametrize(
    ("text", "value"), [("8", 8), ("true", True), ("null", None), ("08", "08"), ("1.5", "1.5"), ("{a,1}", ["a", 1])]
)
def test_values_of_the_command_line(text: str, value: object) -> None:
    assert convert_setting(text) == value


def test_nothing_outside_the_root_is_read() -> None:
    readme = README.replace("launch.sh", "../../etc/passwd")
    reading = _read({**FILES, "chart/README.md": readme})
    assert reading.launches == ()
