"""Named checks of what is published, signed and read back; mutations must make them fail."""

from __future__ import annotations

import base64
import contextlib
import copy
import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import privlearn as pv
from privlearn._storage import canonical
from privlearn.core import sampling, streams
from privlearn.errors import BadInput, CertificateMismatch, PrivlearnError
from privlearn.models import networks
from privlearn.publishing import certificate, folder, keys, model, new_folder, publish, signing
from privlearn.publishing import model as published_model
from privlearn.publishing.verify import Verification, verify
from tests.publishing import edwards
from tests.support.checks import check, must_raise
from tests.support.fuzz_json import places
from tests.support.nets import cross_entropy, small_data


@lru_cache(maxsize=2)
def result(seed: int = 0) -> Any:
    """A small trained linear model, made once."""
    plan = pv.Plan(sampling.Poisson(0.25), epochs=2, examples=1000).calibrate(
        epsilon=3.0, delta=1e-5
    )
    build = lambda shape: networks.build(  # noqa: E731
        "linear", shape, 3, streams.Streams.new(seed).initialisation
    ).double()
    return pv.dpsgd(plan, build, cross_entropy, small_data(), streams=streams.Streams.new(seed))


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        yield Path(place)


def published(place: Path, name: str = "model", **options: Any) -> Path:
    options = {"model_spec": "linear", "classes": 3, **options}
    return publish.publish(result(options.pop("seed", 0)), place / name, **options)


def key_in(place: Path, name: str = "key") -> Path:
    signing.make(place / name)
    return place / name


def body_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "privacy.json").read_text())
    return found


def forge(out: Path, body: dict[str, Any]) -> None:
    """Write `body` as a careful forger does: with the hashes of the files as they are now, and
    fresh digests.
    """
    for name in body["files"]:
        body["files"][name] = hashlib.sha256((out / name).read_bytes()).hexdigest()
    store(
        out,
        {**body, "digests": {part: certificate.digest(body[part]) for part in certificate.PARTS}},
    )


def store(out: Path, body: dict[str, Any]) -> None:
    (out / "privacy.json").write_text(json.dumps(body))


def says(found: Verification, text: str) -> bool:
    return not found.ok and any(text in problem for problem in found.problems)


@check
def check_a_signature_covers_every_part() -> None:
    """Whatever single value is edited, and however well its digest is mended, the signature no
    longer fits.
    """
    with workplace() as place:
        key = key_in(place)
        out = published(place, sign=key)
        assert verify(out, key=f"{key}.pub").ok
        original = body_of(out)
        places_in = [
            at
            for at in range(len(places(original)))
            if not isinstance(_value(original, at), dict | list)
        ]
        assert len(places_in) > 40
        for at in places_in:
            body = copy.deepcopy(original)
            where, name = places(body)[at]
            where[name] = _other(where[name])
            if name in ("format", "version"):
                continue  # refused as no certificate at all
            if where is not body.get("digests"):
                body["digests"] = {
                    part: certificate.digest(body[part]) for part in certificate.PARTS
                }
            store(out, body)
            for found in (verify(out), verify(out, key=f"{key}.pub")):
                assert says(found, "the signature"), (name, found)
                assert found.signed_by is None


def _value(body: Any, at: int) -> Any:
    where, name = places(body)[at]
    return where[name]


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str) and len(value) > 40 and value.isascii():
        return value[:-3] + ("AB" if value[-3] != "A" else "BA") + value[-1]
    return f"{value}x" if isinstance(value, str) else "something"


@check
def check_swapped_files_are_found() -> None:
    """Signed weights, configuration and card cannot be exchanged for others, not even for other
    signed ones.
    """
    with workplace() as place:
        key = key_in(place)
        one, other = published(place, "one", sign=key), published(place, "other", sign=key, seed=1)
        for name in ("model.safetensors", "README.md", "card.html"):
            original = (one / name).read_bytes()
            swapped = (other / name).read_bytes() + (b"" if name == "model.safetensors" else b"\n")
            assert swapped != original
            (one / name).write_bytes(swapped)
            assert says(verify(one, key=f"{key}.pub"), f"{name} is not the file that was certified")
            forge(one, body_of(one))
            assert not verify(one, key=f"{key}.pub").ok
            (one / name).write_bytes(original)
            forge(one, body_of(one))


@check
def check_a_signature_does_not_move() -> None:
    """The signature of one certificate does not fit another one, nor anything else that the key
    might sign.
    """
    with workplace() as place:
        key = key_in(place)
        one, other = (
            published(place, "one", sign=key),
            published(place, "other", sign=key, delta=1e-6),
        )
        store(one, {**body_of(one), "signature": body_of(other)["signature"]})
        assert says(verify(one), "the signature does not fit")
        plain = {name: value for name, value in body_of(other).items() if name != "signature"}
        who = {name: body_of(other)["signature"][name] for name in ("algorithm", "public_key")}
        for message in (canonical({**plain, "signature": who}), canonical(plain)):
            value = base64.b64encode(signing.read_private(key).sign(message)).decode()
            store(other, {**plain, "signature": {**who, "value": value}})
            assert says(verify(other), "the signature does not fit")


@check
def check_a_stripped_signature_is_found() -> None:
    with workplace() as place:
        key = key_in(place)
        out = published(place, sign=key)
        body = body_of(out)
        del body["signature"]
        store(out, body)
        assert says(verify(out, key=f"{key}.pub"), "the certificate is not signed")
        for name in ("README.md", "card.html"):
            assert says(verify(out), f"{name} does not begin with what is certified")
        for nothing in (None, {}, [], "", False):
            store(out, {**body, "signature": nothing})
            assert says(verify(out), "the signature has other fields")
            assert says(verify(out, key=f"{key}.pub"), "the signature has other fields")
        for name in ("README.md", "card.html"):
            lines = (out / name).read_text().splitlines(True)
            unsigned = [
                line
                for line in lines
                if not line.startswith(("signed_by", '<meta name="signed_by"'))
            ]
            assert len(unsigned) == len(lines) - 1
            (out / name).write_text("".join(unsigned))
        forge(out, body)
        # a whole forgery by somebody who signs nothing: no claim of a publisher is left in it
        assert verify(out).ok
        assert verify(out).signed_by is None
        assert says(verify(out, key=f"{key}.pub"), "the certificate is not signed")


@check
def check_another_key_is_found() -> None:
    """Somebody who edits and signs again is found by --key, and by nothing else."""
    with workplace() as place:
        mine, theirs = key_in(place, "mine"), key_in(place, "theirs")
        out = published(place, sign=theirs)
        found = verify(out)
        assert found.ok
        assert found.signed_by == keys.read_public(f"{theirs}.pub").fingerprint
        found = verify(out, key=f"{mine}.pub")
        assert says(found, "and not with the one that was given")
        assert keys.read_public(f"{mine}.pub").fingerprint in found.problems[0]
        assert found.signed_by == keys.read_public(f"{theirs}.pub").fingerprint
        must_raise(CertificateMismatch, lambda: pv.load_model(out, trusted=f"{mine}.pub"))
        pv.load_model(out, trusted=f"{theirs}.pub")
        # a certificate signed again, and a card that still names the old key
        card = (out / "README.md").read_text()
        (out / "README.md").write_text(
            card.replace(str(found.signed_by), keys.read_public(f"{mine}.pub").fingerprint)
        )
        body = {name: value for name, value in body_of(out).items() if name != "signature"}
        forge(out, body)
        store(out, signing.sign(body_of(out), signing.read_private(theirs)))
        assert says(verify(out), "README.md does not begin with what is certified")
        assert not says(verify(out), "card.html")


@check
def check_keys_of_small_order_are_refused() -> None:
    """Under such keys one "signature" fits many messages, and nobody needs a private key for it."""
    small = edwards.of_small_order()
    assert len(small) == 8
    assert all(edwards.multiply(8, point) == edwards.NEUTRAL for point in small)
    spellings = {edwards.encode(point) for point in small}
    for point in small:
        for sign in (0, 1):
            spellings.add((point[1] | sign << 255).to_bytes(32, "little"))
            if point[1] + edwards.PRIME < 1 << 255:
                spellings.add((point[1] + edwards.PRIME | sign << 255).to_bytes(32, "little"))
    for raw in spellings:
        must_raise(BadInput, lambda raw=raw: keys.PublicKey(raw))  # type: ignore[misc]
    # the other spellings that a careless reader reduces
    for value in range(edwards.PRIME, 1 << 255):
        must_raise(BadInput, lambda value=value: keys.PublicKey(value.to_bytes(32, "little")))  # type: ignore[misc]
    for length in (0, 31, 33, 64):
        must_raise(BadInput, lambda length=length: keys.PublicKey(b"\x05" * length))  # type: ignore[misc]


@check
def check_signatures_have_one_spelling() -> None:
    with workplace() as place:
        key = key_in(place)
        out = published(place, sign=key)
        original = body_of(out)
        for name, length in (("public_key", 32), ("value", 64)):
            text = original["signature"][name]
            raw = base64.b64decode(text)
            last = text.rstrip("=")[-1]
            alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
            loose = (
                text.rstrip("=")[:-1] + alphabet[alphabet.index(last) ^ 1] + "=" * text.count("=")
            )
            assert base64.b64decode(loose) == raw  # the spare bits: another text, the same bytes
            others = [
                loose,
                text.rstrip("="),
                text + "=",
                text + "\n",
                " " + text,
                text[:20] + "\n" + text[20:],
                raw.hex(),
                base64.b64encode(raw + b"\0").decode(),
                base64.b64encode(raw[:-1]).decode(),
                "",
                None,
                7,
                [text],
                text[:-2] + "é=",
                text + text,
            ]
            for other in others:
                body = copy.deepcopy(original)
                body["signature"][name] = other
                store(out, body)
                assert says(verify(out), f"expected canonical base64 of {length} bytes"), other
        # The other half of the group order added to S is the same equation, and another signature.
        raw = base64.b64decode(original["signature"]["value"])
        larger = int.from_bytes(raw[32:], "little") + edwards.ORDER
        body = copy.deepcopy(original)
        body["signature"]["value"] = base64.b64encode(
            raw[:32] + larger.to_bytes(32, "little")
        ).decode()
        store(out, body)
        assert says(verify(out), "the signature does not fit")
        for changes in (
            {"algorithm": "none"},
            {"algorithm": "ED25519"},
            {"algorithm": None},
            {"extra": 1},
        ):
            # Signed as it stands by the holder of the key: what is unknown is refused all the same.
            body = {**original, "signature": {**original["signature"], **changes}}
            who = {name: value for name, value in body["signature"].items() if name != "value"}
            value = signing.read_private(key).sign(keys.bytes_to_sign(original, who))
            body["signature"]["value"] = base64.b64encode(value).decode()
            store(out, body)
            assert says(
                verify(out),
                "the signature's algorithm"
                if "algorithm" in changes
                else "the signature has other",
            )


@check
def check_private_keys_stay_private() -> None:
    with workplace() as place:
        before = os.umask(0)
        try:
            path = key_in(place)
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for taken, other in ((path, Path(f"{path}.pub")), (Path(f"{path}.pub"), path)):
            content = taken.read_bytes()
            other.unlink()
            must_raise(BadInput, lambda: signing.make(path))
            assert taken.read_bytes() == content
            assert not other.exists()
            taken.unlink()
            key_in(place)
        (place / "link").symlink_to(place / "elsewhere")
        must_raise(BadInput, lambda: signing.make(place / "link"))
        assert not (place / "elsewhere").exists()
        key = signing.read_private(key_in(place, "another"))
        assert key.warnings == ()
        raw = b"".join((place / "another").read_bytes().splitlines()[1:-1]).decode()
        assert raw[20:] not in repr(key)
        (place / "another").chmod(0o640)
        assert "can be read by others" in signing.read_private(place / "another").warnings[0]
        out = published(place, sign=signing.read_private(place / "another"))
        for file in out.iterdir():
            assert raw[20:].encode() not in file.read_bytes()


@check
def check_the_card_says_what_is_certified() -> None:
    """The card's header is the claim's, to the letter: nothing can be slipped in before, between or
    behind.
    """
    with workplace() as place:
        key = key_in(place)
        out = published(place, sign=key)
        text = (out / "README.md").read_text()
        assert verify(out).signed_by in text.split("---")[1]
        unsigned = published(place, "unsigned")
        card = (unsigned / "README.md").read_text()
        assert "signed_by" not in card
        for old, new in (
            ("epsilon: ", "epsilon: 0.1\nepsilon: "),
            ("---\n\n#", "epsilon: 0.1\n---\n\n#"),
            ("delta: 1e-05", "delta: 1e-06"),
            ("add_remove", "zero_out"),
            ("---\nlib", "\n---\nlib"),
            ("---\n\n#", '"epsilon": 0.1\n---\n\n#'),
            ("---\n\n#", "signed_by: SHA256:of-somebody\n---\n\n#"),
            ("---\n\n#", "x: y\u2028epsilon: 0.1\n---\n\n#"),
        ):
            assert old in card
            (unsigned / "README.md").write_text(card.replace(old, new, 1))
            forge(unsigned, body_of(unsigned))
            assert says(verify(unsigned), "README.md does not begin with what is certified"), new


@check
def check_an_adapters_card_names_what_its_configuration_says() -> None:
    """PEFT as the library, and the base model of the configuration; a name that is none of a hub's
    is left out. `verify` takes nothing else before the claim.
    """
    from safetensors.torch import save

    def adapter(base: str) -> dict[str, bytes]:
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base}
        return {
            folder.ADAPTER: save({"weight": torch.zeros(2)}),
            folder.ADAPTER_CONFIG: json.dumps(config).encode(),
        }

    with workplace() as place:
        plain = {"model_spec": None, "classes": None}
        out = published(place, weights=adapter("owner/base"), **plain)
        assert verify(out).ok
        card = (out / "README.md").read_text()
        assert card.startswith("---\nlibrary_name: peft\nbase_model: owner/base\ntags:")
        assert "privlearn predict" not in card + (out / "card.html").read_text()
        for old, new, fits in (
            ("library_name: peft", "library_name: other", False),
            ("library_name: peft", "library_name: transformers", False),
            ("base_model: owner/base", "base_model: owner/base\nepsilon: 0.1", False),
            ("base_model: owner/base", "base_model: owner/base\nbase_model: a", False),
            ("base_model: owner/base", "base_model: {epsilon: 0.1}", False),
            ("base_model: owner/base", "base_model:\n  epsilon: 0.1", False),
            ("---\nlib", "\n---\nlib", False),
            ("delta: 1e-05", "delta: 1e-06", False),
            # as folders were published before
            ("library_name: peft\nbase_model: owner/base", "library_name: privlearn", True),
        ):
            (out / "README.md").write_text(card.replace(old, new, 1))
            forge(out, body_of(out))
            said = says(verify(out), "README.md does not begin with what is certified")
            assert said is not fits, new
        for number, base in enumerate(("", "a\nepsilon: 0.1", "../base", "a b", "x" * 300)):
            out = published(place, f"model{number}", weights=adapter(base), **plain)
            assert verify(out).ok
            head = (out / "README.md").read_text()
            assert head.startswith("---\nlibrary_name: peft\ntags: [differential-privacy]\nepsilon")


@check
def check_the_page_says_what_is_certified() -> None:
    """So does the page: its first lines are the claim's, with the key that signs, and nothing
    before or between.
    """
    with workplace() as place:
        key = key_in(place)
        out = published(place, sign=key)
        signer = verify(out).signed_by
        original = (out / "card.html").read_text()
        assert original.count(f'<meta name="signed_by" content="{signer}">') == 1
        for old, new in (
            ("<!DOCTYPE", "<!-- epsilon 0.1 --><!DOCTYPE"),
            ('content="1e-05"', 'content="1e-06"'),
            ('<meta name="epsilon"', '<meta name="epsilon" content="0.1"><meta name="epsilon"'),
            ("<title>A model", "<title>Epsilon 0.1. A model"),
            (f' content="{signer}"', ' content="someone"'),
        ):
            assert old in original
            (out / "card.html").write_text(original.replace(old, new, 1))
            body = {name: value for name, value in body_of(out).items() if name != "signature"}
            forge(out, body)
            store(out, signing.sign(body_of(out), signing.read_private(key)))
            assert says(verify(out), "card.html does not begin with what is certified"), new
            assert not says(verify(out), "README.md"), new


@check
def check_folders_from_before_the_page_verify() -> None:
    """A folder without the page is whole if its certificate does not speak of one, and only
    then.
    """
    with workplace() as place:
        out = published(place)
        page = (out / "card.html").read_bytes()
        (out / "card.html").unlink()
        assert verify(out).problems == ["card.html is missing"]
        body = body_of(out)
        del body["files"]["card.html"]
        forge(out, body)
        assert verify(out).ok
        pv.load_model(out)
        (out / "card.html").write_bytes(page)
        assert says(
            verify(out),
            "does not speak of exactly model.safetensors, config.json, card.html and README.md",
        )


@check
def check_a_certificate_has_one_reading() -> None:
    """Nothing that two readers could read differently is read at all."""
    with workplace() as place:
        out = published(place)
        text = (out / "privacy.json").read_text()
        for old, new in (
            ('"epsilon": ', '"epsilon": 0.1, "epsilon": '),
            ('"claim": {', '"claim": {}, "claim": {'),
            ('"count": ', '"count": NaN, "kount": '),
            ('"count": ', '"count": 1' + "0" * 30 + ', "kount": '),
            ('"format"', '"certified_by": "somebody", "format"'),
            ('"version": 2', '"version": 1'),
            ('"version": 2', '"version": true'),
            ('"version": 2', '"version": 2.0'),
            ("{", "[{"),
            ("{", "\ufeff{"),
            ('"facts": {', '"facts": {"a": ' + "[" * 100 + "]" * 100 + ", "),
            ('"events"', '"\\u0065vents": {}, "events"'),
        ):
            assert old in text
            (out / "privacy.json").write_text(text.replace(old, new, 1))
            must_raise(BadInput, lambda: verify(out))
        for extra in (
            {"digests": {**body_of_text(text)["digests"], "more": ""}},
            {"digests": None},
            {"files": {}},
            {"randomness": "dice"},
            {"claim": []},
            {"facts": 7},
            {"plan": 7},
        ):
            body = {**body_of_text(text), **extra}
            if "digests" not in extra:
                body["digests"] = {
                    part: certificate.digest(body[part]) for part in certificate.PARTS
                }
            store(out, body)
            assert not verify(out).ok, extra


def body_of_text(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def _swapped_after_the_check(change: Callable[[], None]) -> Any:
    """Let `change` happen right after a folder was checked, before it is used."""
    true_check = model.verify_contents

    def late(*arguments: Any) -> Verification:
        found = true_check(*arguments)
        change()
        return found

    return mock.patch.object(model, "verify_contents", late)


@check
def check_what_is_loaded_is_what_was_checked() -> None:
    with workplace() as place:
        out = published(place)
        truth = pv.load_model(out).state_dict()
        weights = (out / "model.safetensors").read_bytes()
        other = weights[:-1] + bytes([weights[-1] ^ 0x40])
        with _swapped_after_the_check(
            lambda: (out / "model.safetensors").write_bytes(other) and None
        ):
            must_raise(CertificateMismatch, lambda: pv.load_model(out))
        with _swapped_after_the_check((out / "model.safetensors").unlink):
            must_raise(CertificateMismatch, lambda: pv.load_model(out))
        (out / "model.safetensors").write_bytes(weights)
        config = (out / "config.json").read_text().replace('"linear"', '"mlp:3"')
        with _swapped_after_the_check(lambda: (out / "config.json").write_text(config) and None):
            found = pv.load_model(out)
        assert found.config["model"] == "linear"
        for name, value in found.state_dict().items():
            assert torch.equal(value, truth[name])


@check
def check_a_published_model_predicts_as_the_trained_one() -> None:
    """Loaded with the publisher's key: the same scores, its shape and classes; rows of another
    shape are refused.
    """
    plan = pv.Plan(sampling.Poisson(0.25), epochs=2, examples=1000).calibrate(
        epsilon=3.0, delta=1e-5
    )
    x, y = small_data()
    build = lambda shape: networks.build("linear", shape, 3, streams.Streams.new(0).initialisation)  # noqa: E731
    trained = pv.dpsgd(plan, build, cross_entropy, (x.float(), y), streams=streams.Streams.new(0))
    with workplace() as place:
        key = key_in(place)
        pv.publish(trained, place / "model", model_spec="linear", classes=3, sign=key)
        model = pv.load_model(place / "model", trusted=f"{key}.pub")
    rows = torch.linspace(-1, 1, 20).reshape(4, 5)
    with torch.no_grad():
        scores = trained.model(rows)
        assert torch.equal(model(rows), scores)
    assert torch.equal(model.predict(rows), scores.argmax(1))
    assert (model.input_shape, model.classes, model.training) == ((5,), 3, False)
    assert model.verification.ok
    assert "this model takes (5,)" in str(must_raise(BadInput, lambda: model(rows[:, :4])))


@check
def check_certificates_of_the_first_version_are_refused() -> None:
    """They carried no plan: the message says so."""
    with workplace() as place:
        out = published(place)
        body = body_of(out)
        store(out, {**body, "version": 1, "event": body["events"], "settings": {}})
        assert "version 2 alone" in str(must_raise(BadInput, lambda: verify(out)))


@check
def check_a_network_gets_no_memory_before_it_fits() -> None:
    """A certified configuration may ask for anything; what does not fit the weights is never laid
    out in memory.
    """
    with workplace() as place:
        out = published(place)
        config = json.loads((out / "config.json").read_text())
        true_build, devices = networks.build, set()

        def watched(*arguments: Any) -> Any:
            built = true_build(*arguments)
            devices.update(parameter.device.type for parameter in built.parameters())
            return built

        content = (out / "model.safetensors").read_bytes()
        for changes in (
            {"model": "mlp:3000"},
            {"classes": 5000},
            {"network_input_shape": [100, 100]},
        ):
            with mock.patch.object(networks, "build", watched):
                must_raise(
                    BadInput, lambda changes=changes: _rebuild({**config, **changes}, content)
                )  # type: ignore[misc]
        assert devices == {"meta"}
        for changes in (
            {"model": "mlp:100000000000,100000000000"},
            {"model": "mlp:" + ",".join(["1"] * 5000)},
            {"classes": 10**9},
            {"classes": True},
            {"classes": 2.0},
            {"classes": -1},
            {"input_shape": [10**9, 10**9]},
            {"input_shape": "5"},
            {"input_shape": [1] * 9},
            {"network_input_shape": [0]},
            {"network_input_shape": [5.0]},
            {"model": ["linear"]},
            {"transforms": [{"kind": "scale", "shape": []}] * 9},
            {"transforms": [{"kind": "pca", "shape": [10**6, 10**6]}]},
            {"transforms": [{"kind": "os", "shape": []}]},
            {"transforms": {}},
            {"transforms": [None]},
        ):
            must_raise(BadInput, lambda changes=changes: _rebuild({**config, **changes}, content))  # type: ignore[misc]
        _rebuild(config, content)


def _rebuild(config: dict[str, Any], content: bytes) -> None:
    parsed = published_model.parse(json.dumps(config).encode())
    published_model.rebuild(parsed, parsed["model"], content)


@check
def check_a_failed_write_leaves_nothing() -> None:
    """A full disk, at whichever file: no folder, no draft, no folder above it that was not
    there.
    """
    with workplace() as place:
        for fails_at in range(4):
            for call in ("os.fsync", "pathlib.Path.rename"):
                calls = iter(range(100))

                def full(
                    *_: Any, calls: Iterator[int] = calls, last: int = fails_at, call: str = call
                ) -> None:
                    if call != "os.fsync" or next(calls) == last:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

                with mock.patch(call, full):
                    error = must_raise(BadInput, lambda: published(place, "a/b/model"))
                assert "No space left on device" in str(error)
                assert list(place.iterdir()) == []
        (place / "a").mkdir()
        with mock.patch("os.fsync", side_effect=KeyboardInterrupt):
            must_raise(KeyboardInterrupt, lambda: published(place, "a/b/model"))  # type: ignore[arg-type]
        assert list((place / "a").iterdir()) == []
        for name in ("key", "key.pub"):
            calls = iter(range(100))

            def full_at(
                *_: Any, calls: Iterator[int] = calls, last: int = int(name == "key.pub")
            ) -> None:
                if next(calls) == last:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            with mock.patch("os.fsync", full_at):
                must_raise(BadInput, lambda: signing.make(place / "key"))
            assert [path.name for path in place.iterdir()] == ["a"]


@check
def check_nothing_published_is_overwritten() -> None:
    with workplace() as place:
        (place / "file").write_text("precious")
        (place / "folder").mkdir()
        (place / "dangling").symlink_to(place / "nowhere")
        for name in (
            "file",
            "folder",
            "dangling",
            "",
            ".",
            "..",
            "new/..",
            "a\0b",
            "x" * 300,
            "file/below",
        ):
            must_raise(
                BadInput, lambda name=name: new_folder.require_free(place / name if name else name)
            )  # type: ignore[misc]
            must_raise(PrivlearnError, lambda name=name: published(place, name))  # type: ignore[misc]
        assert (place / "file").read_text() == "precious"
        assert sorted(path.name for path in place.iterdir()) == ["dangling", "file", "folder"]
        # What appears while the files are being written is not overwritten either.
        true_rename = Path.rename

        def late(draft: Path, target: Path) -> Path:
            target.mkdir()
            (target / "theirs").write_text("precious")
            return true_rename(draft, target)

        with mock.patch("pathlib.Path.rename", late):
            must_raise(BadInput, lambda: published(place, "contested"))
        assert [path.name for path in (place / "contested").iterdir()] == ["theirs"]


@check
def check_a_loaded_model_says_whether_it_gives_classes() -> None:
    """Or values, of which there is one."""
    with workplace() as place:
        loaded = model.load_model(published(place))
        assert ", 3 classes" in str(loaded._summary())
        loaded.classes = 1
        assert ", values" in str(loaded._summary())
        assert "1 classes" not in str(loaded._summary())
