"""The simulated device takes the place of CUDA in a package that asks for CUDA by its name."""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from types import CodeType
from typing import Any

import torch

from tests.support.simulated.memory import NAME

_ATTRIBUTES = {"cuda": NAME, "is_cuda": f"is_{NAME}"}


class _Renamed(ast.NodeTransformer):
    """Reads "cuda", torch.cuda and .is_cuda as those of the device."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if node.value != "cuda":
            return node
        return ast.copy_location(ast.Constant(NAME), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = _ATTRIBUTES.get(node.attr, node.attr)
        return node


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles what a file is read as, and keeps no cache of it."""

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
        tree = _Renamed().visit(ast.parse(data, path))
        tree = ast.fix_missing_locations(tree)
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        data = self.get_data(path)
        if b"cuda" not in data:
            return super().get_code(fullname)
        return self.source_to_code(data, path)


class _Finder:
    """Finds the modules of one package."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._package and not name.startswith(f"{self._package}."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def pose_as_cuda(package: str) -> None:
    """Let modules of `package` that are imported from here on take the device for CUDA."""
    sys.meta_path.insert(0, _Finder(package))
    setattr(torch.backends, NAME, torch.backends.cuda)
    fork = torch.random.fork_rng

    def fork_rng(*arguments: Any, device_type: str = NAME, **options: Any) -> Any:
        return fork(*arguments, device_type=device_type, **options)

    torch.random.fork_rng = fork_rng
