"""A stand-in for the Hugging Face Hub: what huggingface_hub asks of it by HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlsplit

import yaml

_FILES = "/{repo_id}/resolve/{revision}/{filename}"
#: The repository of the tests.
NAME = "someone/model"


@dataclass
class Repository:
    """Commits by their hashes, each with all of its files; and what each branch means."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    private: bool = False

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """A new commit of exactly these files."""
        text = repr((len(self.commits), sorted(files.items())))
        name = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.commits[name] = dict(files)
        self.branches[branch] = name
        return name

    def hash_of(self, revision: str) -> str | None:
        name = self.branches.get(revision, revision)
        return name if name in self.commits else None

    @property
    def files(self) -> dict[str, bytes]:
        """Those of the branch `main`, as they are now."""
        return self.commits[self.branches["main"]]


@dataclass
class SmallHub:
    """The server's repositories, large files by SHA-256, and what was asked, in order.

    Attributes:
        ignored: names that the Hub leaves out of a commit, as by a .gitignore.
        moved: the hash that a download says it is of, where it lies.
        url: where it answers.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    ignored: frozenset[str] = frozenset()
    moved: str | None = None
    url: str = ""

    def create(self, name: str = NAME) -> Repository:
        """A repository as the Hub makes it."""
        repository = Repository()
        repository.commit({".gitattributes": b"*.safetensors filter=lfs\n"})
        self.repositories[name] = repository
        return repository

    def write(self, repository: Repository, lines: list[dict[str, Any]]) -> str | None:
        """A commit of a request's lines; None: its parent is not the newest."""
        files = dict(repository.files)
        for line in lines:
            value = line["value"]
            parents = (None, repository.branches["main"])
            if line["key"] == "header" and value.get("parentCommit") not in parents:
                return None
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            if line["key"] == "lfsFile":
                files[value["path"]] = self.large[value["oid"]]
            if line["key"] == "deletedFile":
                del files[value["path"]]
        return repository.commit(files)


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: SmallHub

    def log_message(self, *_: Any) -> None:
        """Nothing on the screen."""

    def do_HEAD(self) -> None:
        self._resolve()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if "/resolve/" in path:
            return self._resolve()
        self.hub.asked.append(f"GET {path}")
        matched = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        repository = self.hub.repositories.get(matched[1]) if matched else None
        if matched is None or repository is None:
            return self._refuse("RepoNotFound")
        commit = repository.hash_of(matched[2] or "main")
        if commit is None:
            return self._refuse("RevisionNotFound")
        siblings = [{"rfilename": name} for name in repository.commits[commit]]
        return self._json({"_id": "0", "id": matched[1], "sha": commit, "siblings": siblings})

    def do_PUT(self) -> None:
        content = self._read()
        assert hashlib.sha256(content).hexdigest() == self.path.rpartition("/")[2]
        self.hub.large[self.path.rpartition("/")[2]] = content
        self._send(200, b"")

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"POST {path}")
        content = self._read()
        if path == "/api/repos/create":
            asked = json.loads(content)
            name = f"{asked['organization']}/{asked['name']}"
            if name in self.hub.repositories:
                return self._json({"url": f"{self.hub.url}/{name}"}, 409)
            self.hub.create(name).private = asked.get("visibility") == "private"
            return self._json({"url": f"{self.hub.url}/{name}"})
        if path == "/api/validate-yaml":
            card = json.loads(content)["content"]
            assert isinstance(yaml.safe_load(card.split("---\n")[1]), dict)
            return self._json({"errors": [], "warnings": []})
        if path.endswith("/info/lfs/objects/batch"):
            return self._json(
                {
                    "transfer": "basic",
                    "objects": [
                        {
                            **each,
                            "actions": {"upload": {"href": f"{self.hub.url}/large/{each['oid']}"}},
                        }
                        for each in json.loads(content)["objects"]
                    ],
                },
                kind="application/vnd.git-lfs+json",
            )
        name = "/".join(path.split("/")[3:5])
        if "/preupload/" in path:
            return self._json(
                {"files": [self._mode(each) for each in json.loads(content)["files"]]}
            )
        assert path == f"/api/models/{name}/commit/main"
        lines = [json.loads(line) for line in content.splitlines()]
        commit = self.hub.write(self.hub.repositories[name], lines)
        if commit is None:
            return self._json({"error": "A commit has happened since"}, 412)
        return self._json(
            {"commitUrl": f"{self.hub.url}/{name}/commit/{commit}", "commitOid": commit}
        )

    def _mode(self, asked: dict[str, Any]) -> dict[str, Any]:
        path = asked["path"]
        return {
            "path": path,
            "uploadMode": "lfs" if path.endswith(".safetensors") else "regular",
            "shouldIgnore": path in self.hub.ignored,
        }

    def _resolve(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        matched = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        assert matched is not None
        repository = self.hub.repositories[matched[1]]
        commit = repository.hash_of(matched[2])
        if commit is None or matched[3] not in repository.commits[commit]:
            return self._refuse("EntryNotFound")
        content = repository.commits[commit][matched[3]]
        return self._send(
            200,
            content,
            **{
                "X-Repo-Commit": self.hub.moved or commit,
                "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            },
        )

    def _read(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _json(self, value: Any, status: int = 200, kind: str = "application/json") -> None:
        self._send(status, json.dumps(value).encode(), **{"Content-Type": kind})

    def _refuse(self, code: str) -> None:
        self._send(404, b"{}", **{"X-Error-Code": code, "Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def small_hub() -> Iterator[SmallHub]:
    """A Hub that huggingface_hub asks, with a cache of its own, for as long as it is open."""
    from huggingface_hub import constants

    hub = SmallHub()
    answers = type("Answers", (_Answers,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), answers)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    Thread(target=server.serve_forever, daemon=True).start()
    with (
        tempfile.TemporaryDirectory() as cache,
        mock.patch.object(constants, "ENDPOINT", hub.url),
        mock.patch.object(constants, "HF_HUB_OFFLINE", False),  # as other tests set it
        mock.patch.object(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{hub.url}{_FILES}"),
        mock.patch.object(constants, "HF_HUB_CACHE", cache),
        mock.patch.object(constants, "HF_HUB_DISABLE_XET", True),
    ):
        try:
            yield hub
        finally:
            server.shutdown()
            server.server_close()
