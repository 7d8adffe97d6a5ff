"""Names of preflight itself are not redacted: fields of facts, events and reports, kernel settings, packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from preflight._util.redaction import HIDDEN, redact_tree
from preflight._util.secret_names import is_secret

ROOT = Path(__file__).parents[1]
#: Fields that contain a secret, or never contain text.
SECRETS = {
    "X-aws-ec2-metadata-token": "a header of a request to a cloud",
    "Authorization": "a header of a request to GitHub",
    "PRIVATE-TOKEN": "a header of a request to GitLab",
    "path_token": "of the admission webhook; in no report",
    "secret": "of one smoke run; in no request that is recorded",
    "token": "by which the two ends of a link know each other",
    "secrets": "the words that `sources.secrets` hides",
    "automountServiceAccountToken": "a boolean of Kubernetes",
    "pass": "a counter of Paddle's servers",
    "hasKey": "the name of a function of Go templates",
    "imagePullSecrets": "names of Kubernetes objects",
}


def names_in(path: Path) -> Iterator[str]:
    """Fields of classes, keys of objects, and keys that are looked up."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield item.target.id
        elif isinstance(node, ast.Dict):
            yield from (key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            yield from (key for key in (node.slice.value,) if isinstance(key, str))


@pytest.mark.parametrize("folder", ["checks", "reference_trainer", "rules", "preflight"])
def test_our_own_fields_are_not_secrets(folder: str) -> None:
    found = {
        name: path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / folder).rglob("*.py"))
        # Its tables contain names of other projects.
        if path.name != "secret_names.py"
        for name in names_in(path)
        if is_secret(name) and name not in SECRETS
    }
    assert found == {}


#: Settings of Linux 6.x under /proc/sys and of common modules whose names contain a word that suggests a secret.
SETTINGS = (
    *("kernel.keys.gc_delay", "kernel.keys.maxbytes", "kernel.keys.maxkeys", "kernel.keys.root_maxkeys"),
    *("kernel.keys.persistent_keyring_expiry", "net.core.netdev_rss_key", "net.ipv4.tcp_syncookies"),
    *("net.netfilter.nf_conntrack_sctp_timeout_cookie_echoed", "net.netfilter.nf_conntrack_sctp_timeout_cookie_wait"),
    *("net.sctp.auth_enable", "net.sctp.cookie_hmac_alg", "net.sctp.cookie_preserve_enable"),
    *("net.sctp.valid_cookie_life", "sunrpc.auth_hashtable_size", "sunrpc.auth_max_cred_cachesize"),
    *("usbcore.authorized_default", "module.sig_enforce", "vm.compact_unevictable_allowed", "kernel.sysrq"),
    *("fs.protected_hardlinks", "net.ipv4.conf.all.accept_redirects", "dm_crypt.max_read_size", "nvme_core.io_timeout"),
)
PACKAGES = {
    "tiktoken": "0.7.0",
    "google-auth": "2.29.0",
    "keyring": "24.3.1",
    "pyjwt": "2.8.0",
    "oauthlib": "3.2.2",
    "secretstorage": "3.3.3",
    "google-auth-oauthlib": "1.2.0",
    "passlib": "1.7.4",
    "tokenizers": "0.19.1",
    "azure-keyvault-secrets": "4.8.0",
    "detect-secrets": "1.5.0",
    "http-cookiejar": "0.1",
    "token": "1.0rc1",
    "flash-attn-token": "2.5.8+cu121torch2.3",
    "bitsandbytes-key": "0.43.1.post1",
    "django-auth": "5.0.dev20240101",
}
WORDS = {
    "max_tokens": "4k",
    "sort_keys": "true",
    "request_key": "a|b",
    "run_key": "smoke a",
    "num_tokens": "1e9",
    "pad_token": "<pad>",
    "keys": "a b",
    "tokenizer": "gpt2",
    "auth_method": "munge",
    "password_required": "no",
}


def test_kernel_settings_are_shown() -> None:
    values = dict.fromkeys(SETTINGS, "10")
    assert redact_tree({"values": values}) == {"values": values}


def test_differences_of_ordinary_kernel_settings_are_visible() -> None:
    name = "net.netfilter.nf_conntrack_sctp_timeout_cookie_wait"
    assert redact_tree({name: "3"}) != redact_tree({name: "30"})


def test_versions_of_packages_are_shown() -> None:
    assert redact_tree({"distributions": PACKAGES}) == {"distributions": PACKAGES}


def test_words_of_training_are_shown() -> None:
    assert redact_tree(WORDS) == WORDS


@pytest.mark.parametrize(
    "name", ["net.ipv4.tcp_fastopen_key", "wandb.api_key", "password", "HF_TOKEN", "user.password"]
)
def test_secrets_are_still_hidden(name: str) -> None:
    assert redact_tree({name: "hunter2-3-4"}) == {name: HIDDEN}
    assert redact_tree({name: "12345678"}) == {name: HIDDEN}
