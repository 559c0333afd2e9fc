"""What `make docs` does beside mkdocs.

Tutorials are run, and become pages and notebooks. Links out of the site become text. The page on the API lists every
public class with the first sentence of its docstring.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PACKAGE = FOLDER.parent / "src" / "privlearn"
#: Where the page on the API lists the public classes.
CLASSES = "<!-- public classes -->"


def cells(text: str) -> list[tuple[str, str]]:
    """The cells of a program in percent format: "markdown" or "python", and what is in them."""
    parts: list[tuple[str, str]] = []
    for part in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            parts.append(
                (
                    "markdown",
                    re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip(),
                )
            )
        else:
            parts.append(("python", body.strip()))
    return parts


def run(path: Path) -> list[tuple[str, str, str, list[bytes]]]:
    """A tutorial run from top to bottom: of each cell its kind, its text, what it prints, and what it draws."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    pyplot.close("all")  # what others left open is no picture of this tutorial
    names: dict[str, Any] = {"__name__": path.stem}
    done: list[tuple[str, str, str, list[bytes]]] = []
    for kind, text in cells(path.read_text("utf-8")):
        drawn: list[bytes] = []
        with redirect_stdout(io.StringIO()) as printed:
            if kind == "python":
                exec(compile(text, str(path), "exec"), names)
        for number in pyplot.get_fignums():
            file = io.BytesIO()
            pyplot.figure(number).savefig(file, dpi=80)
            drawn.append(file.getvalue())
        pyplot.close("all")
        done.append((kind, text, printed.getvalue().rstrip(), drawn))
    return done


def page_of(
    path: Path, done: list[tuple[str, str, str, list[bytes]]]
) -> tuple[str, dict[str, bytes]]:
    """A tutorial that was run as Markdown, and its pictures by name."""
    parts, pictures = [], {}
    for kind, text, printed, drawn in done:
        parts.append(text if kind == "markdown" else f"```python\n{text}\n```")
        if printed:
            parts.append(f'```text title="prints"\n{printed}\n```')
        for picture in drawn:
            name = f"{path.stem}-{len(pictures)}.png"
            pictures[name] = picture
            parts.append(f"![what the cell draws]({name})")
    title, rest = parts[0].partition("\n")[::2]
    link = f"[This page as a notebook]({path.stem}.ipynb), with its outputs."
    return "\n\n".join([title, link, rest, *parts[1:]]) + "\n", pictures


def empty_notebook_of(text: str) -> str:
    """A tutorial that was not run as a notebook without outputs, as it stands in the repository."""
    return notebook_of(
        [(kind, cell, "", []) for kind, cell in cells(text)], was_run=False
    )


def write_notebooks(folder: Path = FOLDER / "tutorials") -> None:
    """Write the notebook of each tutorial in cells beside its program."""
    for path in sorted(folder.glob("*.py")):
        text = path.read_text("utf-8")
        if cells(text):
            notebook = empty_notebook_of(text)
            path.with_suffix(".ipynb").write_bytes(notebook.encode())


def notebook_of(
    done: list[tuple[str, str, str, list[bytes]]], *, was_run: bool = True
) -> str:
    """A tutorial as a notebook (nbformat 4.5), with its outputs if it was run."""
    made: list[dict[str, Any]] = []
    for number, (kind, text, printed, drawn) in enumerate(done):
        cell = {"id": f"cell-{number}", "metadata": {}, "source": text}
        if kind == "markdown":
            made.append({"cell_type": "markdown", **cell})
            continue
        outputs: list[dict[str, Any]] = []
        if printed:
            outputs.append(
                {
                    "output_type": "stream",
                    "name": "stdout",
                    "text": f"{printed}\n",
                }
            )
        for picture in drawn:
            data = {
                "image/png": base64.b64encode(picture).decode(),
                "text/plain": "<Figure>",
            }
            outputs.append(
                {"output_type": "display_data", "metadata": {}, "data": data}
            )
        count = sum(other["cell_type"] == "code" for other in made) + 1
        made.append(
            {
                "cell_type": "code",
                **cell,
                "execution_count": count if was_run else None,
                "outputs": outputs,
            }
        )
    kernel = {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    }
    whole = {
        "cells": made,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1) + "\n"


@cache
def _tree(module: str) -> ast.Module:
    """The syntax tree of a module of the package; of a folder that of its stub, if it has one."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    files = (
        path.with_suffix(".py"),
        path / "__init__.pyi",
        path / "__init__.py",
    )
    return ast.parse(
        next(file for file in files if file.exists()).read_text("utf-8")
    )


def _exported(module: str) -> Iterator[str]:
    """The names that a module defines as classes or imports under their name, as in `import Plan as Plan`."""
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ImportFrom):
            yield from (
                alias.name for alias in node.names if alias.asname == alias.name
            )


def _class(module: str, name: str) -> ast.ClassDef | None:
    """The class that a module exports under a name; None if the name is not a class of the package."""
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "privlearn"
        ):
            for alias in node.names:
                path = PACKAGE.parent.joinpath(
                    *(node.module or "").split("."), alias.name
                )
                module_of_that_name = (
                    path.is_dir() or path.with_suffix(".py").exists()
                )
                if (
                    name == (alias.asname or alias.name)
                    and not module_of_that_name
                ):
                    return _class(node.module or "", alias.name)
    return None


def public_classes() -> dict[str, dict[str, str]]:
    """The public classes by package or module, each with the first sentence of its docstring (or nothing)."""
    packages = [
        path.parent.relative_to(PACKAGE.parent)
        for package in (
            PACKAGE,
            PACKAGE.with_name("privlearn_segmentation"),
        )
        for path in sorted(package.rglob("__init__.py"))
    ]
    modules = [
        ".".join(path.parts) for path in packages if "cli" not in path.parts
    ]
    modules += [
        f"privlearn.{name}"
        for name in _exported("privlearn")
        if (PACKAGE / f"{name}.py").exists()
    ]
    listed: dict[str, dict[str, str]] = {}
    for module in modules:
        classes = {
            name: _class(module, name)
            for name in _exported(module)
            if not name.startswith("_")
        }
        sentences = {
            name: _first_sentence(node)
            for name, node in classes.items()
            if node is not None
        }
        if sentences:
            listed[module] = dict(sorted(sentences.items()))
    return listed


def _first_sentence(node: ast.ClassDef) -> str:
    text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    sentence = re.match(r".*?[.!?](?=\s+[A-Z`(]|$)", text)
    return sentence.group() if sentence else ""


def table_of_classes() -> str:
    """A table for each package or module."""
    parts = []
    for module, classes in public_classes().items():
        rows = "\n".join(
            f"| `{name}` | {sentence} |" for name, sentence in classes.items()
        )
        parts.append(
            f"### {module}\n\n| class | meaning |\n| --- | --- |\n{rows}"
        )
    return "\n\n".join(parts)


def on_files(files: Any, config: Any) -> Any:
    """Put a page in the place of each tutorial."""
    from mkdocs.structure.files import File

    for path in sorted((FOLDER / "tutorials").glob("*.py")):
        for name in (
            path.name,
            f"{path.stem}.ipynb",
        ):  # the site has it with outputs
            if own := files.get_file_from_path(f"tutorials/{name}"):
                files.remove(own)
        if not cells(
            path.read_text("utf-8")
        ):  # a program that takes minutes: shown as it is
            text, pictures = (
                f"# {path.stem.replace('_', ' ')}\n\n```python\n{path.read_text('utf-8')}```\n",
                {},
            )
        else:
            done = run(path)
            text, pictures = page_of(path, done)
            files.append(
                File.generated(
                    config,
                    f"tutorials/{path.stem}.ipynb",
                    content=notebook_of(done),
                )
            )
        files.append(
            File.generated(config, f"tutorials/{path.stem}.md", content=text)
        )
        for name, picture in pictures.items():
            files.append(
                File.generated(config, f"tutorials/{name}", content=picture)
            )
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links out of the site become paths, links to tutorials lead to their pages, and the API's classes are listed."""
    if page.file.src_uri == "api.md":
        markdown = markdown.replace(CLASSES, table_of_classes())
    depth = page.file.src_uri.count("/")
    outside = r"\[([^\]]+)\]\((?:\.\./){" + str(depth + 1) + r"}([^)]*)\)"
    markdown = re.sub(outside, r"\1 (`\2` in the repository)", markdown)
    if page.file.src_uri.startswith("results/"):  # lists of digits, no links
        markdown = re.sub(r"\[(\d(?:, \d)*)\]", r"\[\1\]", markdown)
    return re.sub(
        r"\]\(((?:\.\./)*)tutorials/(\w+)\.py\)",
        r"](\1tutorials/\2.md)",
        markdown,
    )


if __name__ == "__main__":
    write_notebooks()
