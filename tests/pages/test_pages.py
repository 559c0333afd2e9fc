"""Every block of every page runs: Python in one namespace a page, commands by the command line, in
the page's order.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from privlearn.cli import main
from privlearn.cli.request import parse
from tests.pages import page_blocks
from tests.pages.page_blocks import PAGES, ROOT, Block, Command, blocks, commands
from tests.pages.page_stand_ins import NEEDS, SERVER, SHORTER, TOO_LONG, Page, small

RUN = [
    page
    for page in PAGES
    if any(block.language == "python" or commands(block) for block in blocks(page))
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    small(monkeypatch, tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", RUN)
def test_the_page_runs_from_top_to_bottom(
    page: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if page == "docs/segmentation.md":
        pytest.importorskip("monai", reason="MONAI is not here: pip install 'privlearn[medical]'")
    for module in {
        "docs/trainers.md": ("transformers", "peft", "lightning", "accelerate"),
        "docs/trl.md": ("trl", "peft"),
        "docs/testing-privacy.md": ("opacus",),
        "docs/hub.md": ("huggingface_hub", "mlflow"),
        "docs/federated-training.md": ("flwr",),
    }.get(page, ()):
        pytest.importorskip(module, reason=f"{module} is not installed")
    needs = NEEDS.get(page, Page())
    names = needs.names()
    if needs.files is not None:
        needs.files(folder)
    if needs.toml:
        (folder / needs.toml).write_text(
            "".join(each.text for each in blocks(page) if each.language == "toml")
        )
    python = 0
    with needs.around():
        for block in blocks(page):
            if block.language == "python" and block.reason_not_to_run is None:
                needs.before.get(python, lambda names, folder: None)(names, folder)
                exec(compile(block.code(needs.smaller), page, "exec"), names)
                python += 1
            for command in commands(block):
                run(command, block, capsys)
    if needs.after is not None:
        needs.after(names, folder)


def run(command: Command, block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """Run one command; what the page shows below it must be printed, line by line."""
    words = command.words()
    if " ".join(words) in TOO_LONG or any(SERVER in word for word in words):
        parse(words[1:])
        return
    assert words[0] == "privlearn", f"{block.page}:{block.line}: {command.line}"
    into = words[-1] if words[-2] == ">" else None
    more = [
        word for start, added in SHORTER.items() if command.line.startswith(start) for word in added
    ]
    capsys.readouterr()
    code = main([*(words[1:-2] if into else words[1:]), *more])
    out, err = capsys.readouterr()
    assert code == 0, f"{block.page}:{block.line}: {command.line}\n{out}{err}"
    if into and not Path(into).exists():
        Path(into).write_text(out)
    assert not into or out.strip()
    printed = [" ".join(line.split()) for line in [*out.splitlines(), *err.splitlines()]]
    rest = iter(printed)
    for line in filter(str.strip, command.output):
        assert " ".join(line.split()) in rest, (
            f"{block.page}:{block.line}: not printed, or not there: {line}\n{out}{err}"
        )


def test_python_is_marked_as_such_and_hardly_anything_is_not_run() -> None:
    """A block of Python that nobody marked would not run; one that is not to run says why."""
    everything = [block for page in PAGES for block in blocks(page)]
    unmarked = [
        f"{block.page}:{block.line}"
        for block in everything
        if block.looks_like_python and block.language != "python"
    ]
    assert not unmarked
    languages = ("", "python", "toml", "diff")
    assert all(block.text.count("\n") and block.language in languages for block in everything)
    left_out = [block for block in everything if block.reason_not_to_run is not None]
    assert all(len(block.reason_not_to_run or "") > 10 for block in left_out)
    assert len(left_out) == 0
    assert sum(block.language == "python" for block in everything) >= 18


def test_what_is_made_smaller_is_still_on_the_page() -> None:
    for page, needs in NEEDS.items():
        text = "".join(block.text for block in blocks(page))
        assert all(large in text for large in needs.smaller), page
        assert not needs.toml or any(block.language == "toml" for block in blocks(page)), page
    lines = {
        " ".join(command.words())
        for page in PAGES
        for block in blocks(page)
        for command in commands(block)
    }
    assert set(TOO_LONG) <= lines
    assert all(any(line.startswith(start) for line in lines) for start in SHORTER)


def test_the_readmes_example_is_short_and_prints_a_guarantee(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = [block for block in blocks("README.md") if block.language == "python"]
    assert len(example.text.strip().splitlines()) <= 20
    exec(compile(example.text, "README.md", "exec"), {})
    assert "-DP for" in capsys.readouterr().out


def test_the_demo_prints_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for what differs from run to run: accuracy and times. Lines may be broken elsewhere."""
    monkeypatch.chdir(tmp_path)
    makefile = (ROOT / "Makefile").read_text()
    demo = makefile.split("\ndemo:")[1].split("\n\n")[0].replace("$(DEMO)", "runs/digits-demo")
    found = ""
    for line in re.findall(r"\$\(BIN\)/privlearn (.*)", demo):
        assert main(line.split()) == 0
        out, err = capsys.readouterr()
        found += err + out
    (shown,) = [block.text for block in blocks("README.md") if block.text.startswith("plan: ")]
    assert _steady(found) == _steady(shown)


def _steady(text: str) -> list[str]:
    """The words of what the demo prints, without accuracy, times and the bar of progress."""
    text = re.sub(
        r"(accuracy|loss|AUC|calibration error) +[\d.]+|seconds +[\d.]+|\d+:\d\d:\d\d|[━╸╺]+",
        "",
        text,
    )
    return text.split()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("privlearn budget --nothing\n", "budget"),
        ("$ privlearn reproduce --list\n\nyu-table99\n", "not printed"),
        ("privlearn verify nowhere\n", "nowhere"),
        ("$ pip install something\n", "pip"),
    ],
)
def test_a_false_block_is_noticed(
    text: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block = Block("page.md", 1, "", text)
    (command,) = commands(block)
    with pytest.raises((AssertionError, SystemExit)) as caught:
        run(command, block, capsys)
    assert said in str(caught.value) or isinstance(caught.value, SystemExit)


def test_blocks_are_read_as_they_stand() -> None:
    text = (
        "```python\nimport privlearn\n```\n\n```python not-run: needs a GPU of "
        "ours\npv.train\n```\n"
    )
    python, left_out = page_blocks.split("page.md", text)
    assert (python.line, python.language, python.reason_not_to_run) == (2, "python", None)
    assert left_out.reason_not_to_run == "needs a GPU of ours"
    assert python.code({"privlearn": "torch"}) == "\nimport torch\n"
    hidden = Block("page.md", 1, "", "result = pv.train(data)\n")
    assert hidden.looks_like_python
