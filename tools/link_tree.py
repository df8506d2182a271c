"""Lay the folders out as they install, by links, for tools that know no package-dir (mypy).

    python tools/link_tree.py TREE

TREE, outside the repository, then has a real folder `twophase/` with a link to each entry of the repository's
`twophase/` and to `sinks`, `sources` and `connectors`; beside it are links to the other folders of Python code. TREE
belongs to this program: links that are no longer wanted are removed, so that a deleted file is not checked for ever.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BELOW_TWOPHASE = ("connectors", "sinks", "sources")
BESIDE_TWOPHASE = ("benchmarks", "examples", "integration_tests", "tests", "tools")


def wanted_links(root: Path) -> dict[Path, Path]:
    """Each link, relative to the tree, and what it points at."""
    entries = [entry for entry in (root / "twophase").iterdir() if entry.name != "__pycache__"]
    links = {Path("twophase", entry.name): entry for entry in entries}
    for name in BELOW_TWOPHASE:
        link = Path("twophase", name)
        if link in links:
            raise SystemExit(f"twophase/{name} would hide the folder {name}/: give one of them another name")
        links[link] = root / name
    links.update({Path(name): root / name for name in BESIDE_TWOPHASE if (root / name).is_dir()})
    return links


def lay_out(root: Path, tree: Path) -> None:
    """Make `tree` hold exactly the wanted links."""
    if tree.resolve().is_relative_to(root):
        raise SystemExit(f"{tree} lies inside the repository: choose a folder outside it")
    links = wanted_links(root)
    folder = tree / "twophase"
    folder.mkdir(parents=True, exist_ok=True)
    for path in (*tree.iterdir(), *folder.iterdir()):
        if path.is_symlink() and links.get(path.relative_to(tree)) != path.readlink():
            path.unlink()
    for link, target in links.items():
        if not (tree / link).is_symlink():
            (tree / link).symlink_to(target)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/link_tree.py TREE")
    lay_out(ROOT, Path(sys.argv[1]))
