"""Hooks for the site: pages outside docs/, notebooks, links that leave it, examples in docstrings, pages as Markdown.

Beside each page stands its Markdown, and `llms.txt` lists all, for programs that read the documentation.

Links are written for the files of the repository, so they also work where these are read. On the site, design pages
lie beside docs/'s own, and a link to a file that has no page becomes its text.
"""

import base64
import json
import os.path
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = [*sorted((ROOT / "design").glob("*.md")), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)]*)?\)")


class Examples(Extension):
    """Shows a section `Example:` as code, as mkdocstrings shows `Examples:` only."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Renames the section."""
        if obj.docstring:
            obj.docstring.value = re.sub("^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages outside docs/, under their paths in the repository."""
    for path in OUTSIDE:
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        for page in _pages_of(file, config):
            files.append(page)
    return files


def _pages_of(notebook: File, config: MkDocsConfig) -> Iterator[File]:
    """Yields the page of a notebook, and its pictures. The notebook itself stands beside them, to be downloaded."""
    stem = notebook.src_uri.removesuffix(".ipynb")
    parts, count = [], 0
    for cell in json.loads(notebook.content_string)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", ())})
            if picture := data.get("image/png"):
                count += 1
                yield File.generated(config, f"{stem}-{count}.png", content=base64.b64decode(picture))
                parts.append(f"![What the cell shows]({os.path.basename(stem)}-{count}.png)")
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    title, _, rest = "\n\n".join(parts).partition("\n")
    download = f"[This notebook]({os.path.basename(notebook.src_uri)}) to download."
    yield File.generated(config, f"{stem}.md", content=f"{title}\n\n{download}\n{rest}\n")


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links at pages of the site."""
    source = Path(page.file.abs_src_path or ROOT / "docs" / page.file.src_uri)  # or it is of a notebook
    _read[page.file.src_uri] = markdown

    def moved(found: re.Match[str]) -> str:
        target = (source.parent / found["path"]).resolve()
        try:
            uri = target.relative_to(ROOT / "docs").as_posix()
        except ValueError:
            uri = os.path.relpath(target, ROOT)
        if target.suffix == ".ipynb" and target.stem != source.stem:
            uri = f"{uri.removesuffix('.ipynb')}.md"
        if target.exists() and files.get_file_from_path(uri) is None:
            return found["text"]
        here = os.path.dirname(page.file.src_uri)
        return f"[{found['text']}]({os.path.relpath(uri, here or '.')}{found['anchor'] or ''})"

    return LINK.sub(moved, markdown)


_read: dict[str, str] = {}
"""The Markdown of each page, by its path in the repository."""


def on_post_build(*, config: MkDocsConfig) -> None:
    """Writes the Markdown of each page, and `llms.txt` (llmstxt.org): title, first sentence and address of each."""
    site, lines = Path(config.site_dir), [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for uri, markdown in _read.items():
        target = site / uri
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(markdown)
        title, _, body = markdown.removeprefix("# ").partition("\n")
        text = re.sub(r"```.*?```|<!--.*?-->|^[#|!:].*?$", "", body, flags=re.DOTALL | re.MULTILINE).strip()
        first = " ".join(LINK.sub(lambda found: found["text"], text.split("\n\n")[0]).replace("**", "").split())
        first = re.split(r"(?<=[.?])\s", first.removeprefix("- What changes. "))[0]
        lines.append(f"- [{title}]({uri}){f': {first}' if first else ''}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n")
