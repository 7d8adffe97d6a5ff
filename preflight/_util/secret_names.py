"""Decides whether a name is the name of a secret, and whether a value looks like a secret or can be shown.

The module is sent to nodes: Python 3.8 and the standard library.
"""

from __future__ import annotations

import functools
import re

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: A name with one of these words is that of a secret, unless a word of `_DESCRIBING_WORDS` ends it.
_STRONG = _words(
    """
    token secret secrets password passwords passwd passphrase passcode pwd apikey credential credentials cred
    creds authorization bearer cookie cookies signature dsn webhook webhooks jwt psk connstr connectionstring totp
    pem sas fernet
    """
)
#: Ends of words without a separator: `HFTOKEN`, `dbpassword`.
_ENDS = ("token", "secret", "password", "passwd", "passphrase", "apikey", "credential", "credentials", "creds")
_ENDS_OF_SOME = ("pass", "pw", "pwd", "auth", "key", "pat", "dsn", "cred")
#: Words that make the following one, or the rest of the same one, a secret: `API_KEY`, `SSHPASS`, `dbpw`.
_OWNERS = _words(
    """
    api access secret private ssh license account storage wandb encryption signing auth master shared app
    application service client consumer registry docker db database pg postgres mysql sql redis mongo ftp smtp
    mail imap ldap user usr root admin my sudo http https proxy svn git gh github gitlab hf hub ngc aws azure gcp
    s3 minio rabbit rabbitmq vnc rdp ro openai anthropic comet neptune clearml mlflow slack sentry datadog dd
    login keystore truststore key store cert ssl tls host vault jira nexus pypi npm kafka sasl elastic es grafana
    influx basic become o session
    """
)
#: Last words of names that describe a secret, or its location, and not the secret itself.
_DESCRIBING_WORDS = _words(
    """
    path file files filename dir directory folder location url uri endpoint name names id ids type types mode
    method methods policy enabled required timeout ttl expiry expires lifetime length len size count limit budget
    dim dropout prefix suffix format version header helper provider plugin port host user username algorithm algo
    scheme manager agent backend level ref dispatcher index position embedding embeddings strategy sock socket
    selector keyref rotation interval s ms stdin prompt class module error check ratio rate loss weight mask idx
    num needed optional verify mount volume alg enable life cachesize hashtable hashsize delay retries echoed wait
    """
)
#: `PAD_TOKEN`, `--max-token`: a token of a text, not of an account.
_TEXT_TOKEN_WORDS = _words(
    """
    pad eos bos unk sep cls mask special max min num n per image video audio new start end stop begin think tool
    first last next prev class register query text prompt input output total avg mean moe sink padding delimiter
    boundary eot eod fim patch latent vision speech word
    """
)
#: `sort_key`, `--text-key`: a key of a table, not of a lock.
_TABLE_KEY_WORDS = _words(
    """
    sort data image images text texts label labels input inputs output primary foreign partition cache prompt
    response join group dict json state map query index lookup public pub hot short column feature target audio
    video caption num routing value metric monitor munge config arg option param env field message messages
    content role id name dataset sample reward chosen rejected by per any press topology model weight checkpoint
    batch loss score tag url file system user_defined item record node mapping rng random prng kv request run
    event step report check rss row entry object cell span annotation answer question instruction conversation
    history match unique
    """
)
#: `forward_pass`, `num_pass`.
_PASS_COUNT_WORDS = _words(
    """
    forward backward fwd bwd first second one two single multi num max min n per each last by compute this next
    dry all test tests eval train current to low high band optimizer did is
    """
)
#: Words that are sometimes written apart.
_SPLIT = frozenset(
    (("pass", "phrase"), ("pass", "word"), ("pass", "words"), ("pass", "wd"), ("pass", "code"), ("web", "hook"))
)
#: Names of access tokens; any other `pat` is a pattern.
_ACCESS_TOKEN_WORDS = frozenset(
    ("github", "gh", "gitlab", "git", "azure", "ado", "devops", "databricks", "snowflake", "user")
)
#: Services whose secret key is called `SK`, beside an `AK`.
_SECRET_KEY_OWNERS = frozenset(
    ("oss", "cos", "obs", "tos", "bos", "s3", "ak", "aws", "ali", "aliyun", "huawei", "volc", "bce", "my")
)
_SHELL_VARIABLES = frozenset(("PWD", "OLDPWD", "SSH_AUTH_SOCK", "ssh_auth_sock", "KEYBOARD", "keyboard"))
#: Values that are never secret, regardless of their name.
_PLAIN = {""} | _words(
    """
    true false none null nil yes no on off auto default required str optional string bytes int float bool any
    munge auth/munge basic oauth set bearer unset redacted disabled enabled missing empty store_true undefined ...
    """
)
#: A node sends this instead of a secret, so that nodes can be compared: the beginning of a keyed hash.
KEYED_HASH = "hmac-sha256:"
_KEYED_HASH = re.compile(re.escape(KEYED_HASH) + r"[0-9a-f]{16}\Z")


@functools.lru_cache(maxsize=16384)
def is_secret(name: str) -> bool:
    """Return whether a variable, option or key with this name probably contains a secret."""
    bare = name[:200].strip("-+")
    if bare in _SHELL_VARIABLES:
        return False
    words: list[str] = []
    for word in _WORD.findall(bare):
        if words and (words[-1], word.casefold()) in _SPLIT:
            words[-1] += word.casefold()
        else:
            words.append(word.casefold())
    while len(words) > 1 and (
        words[-1].isdecimal() or words[-1] in ("value", "val", "str", "env", "var", "b64", "base64")
    ):
        if words[-1] == "str" and words[-2] in ("connection", "conn"):
            return True
        words.pop()
    if not words:
        return False
    last = words[-1]
    if len(words) > 1 and last in _DESCRIBING_WORDS:
        # A webhook's address is its secret; an id of some keys is half of it.
        return (
            ("webhook" in words and last in ("url", "uri"))
            or ("sas" in words and last in ("url", "uri"))
            or words[-2:] == ["secret", "id"]
            or words[-3:] == ["access", "key", "id"]
        )
    return any(_is_secret_word(words, index, name) for index in range(len(words)))


def _is_secret_word(words: list[str], index: int, name: str) -> bool:
    word = words[index]
    before = words[index - 1] if index else ""
    after = words[index + 1] if index + 1 < len(words) else ""
    if word == "token" or word.endswith("token"):
        return not (
            before in _TEXT_TOKEN_WORDS
            or word[:-5] in _TEXT_TOKEN_WORDS
            or after in _DESCRIBING_WORDS
            or after in ("drop", "parallel")
        )
    if word in _STRONG:
        return not (word in ("pem", "sas", "psk") and after) and after not in ("manager", "helper")
    if word.endswith(_ENDS):
        return True
    if word == "key":
        if not before:
            return not after and (name.isupper() or name.startswith("--"))
        return before in _OWNERS or (not after and before not in _TABLE_KEY_WORDS)
    if word == "auth":
        return after not in ("sock", "munge") and before != "x"
    if word in ("pass", "pw"):
        return not after and before not in _PASS_COUNT_WORDS
    if word == "pat":
        return not after and (not before or before in _ACCESS_TOKEN_WORDS)
    if word == "sig":
        return len(words) == 1
    if word == "sk":
        return not after and (not before or before in _SECRET_KEY_OWNERS)
    if word == "string":
        return before in ("connection", "conn")
    if word == "private":
        return len(words) == 1
    return any(word.endswith(end) and word[: -len(end)] in _OWNERS for end in _ENDS_OF_SOME)


def is_plain(name: str, value: str) -> bool:
    """Return whether the value of a possibly secret name can be shown: a reference, a switch, a path, a hash."""
    value = value.strip()
    if value.casefold() in _PLAIN or value.strip("*") == "" or _KEYED_HASH.match(value):
        return True
    if value.startswith(("$", "{{", "%(", "<", "@@", "!")) or value.endswith("}}"):
        return True
    if value.startswith(("/", "./", "../", "~/")) and not value.startswith("//") and " " not in value:
        words = _WORD.findall(name)
        return bool(words) and words[-1].casefold() not in ("password", "passwd", "token", "secret", "passphrase")
    return False


def looks_random(value: str) -> bool:
    """Return whether a string looks like a key or password: long, in one piece, with letters and digits."""
    return (
        len(value) >= 8
        and any(letter.isdecimal() for letter in value)
        and any(letter.isalpha() for letter in value)
        and not _NOT_PASSWORDS.search(value)
    )


_NOT_PASSWORDS = re.compile(r"[\s/(){}<>]|^\w+\.\w+\.\w+$|^v?\d+\.\d+|^[a-z]+(?:[-_][a-z]+)*[-_]?\d{1,3}$")
