"""What `make docs` does beside mkdocs: tutorials are run and shown with outputs; links out of docs become text."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def cells(text: str) -> list[tuple[str, str]]:
    """The cells of a program in percent format: "markdown" or "python", and what is in them."""
    parts: list[tuple[str, str]] = []
    for part in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            parts.append(("markdown", re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip()))
        else:
            parts.append(("python", body.strip()))
    return parts


def page_of(path: Path) -> tuple[str, dict[str, bytes]]:
    """A tutorial as Markdown, run from top to bottom, and its pictures by name."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    names: dict[str, Any] = {"__name__": path.stem}
    parts, pictures = [], {}
    for kind, text in cells(path.read_text("utf-8")):
        if kind == "markdown":
            parts.append(text)
            continue
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(text, str(path), "exec"), names)
        parts.append(f"```python\n{text}\n```")
        if printed.getvalue().strip():
            parts.append(f'```text title="prints"\n{printed.getvalue().rstrip()}\n```')
        for number in pyplot.get_fignums():
            name, file = f"{path.stem}-{len(pictures)}.png", io.BytesIO()
            pyplot.figure(number).savefig(file, dpi=80)
            pictures[name] = file.getvalue()
            parts.append(f"![what the cell draws]({name})")
        pyplot.close("all")
    return "\n\n".join(parts) + "\n", pictures


def on_files(files: Any, config: Any) -> Any:
    """Put a page in the place of each tutorial."""
    from mkdocs.structure.files import File

    for path in sorted((FOLDER / "tutorials").glob("*.py")):
        if own := files.get_file_from_path(f"tutorials/{path.name}"):
            files.remove(own)
        if not cells(path.read_text("utf-8")):  # a program that takes minutes: shown as it is
            text, pictures = f"# {path.stem.replace('_', ' ')}\n\n```python\n{path.read_text('utf-8')}```\n", {}
        else:
            text, pictures = page_of(path)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=picture))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to the repository's other files become their paths, and links to tutorials lead to their pages."""
    depth = page.file.src_uri.count("/")
    outside = r"\[([^\]]+)\]\((?:\.\./){" + str(depth + 1) + r"}([^)]*)\)"
    markdown = re.sub(outside, r"\1 (`\2` in the repository)", markdown)
    if page.file.src_uri.startswith("results/"):  # lists of digits, no links
        markdown = re.sub(r"\[(\d(?:, \d)*)\]", r"\[\1\]", markdown)
    return re.sub(r"\]\(((?:\.\./)*)tutorials/(\w+)\.py\)", r"](\1tutorials/\2.md)", markdown)
