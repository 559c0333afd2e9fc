"""Planted bugs in what is published, signed and read back, each of which a named check must
catch.
"""

from __future__ import annotations

from privlearn import _storage
from privlearn.publishing import (
    certificate,
    folder,
    keys,
    libraries,
    model,
    new_folder,
    signing,
    verify,
)
from tests.support.mutant import Mutant, suite_of

BASE = "check_an_adapters_card_names_what_its_configuration_says"
MUTANTS = [
    Mutant(
        "any signature fits",
        keys.PublicKey.fits,
        "return False",
        "return True",
        "check_a_signature_covers_every_part",
    ),
    Mutant(
        "the claim alone is signed",
        keys.bytes_to_sign,
        "{**certificate, ",
        '{**{"claim": certificate["claim"]}, ',
        "check_a_signature_covers_every_part",
    ),
    Mutant(
        "the hashes of files are not signed",
        keys.bytes_to_sign,
        "{**certificate, ",
        '{**{k: v for k, v in certificate.items() if k not in ("files", "digests")}, ',
        "check_swapped_files_are_found",
    ),
    Mutant(
        "the facts are not signed",
        keys.bytes_to_sign,
        "{**certificate, ",
        '{**{k: v for k, v in certificate.items() if k not in ("facts", "digests")}, ',
        "check_a_signature_covers_every_part",
    ),
    Mutant(
        "the plan is not signed",
        keys.bytes_to_sign,
        "{**certificate, ",
        '{**{k: v for k, v in certificate.items() if k not in ("plan", "digests")}, ',
        "check_a_signature_covers_every_part",
    ),
    Mutant(
        "no prefix of its own",
        keys.bytes_to_sign,
        "_PREFIX + ",
        "",
        "check_a_signature_does_not_move",
    ),
    Mutant(
        "a missing signature passes for a trusted one",
        verify._signature,
        "if trusted else []",
        "if False else []",
        "check_a_stripped_signature_is_found",
    ),
    Mutant(
        "a signature that is null counts as none",
        keys.signer_of,
        'if "signature" not in certificate:',
        'if not certificate.get("signature"):',
        "check_a_stripped_signature_is_found",
    ),
    Mutant(
        "any key is the one that was given",
        verify._signature,
        "signer.raw != trusted.raw",
        "False",
        "check_another_key_is_found",
    ),
    Mutant(
        "loading does not ask for the key",
        model.load_model,
        "verify_contents(contents, key)",
        "verify_contents(contents)",
        "check_another_key_is_found",
    ),
    Mutant(
        "keys of small order pass",
        keys.PublicKey.__post_init__,
        "height in _SMALL_ORDER",
        "height == 1",
        "check_keys_of_small_order_are_refused",
    ),
    Mutant(
        "keys have two spellings",
        keys.PublicKey.__post_init__,
        "height >= _PRIME",
        "False",
        "check_keys_of_small_order_are_refused",
    ),
    Mutant(
        "spare bits of base64 are not looked at",
        keys.decoded,
        "base64.b64encode(raw).decode() != text",
        "False",
        "check_signatures_have_one_spelling",
    ),
    Mutant(
        "any algorithm",
        keys.signer_of,
        'signature["algorithm"] != ALGORITHM',
        "False",
        "check_signatures_have_one_spelling",
    ),
    Mutant(
        "keys as the umask likes them",
        signing.make,
        "0o600",
        "0o644",
        "check_private_keys_stay_private",
    ),
    Mutant(
        "keys are overwritten",
        signing._write_new,
        "os.O_EXCL",
        "os.O_TRUNC",
        "check_private_keys_stay_private",
    ),
    Mutant(
        "the cards may name another key",
        certificate._in_front,
        "if signed_by else {}",
        "if False else {}",
        "check_the_card_says_what_is_certified",
    ),
    Mutant(
        "the cards' heads are not compared",
        verify._card_contradictions,
        "name in contents.files and",
        "False and",
        "check_the_card_says_what_is_certified",
    ),
    Mutant(
        "a card may say anything of who loads the model",
        verify._card_contradictions,
        '_LIBRARY.sub(rb"\\1privlearn", contents.files[name], count=1)',
        're.sub(rb"\\A(---.library_name: ).*?(?=.tags)", rb"\\1privlearn", contents.files[name], '
        "flags=re.DOTALL)",
        BASE,
    ),
    Mutant(
        "a base model's name may be any text",
        libraries.library_of,
        "and _HUB.fullmatch(base)",
        "",
        BASE,
    ),
    Mutant(
        "an adapter's card leaves out its base model",
        libraries.with_library,
        "if library.base_model is None else",
        "if True else",
        BASE,
    ),
    Mutant(
        "the page's head is not compared",
        verify._card_contradictions,
        ", (PAGE, page_head(*figures))",
        ",",
        "check_the_page_says_what_is_certified",
    ),
    Mutant(
        "the last of two keys counts",
        _storage._without_duplicates,
        "len(read) != len(pairs)",
        "False",
        "check_a_certificate_has_one_reading",
    ),
    Mutant(
        "strange fields are passed over",
        certificate.parse,
        'if not _FIELDS <= set(data) <= _FIELDS | {"signature"}:',
        "if not _FIELDS <= set(data):",
        "check_a_certificate_has_one_reading",
    ),
    Mutant(
        "weights are read again unchecked",
        folder.content,
        "hashlib.sha256(read_now).hexdigest() != contents.digests.get(name)",
        "False",
        "check_what_is_loaded_is_what_was_checked",
    ),
    Mutant(
        "the configuration is read again",
        model.load_model,
        "parse(contents.files[CONFIG])",
        "parse((Path(where) / CONFIG).read_bytes())",
        "check_what_is_loaded_is_what_was_checked",
    ),
    Mutant(
        "networks are built before they fit",
        model.rebuild,
        '"meta" if known else "cpu"',
        '"cpu"',
        "check_a_network_gets_no_memory_before_it_fits",
    ),
    Mutant(
        "drafts stay behind",
        new_folder.write,
        "shutil.rmtree(draft, ignore_errors=True)",
        "pass",
        "check_a_failed_write_leaves_nothing",
    ),
    Mutant(
        "half a pair of keys stays behind",
        signing.make,
        "path.unlink()",
        "pass",
        "check_a_failed_write_leaves_nothing",
    ),
    Mutant(
        "dangling links count as free",
        new_folder.require_free,
        "path.lstat()",
        "path.stat()",
        "check_nothing_published_is_overwritten",
    ),
    Mutant(
        "a model of values has one class",
        model.PublishedModel._summary,
        "self.classes > 1",
        "self.classes >= 1",
        "check_a_loaded_model_says_whether_it_gives_classes",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
