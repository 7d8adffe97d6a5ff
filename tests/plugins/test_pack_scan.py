"""Packs are found in their source: every decorated function, and nothing else."""

from __future__ import annotations

from pathlib import Path

from preflight.plugins.pack import decorated

MODULE = '''
"""Says @check( in a docstring."""

@check(
    "AAA001",
    plan=lambda job: [],
)
@other(1)
def first(job):
    def inner(): ...

def helper(job): ...

@checked()
def not_this(job): ...

@gpu_check("AAA002", "name")
async def second(job): ...
'''


def test_finds_decorated_functions_in_the_order_of_modules_and_lines(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "__init__.py").write_text('"""A package."""\n')
    (tmp_path / "sub" / "b.py").write_text(MODULE)
    (tmp_path / "a.py").write_bytes(b'"""One."""\r\n\r\n@check("AAA003",\r\n)\r\ndef third(job): ...\r\n')
    assert decorated("pack", tmp_path, "check") == ("pack.a:third", "pack.sub.b:first", "pack.sub.b:second")


def test_a_module_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text('raise SystemExit\n@check("AAA001")\ndef one(job): ...\n')
    assert decorated("bad_pack", tmp_path, "check") == ("bad_pack.bad:one",)
