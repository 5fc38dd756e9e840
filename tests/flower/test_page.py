"""The how-to page: its code runs, and prints what the page says. Elsewhere it is not run, for want of flwr."""

import pytest


pytest.importorskip("flwr")

import pages


TEXT = (pages.ROOT / "docs" / "howto" / "flower.md").read_text(encoding="utf-8")


def test_code_on_the_page_prints_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    marked = TEXT.replace("```py\n", "```python\n")
    assert len(pages.blocks(marked)) == TEXT.count("```py\n") == 3 and not pages.blocks(TEXT)
    pages.check(marked, "flower.md")
