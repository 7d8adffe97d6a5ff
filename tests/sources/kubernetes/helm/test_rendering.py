"""Evaluated templates: the expected texts are the output of Helm 4.2 for the same template and values."""

from __future__ import annotations

import pytest

from preflight.sources.formats.tree import MemoryTree
from preflight.sources.kubernetes.helm.chart import Chart

VALUES = """\
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
        "c/values.yaml": VALUES,
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
