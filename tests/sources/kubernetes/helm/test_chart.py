"""A chart of a job: its launcher comes from a ConfigMap, its numbers from values and the installing command."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, NoteKind, Unresolved
from preflight.sources.base import Reading, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.kubernetes.helm.chart import Chart, chart_folder, commands_in, convert_setting
from preflight.sources.kubernetes.helm.templates import (
    MAX_DEPTH,
    Block,
    Call,
    Dot,
    Fields,
    Function,
    Literal,
    Output,
    TemplateFault,
    TextPart,
    Variable,
    parse,
)
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


# Go's template syntax.


def _texts(text: str) -> list[str]:
    return [text[part.start : part.end] for part in parse(text).parts if isinstance(part, TextPart)]


def test_trim_markers_remove_the_blanks_on_their_side() -> None:
    assert _texts("a \n {{- .x -}} \n b") == ["a", "b"]
    assert _texts("a {{ .x }} b") == ["a ", " b"]
    assert _texts("a\n{{- /* why -}} */ -}}\nb") == ["a", "b"]
    assert _texts("a {{/* why */}} b") == ["a ", " b"]


def test_a_string_may_contain_closing_braces() -> None:
    (output,) = parse('{{ print "}}" `}}` }}').parts
    assert isinstance(output, Output)
    assert output.pipeline.commands == ((Function("print"), Literal("}}"), Literal("}}")),)


def test_operands() -> None:
    (output,) = parse('{{ $x.a.b . -3 1.5 0x1F true nil "a\\tb" (f .c).d | g }}').parts
    assert isinstance(output, Output)
    first, second = output.pipeline.commands
    assert first[:4] == (Fields(Variable("$x"), ("a", "b")), Dot(), Literal(-3), Literal(1.5))
    assert first[4:8] == (Literal(31), Literal(True), Literal(None), Literal("a\tb"))
    assert isinstance(first[8], Fields)
    assert first[8].names == ("d",)
    assert second == (Function("g"),)


def test_blocks() -> None:
    text = "{{ if .a }}1{{ else if .b }}2{{ else }}3{{ end }}{{ range $i, $x := .c }}4{{ else }}5{{ end }}"
    first, second = parse(text).parts
    assert isinstance(first, Block)
    assert isinstance(second, Block)
    (chained,) = first.otherwise
    assert isinstance(chained, Block)
    assert (len(chained.body), len(chained.otherwise)) == (1, 1)
    assert second.pipeline.declares == ("$i", "$x")


def test_defined_templates_are_separate() -> None:
    template = parse('{{ define "a.b" }}x{{ end }}y{{ template "a.b" . }}{{ block "c" . }}z{{ end }}')
    assert set(template.defined) == {"a.b", "c"}
    assert [type(part) for part in template.parts] == [TextPart, Call, Call]


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a {{ .x", 2),
        ("{{ if .x }}", 0),
        ("{{ end }}", 0),
        ("{{ else }}", 0),
        ("{{ }}", 2),
        ("{{ (f .x }}", 2),
        ("{{ .x | }}", 2),
        ("{{ a ? b }}", 5),
        ("{{ define }}x{{ end }}", 2),
    ],
)
def test_an_invalid_template_is_rejected_with_its_location(text: str, start: int) -> None:
    with pytest.raises(TemplateFault) as fault:
        parse(text)
    assert fault.value.start == start


def test_depth_is_bounded() -> None:
    with pytest.raises(TemplateFault):
        parse("{{ if .x }}" * (MAX_DEPTH + 2))
    with pytest.raises(TemplateFault):
        parse("{{ " + "(" * (MAX_DEPTH + 2) + " }}")


def test_an_unclosed_action_in_a_long_text_is_found_quickly() -> None:
    with pytest.raises(TemplateFault):
        parse("{{ " + "x " * 200_000)


# Evaluated templates: the expected texts are the output of Helm 4.2 for the same template and values.


RENDERING_VALUES = """\
gpus: 16
name: train
empty: ""
none: null
flag: true
ratio: 0.5
list: [a, b]
table: {w: {z: two}, x: 1}
envs:
  - name: NCCL_DEBUG
    value: INFO
  - name: A
    value: "1"
text: |
  first
  second
"""
#: Templates, and Helm's output.
CASES = [
    ("{{ .Values.gpus }}", "16"),
    ("{{ .Values.ratio }} {{ .Values.flag }}", "0.5 true"),
    ("{{ div .Values.gpus 8 | max 1 }} {{ min .Values.gpus 8 }}", "2 8"),
    ("{{ add 1 2 3 }} {{ sub 5 2 }} {{ mul 2 3 4 }} {{ mod 7 3 }} {{ add1 4 }}", "6 3 24 1 5"),
    ("{{ .Values.none | default 3 }} {{ default 4 .Values.gpus }} {{ .Values.empty | default `e` }}", "3 16 e"),
    ("{{ .Values.name | quote }} {{ .Values.name | squote }} {{ .Values.name | upper }}", "\"train\" 'train' TRAIN"),
    ("{{ if .Values.empty }}a{{ else if .Values.flag }}b{{ else }}c{{ end }}", "b"),
    ("{{ if and .Values.flag (not .Values.none) (eq .Values.name `train` `x`) }}yes{{ end }}", "yes"),
    ("{{ if or .Values.empty .Values.none }}a{{ else }}b{{ end }}", "b"),
    ("{{ range $i, $x := .Values.list }}{{ $i }}={{ $x }};{{ end }}", "0=a;1=b;"),
    ("{{ range $k, $v := .Values.table }}{{ $k }}{{ end }}", "wx"),
    ("{{ range until 3 }}{{ . }}{{ end }}{{ range .Values.none }}x{{ else }}none{{ end }}", "012none"),
    ("{{ range .Values.list }}{{ if eq . `b` }}{{ break }}{{ end }}{{ . }}{{ end }}", "a"),
    ("{{ with .Values.table.w }}{{ .z }}{{ $.Release.Name }}{{ end }}", "tworelease-name"),
    ("{{ $a := 1 }}{{ if .Values.flag }}{{ $a = 2 }}{{ end }}{{ $a }}", "2"),
    ("{{ eq 7 7 | ternary `x` `y` }}{{ ternary `x` `y` false }}", "xy"),
    ('{{ printf "%s-%d %v %05.1f|%-4s|%q" .Values.name 3 true 1.25 "a" "b" }}', 'train-3 true 001.2|a   |"b"'),
    ("{{ toYaml .Values.table }}", "w:\n  z: two\nx: 1"),
    (
        "a:{{ toYaml .Values.envs | nindent 2 }}",
        'a:\n  - name: NCCL_DEBUG\n    value: INFO\n  - name: A\n    value: "1"',
    ),
    ("t: |{{ .Values.text | nindent 2 }}", "t: |\n  first\n  second\n  "),
    ("{{ .Values.text | indent 1 | trim }}|{{ .Values.text | trimSuffix `\n` }}|", "first\n second|first\nsecond|"),
    ('{{ include "c.name" . }} {{ template "c.name" . }}', "c-train c-train"),
    ('{{ include "c.labels" (dict "root" . "role" "worker") }}', "role: worker\napp: train"),
    ("{{ tpl `{{ .Values.name }}!` . }}", "train!"),
    ('{{ hasKey .Values "gpus" }} {{ hasKey .Values "no" }} {{ get .Values.table "x" }}', "true false 1"),
    ("{{ len .Values.list }} {{ first .Values.list }} {{ last .Values.list }} {{ index .Values.list 1 }}", "2 a b b"),
    ("{{ join `,` .Values.list }} {{ has `a` .Values.list }} {{ list 1 2 | toJson }}", "a,b true [1,2]"),
    ('{{ int "12" }} {{ .Values.gpus | int }} {{ "3" | atoi }} {{ int64 7.9 }}', "12 16 3 7"),
    ("{{ kindOf .Values.table }} {{ kindIs `string` .Values.name }} {{ empty .Values.empty }}", "map true true"),
    ("{{ trunc 3 .Values.name }} {{ trunc -2 .Values.name }} {{ replace `t` `T` .Values.name }}", "tra in Train"),
    ("{{ contains `ra` .Values.name }} {{ hasPrefix `tr` .Values.name }}", "true true"),
    ("{{ dig `w` `z` `d` .Values.table }} {{ dig `no` `d` .Values.table }}", "two d"),
    ("{{ coalesce .Values.none .Values.empty .Values.name }} {{ repeat 2 `ab` }}", "train abab"),
    ("{{ b64enc `abc` }} {{ sha256sum `a` | trunc 4 }} {{ seq 1 3 }}", "YWJj ca97 1 2 3"),
    ("{{ .Chart.Name }}-{{ .Chart.Version }} {{ .Release.Service }}", "c-0.1.0 Helm"),
    ("{{ .Files.Get `files/run.sh` }}", "torchrun a.py\n"),
    ("{{ (.Files.Glob `files/*.sh`).AsConfig }}", "run.sh: |\n  torchrun a.py"),
    ("{{ merge (dict `a` 1) (dict `a` 2 `b` 3) | toJson }}", '{"a":1,"b":3}'),
    ("{{ omit (dict `a` 1 `b` 2) `a` | toJson }} {{ pick (dict `a` 1 `b` 2) `a` | toJson }}", '{"b":2} {"a":1}'),
    ("{{ required `say it` .Values.name }} {{ lower `AB` }} {{ nospace ` a b ` }}", "train ab ab"),
    ("{{- /* nothing */ -}}", ""),
    ("{{ ceil 1.2 }} {{ floor 1.8 }} {{ round 1.256 2 }}", "2 1 1.26"),
    ("{{ regexReplaceAll `[^a-z]+` `A-b` `_` }} {{ regexMatch `^t` .Values.name }}", "_b true"),
    ("{{ gt 2 1 }} {{ ge 2 2 }} {{ lt 1 2 }} {{ le 3 2 }} {{ ne 1 2 }}", "true true true false true"),
]

HELPERS = """\
{{- define "c.name" -}}
{{ .Chart.Name }}-{{ .Values.name }}
{{- end }}
{{- define "c.labels" -}}
role: {{ .role }}
app: {{ .root.Values.name }}
{{- end }}
"""

CHART = "apiVersion: v2\nname: c\nversion: 0.1.0\n"


def chart_files(template: str) -> dict[str, str]:
    """A chart with one template beside its helpers."""
    return {
        "c/Chart.yaml": CHART,
        "c/values.yaml": RENDERING_VALUES,
        "c/files/run.sh": "torchrun a.py\n",
        "c/templates/_helpers.tpl": HELPERS,
        "c/templates/t.yaml": template,
    }


def _rendered(template: str, *, blanks: bool = False) -> str:
    chart = Chart("c", MemoryTree(chart_files(template)), blanks=blanks)
    found = chart.render("c/templates/t.yaml")
    assert found is not None, chart.notes
    return "".join(piece.text for piece in found.pieces)


@pytest.mark.parametrize(("template", "expected"), CASES)
def test_output_is_that_of_helm(template: str, expected: str) -> None:
    assert _rendered(template) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ .Values.absent }}",
        "{{ .Values.absent.deeper | quote }}",
        "{{ .Values.none }}",
        "{{ randAlphaNum 4 | lower }}",
        "{{ now | date `2006` }}",
        "{{ lookup `v1` `Secret` `a` `b` }}",
        "{{ required `say it` .Values.absent }}",
        "{{ noSuchFunction 1 }}",
        "{{ include `no.such` . }}",
        "{{ div 1 0 }}",
        "{{ index .Values.list 7 }}",
        "{{ .Capabilities.KubeVersion.Version }}",
        "{{ tpl `{{ if }}` . }}",
    ],
)
def test_values_that_are_not_in_the_files_are_unresolved(template: str) -> None:
    text = _rendered(f"a: x{template}")
    assert text.startswith("a: x")
    assert "{{" in text


def test_a_text_with_an_unknown_part_keeps_the_known_parts() -> None:
    text = _rendered('{{ $s := randAlphaNum 4 }}{{ printf "%s-%s" .Values.name $s }}')
    assert text.startswith("train-{{")


def test_templates_that_include_themselves_terminate() -> None:
    files = chart_files('{{ define "a" }}{{ include "a" . }}{{ end }}{{ include "a" . }}')
    chart = Chart("c", MemoryTree(files))
    assert chart.render("c/templates/t.yaml") is None
    assert any("include each other" in note.message for note in chart.notes)


@pytest.mark.parametrize(
    "template",
    [
        "{{ range until 9000 }}{{ range until 9000 }}xx{{ end }}{{ end }}",
        "{{ $x := `aaaaaaaaaaaaaaaa` }}{{ range until 40 }}{{ $x = printf `%s%s` $x $x }}{{ end }}{{ $x }}",
        "{{ until 99999999999 }}",
        "{{ repeat 999999999 `x` }}",
    ],
)
def test_endless_output_is_cut_off(template: str) -> None:
    chart = Chart("c", MemoryTree(chart_files(template)))
    found = chart.render("c/templates/t.yaml")
    assert found is None or sum(len(piece.text) for piece in found.pieces) < 1_000_000


def test_a_damaged_template_gives_a_located_note() -> None:
    chart = Chart("c", MemoryTree(chart_files("a: 1\nb: {{ if .x }}\n")))
    assert chart.render("c/templates/t.yaml") is None
    (note,) = chart.notes
    assert (note.span.path, note.span.line, note.span.column) == ("c/templates/t.yaml", 2, 4)


def test_values_keep_their_locations() -> None:
    chart = Chart("c", MemoryTree(chart_files("gpus: {{ .Values.gpus }}\nenv:{{ toYaml .Values.envs | nindent 2 }}\n")))
    found = chart.render("c/templates/t.yaml")
    assert found is not None
    (gpus,) = [piece for piece in found.pieces if piece.text == "16"]
    assert (gpus.origin.span.path, gpus.origin.span.line) == ("c/templates/t.yaml", 1)
    assert gpus.origin.value is not None
    assert (gpus.origin.value.path, gpus.origin.value.line) == ("c/values.yaml", 1)
    (debug,) = [piece for piece in found.pieces if piece.text == "INFO"]
    assert (debug.origin.span.path, debug.origin.span.line) == ("c/values.yaml", 11)
