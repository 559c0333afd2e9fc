"""The options of commands on published folders: `verify`, `export` and `key`."""

from __future__ import annotations

from dataclasses import replace

from privlearn.cli.option import Option, group_of
from privlearn.publishing.forms import form_names

LEDGER_DATA = Option(
    "ledger-data",
    "NAME",
    "with --ledger: the data set that the rows are of, where it holds several",
    argument="data_set",
)
_TRUST = Option(
    "trust-config",
    "FILE",
    "the trust configuration of a Sigstore of your own (default: the public one)",
)
_ENVELOPES = group_of(
    "signatures around the folder (docs/envelopes.md)",
    ("verify",),
    Option("bundle", "FILE", "an envelope that lies elsewhere than in the folder"),
    Option("public-key", "FILE", "the key that must have signed an envelope"),
    Option("identity", "WHO", "who must have signed it, as Sigstore certifies: an e-mail address"),
    Option("identity-provider", "URL", "who vouched for that, as https://accounts.google.com"),
    _TRUST,
)
_EXPORT = group_of(
    None,
    ("export",),
    Option("to", "FORM", f"the form: {', '.join(form_names())}", argument="form", needed=True),
    Option("out", "FILE", "in place of standard output; it must not be there yet"),
    Option("sign", "KEY", "sign with this private key (in-toto, model-signing)"),
    Option(
        "keyless",
        None,
        "sign with an identity that Sigstore certifies and logs; needs a network",
        bool,
        False,
    ),
    _TRUST,
    Option("about", "F.toml", "what the certificate does not hold, for cyclonedx and registry"),
)
FOLDERS = (
    Option(
        "folder",
        "DIR",
        "a published model, a declared run (which certify wrote), or hf://owner/name[@revision] "
        "on the Hugging Face Hub",
        commands=("verify",),
        flag=False,
    ),
    Option("folder", "DIR", "a published model", commands=("predict", "export"), flag=False),
    Option(
        "ledger",
        "FILE",
        "say where in this ledger the folder was published; refuse it if nowhere",
        commands=("verify",),
    ),
    replace(LEDGER_DATA, commands=("verify",)),
    Option(
        "key",
        "PUBLIC",
        "the publisher's public key, which must have signed it",
        commands=("verify", "predict"),
    ),
    *_ENVELOPES,
    *_EXPORT,
    Option(
        "file",
        "FILE",
        "for the private key, which must not be there yet; the public one: FILE.pub",
        commands=("key",),
        flag=False,
    ),
)
