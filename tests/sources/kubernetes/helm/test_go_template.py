"""Go's template syntax."""

from __future__ import annotations

import pytest

from preflight.sources.kubernetes.helm.go_template import (
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
