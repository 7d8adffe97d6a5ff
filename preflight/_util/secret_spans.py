"""Finds secrets in text: next to a name, at a position of a known command line, by their form, or in blocks of YAML.

    api_key: !!str X        tokens:           - name: HF_TOKEN       ? password
                              prod: X           value: |-            : X
                                                  X

Every repetition of a pattern is bounded, so that hostile text cannot make a search quadratic. The module is sent to
nodes: Python 3.8 and the standard library.
"""

from __future__ import annotations

import functools
import re

from preflight._util.secret_names import is_plain, is_secret, looks_random

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from re import Match, Pattern

#: One line: its indentation with the dashes of items, a key, and what follows the colon.
_LINE = re.compile(
    r"(?P<indent>[ \t]{0,200}(?:-[ \t]{1,20}){0,10})"
    r"(?:(?P<key>\"(?:[^\"\\\n]|\\.){1,200}\"|'[^'\n]{1,200}'|[A-Za-z_.][\w.-]{0,200})"
    r"[ \t]{0,20}:(?=\s|$)[ \t]{0,200})?"
    r"(?P<tags>(?:[!&][^\s]{0,200}[ \t]{1,20}){0,3})(?P<rest>[^\n]{0,4000})"
)
_COMPLEX_KEY = re.compile(r"[ \t]{0,200}\?[ \t]{1,20}[\"']?(?P<key>[\w.-]{1,200})[\"']?[ \t]{0,200}$")
_COMPLEX_VALUE = re.compile(r"[ \t]{0,200}:[ \t]{1,20}[\"']?(?P<rest>[^\s\"']{1,4000})")
#: A tag, an anchor or the sign of a folded text if the value is on the following lines.
_BELOW = re.compile(r"(?:[!&]\S{0,200})?[ \t]{0,20}(?:[|>][-+0-9]{0,3})?[ \t]{0,20}(?:#.{0,400})?$")
#: Names of tables that may hold secrets or token counts: each value is judged by itself.
_TABLES = ("tokens", "keys")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))")


def in_blocks(text: str) -> Iterator[tuple[int, int]]:
    """Yield the values in blocks of YAML whose names are those of secrets; other lines are skipped."""
    #: The indentation of the name whose block value contains the line; -1 outside of a block.
    owner = -1
    folded = of_table = False
    named = requested = ""
    start = 0
    for line in text.split("\n"):
        begin, start = start, start + len(line) + 1
        if not line.strip():
            continue
        complex_value = _COMPLEX_VALUE.match(line) if requested else None
        if complex_value is not None:
            yield from _value_span(complex_value, begin, requested)
        complex_key = _COMPLEX_KEY.match(line) if "?" in line else None
        requested = complex_key["key"] if complex_key is not None and is_secret(complex_key["key"]) else ""
        match = _LINE.match(line)
        if match is None:
            continue
        indent = len(match["indent"])
        if owner >= 0:
            if indent > owner:
                # `secretKeyRef: {name: ..., key: ...}`, spread over lines: the location of a secret is not a secret.
                about = bool(match["key"]) and not is_secret("secret_" + _decode_key(match["key"]))
                if not about and (not of_table or looks_random(match["rest"].strip().strip("\"'"))):
                    yield from _value_span(match, begin, "" if folded else "secret")
                continue
            owner = -1
        key = _decode_key(match["key"] or "")
        if not key:
            continue
        if key == "name":
            named = match["rest"].strip().strip("\"'")
        secret = is_secret(key) or (key == "value" and is_secret(named))
        of_table = not secret and key.casefold().endswith(_TABLES)
        if (secret or of_table) and _BELOW.match(match["tags"] + match["rest"]):
            # Items may have the same indentation as their key.
            owner, folded = len(line) - len(line.lstrip(" \t")), "|" in match["rest"] or ">" in match["rest"]
        elif secret and (match["tags"] or key != (match["key"] or "").strip("\"'")):
            yield from _value_span(match, begin, key)


def _value_span(match: Match[str], begin: int, name: str) -> Iterator[tuple[int, int]]:
    """Yield the span of a line's value, unless it can be shown; without a name it is part of a longer value."""
    start = match.start("rest")
    value = match["rest"].rstrip()
    bare = value.strip("\"'")
    plain = is_plain(name, bare) or bare.replace(".", "", 1).lstrip("-").isdecimal() if name else not value
    if not plain and (not name or " " not in bare):
        skipped = len(value) - len(value.lstrip("\"'"))
        yield begin + start + skipped, begin + start + skipped + len(bare)


def _decode_key(key: str) -> str:
    bare = key.strip("\"'")
    return _ESCAPE.sub(lambda found: chr(int(found[1] or found[2], 16)), bare) if "\\" in bare else bare


#: A name that is one of these words alone needs a value that looks like a secret, unless `=` is between them.
_WEAK = frozenset(
    ("auth", "pass", "pat", "sig", "key", "cookie", "pw", "signature", "token", "pwd", "sas", "pem", "sk")
)
#: First names of expressions in code: `token=args.token` holds no secret itself.
_EXPRESSION = re.compile(
    r"(?:args?|self|cls|os|cfg|config|conf|opts?|options|settings|env|environ|hparams|flags|params?|kwargs|getpass|sys"
    r"|tokenizer|model|ctx|context|this|request|secrets|vars?|data|local|module|inputs?)(?:\.[A-Za-z_]\w*|\[)",
    re.IGNORECASE,
)
#: Names of secrets that people choose, which may be words; keys and tokens are generated.
_PASSWORD_WORDS = re.compile(r"(?i)pass|pw|secret|cred|auth|cookie|psk")
_NAME = re.compile(r"(?<![\w-])(?P<name>-{0,2}[A-Za-z_][\w.-]{0,200})")
#: The text between a name and its value. `comma` and `gap` are for options, and for quoted names in a call.
_SIGN = re.compile(
    r"(?P<close>\\{0,6}[\"'`]?\]?\)?)"
    r"(?:(?P<annotation>[ \t]*:[ \t]*(?:typing\.)?(?:Optional\[|Final\[|ClassVar\[)?"
    r"(?:str|bytes|SecretStr|Any|Text|Final)\]?"
    r"(?:[ \t]*\|[ \t]*None)?[ \t]*=[ \t]*)"
    r"|(?P<assign>[ \t]*(?::=|\?=|\+=|!=|=>|==?|:(?!:|//))[ \t]*(?:[|>][-+0-9]{0,2}[ \t]*\r?\n[ \t]*|\\\r?\n[ \t]*)?)"
    r"|(?P<default>[ \t]*,[^()\n]{0,300}?\bdefault[ \t]*=[ \t]*)"
    r"|(?P<comma>[ \t]*,[ \t]*(?:\r?\n[ \t]*)?)"
    r"|(?P<item>[ \t]*\r?\n[ \t]*-[ \t]+)"
    r"|(?P<gap>[ \t]*\\\r?\n[ \t]*|[ \t]+(?:\\\r?\n[ \t]*)?(?!\r?\n))"
    r"|(?P<line>[ \t]*\r?\n[ \t]*))"
)
_VALUE = re.compile(
    r"(?:\$(?=['\"])|[rbfuRBFU]{1,2}(?=['\"]))?"
    r"(?:(?P<quote>\\{0,6}[\"'])(?P<quoted>[^\n]{0,4000}?)(?:(?P=quote)|(?=\n)|\Z)"
    r"|\$\{\w{1,100}:?[-=](?P<fallback>[^}\n]{1,1000})\}"
    r"|(?P<bare>(?:[^\s\"'`;&|()\[\]{}<>,]|,(?=[^\s\"'\]}),])|\\[ \"'&;|()])+))"
)
#: A shell word made of several pieces: `"a"b`, `''x`, `'a'\\''b'`.
_PIECES = re.compile(r"(?:\\.|\"[^\"\n]{0,4000}\"|'[^'\n]{0,4000}'|[^\s\"'`;&|()<>{}\[\],\\]){2,}")
_IN_ADDRESS = re.compile(
    r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,30}://"
    r"(?P<value>[^\s/@:\"'<>]{0,200}:(?!\d{1,5}/)[^\s\"'<>`]{1,500})@(?=[\w.\[$%{<-])"
)
_USER_IS_TOKEN = re.compile(r"https?://(?P<value>[^\s/@:\"'<>${]{8,300}):?@(?=[\w.\[{<-])")
#: An image preceded by its registry's account: `user:password@registry.example.com/image`.
_IN_IMAGE = re.compile(
    r"(?<![\w/@.-])(?P<value>[\w.+-]{1,64}:(?!//)[^\s\"'<>]{1,200})@(?=[\w-]{1,63}(?:\.[\w-]{1,63}){0,6}\.[a-zA-Z]{2,20}"
    r"(?:[:/\s\"'#]|$))"
)
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY[A-Z ]{0,10}-----(?P<value>(?:[^-]|-(?!----)){1,20000})"
    r"(?:-----END [A-Z0-9 ]{0,40}-----)?"
)
_PEM_END = re.compile(
    r"(?P<value>(?:[A-Za-z0-9+/=]{8,100}(?:\\{1,3}[rn]|\s){1,10}){1,400})-----END [A-Z0-9 ]{0,30}PRIVATE KEY"
)
_SCHEME = re.compile(
    r"(?i)\b(?:(?:bearer|apikey)[ \t]+(?P<value>[\w.~+/=:-]{6,3000})"
    r"|(?:basic)[ \t]+(?P<value2>[A-Za-z0-9+/]{8,2000}={0,2}(?![\w-])|[\w-]{0,100}\d[\w-]{3,100})"
    r"|authorization\\{0,6}[\"']?[ \t]*[:=,][ \t]*\\{0,6}[\"']?"
    r"(?:(?:token|basic|bearer|digest|apikey|negotiate)[ \t]+)?"
    r"(?P<value3>[^\s\"'\\,$][^\s\"'\\]{0,3000}))"
)
#: The forms of secrets that services issue, and a text that each contains. Published forms are used where they exist;
#: lengths are lower, because a secret that was cut short in a log is still a secret.
_FORMS = (
    ("hf_", r"\bhf_[A-Za-z0-9]{12,}"),
    ("gh", r"\bgh[pousr]_[A-Za-z0-9]{12,}"),
    ("github_pat_", r"\bgithub_pat_\w{8,}"),
    ("sk-", r"\bsk-[A-Za-z0-9_-]{12,}"),
    ("sk_", r"\b[sr]k_(?:live|test)_\w{8,}"),
    ("rk_", r"\brk_(?:live|test)_\w{8,}"),
    ("A", r"\b(?:AKIA|ASIA|ABIA|ACCA|AGPA|AROA|AIDA)[A-Z0-9]{8,}|\bAIza[\w-]{10,}|\bAKC[a-zA-Z0-9]{30,}"),
    ("glpat-", r"\bglpat-[\w.-]{8,}"),
    ("gl", r"\bgl(?:ptt|dt|cbt|rt|soat|ft|imt|agent)-[\w.-]{12,}"),
    ("xox", r"\bxox[abcdeoprs]-[\w-]{8,}|\bxapp-[\w-]{8,}"),
    ("xapp-", r"\bxapp-[\w-]{8,}"),
    ("eyJ", r"(?<![\w-])eyJ[\w-]{5,3000}(?:\.[\w-]{2,4000}){1,4}"),
    ("npm_", r"\bnpm_[A-Za-z0-9]{10,}"),
    ("pypi-", r"\bpypi-[\w-]{12,}"),
    ("dapi", r"\bdapi[a-zA-Z0-9-]{12,}"),
    ("nvapi-", r"\bnvapi-[\w-]{8,}"),
    ("hvs.", r"\bhv[sbr]\.[\w-]{8,}"),
    ("hvb.", r"\bhvb\.[\w-]{8,}"),
    ("dop_v1_", r"\bdo[opr]_v1_[a-f0-9]{12,}"),
    ("SG.", r"\bSG\.[\w-]{8,}\.[\w-]{8,}"),
    ("ya29.", r"\bya29\.[\w-]{8,}"),
    ("GOCSPX-", r"\bGOCSPX-[\w-]{8,}"),
    ("r8_", r"\br8_[A-Za-z0-9]{16,}"),
    ("gsk_", r"\bgsk_[A-Za-z0-9]{16,}"),
    ("pplx-", r"\bpplx-[A-Za-z0-9]{16,}"),
    ("lin_api_", r"\blin_api_\w{12,}"),
    ("tskey-", r"\btskey-[\w-]{12,}"),
    ("sntrys_", r"\bsntrys_[\w=+/]{12,}"),
    ("glc_", r"\bglc_[\w=+/]{12,}"),
    ("glsa_", r"\bglsa_\w{12,}"),
    ("PMAK-", r"\bPMAK-[\w-]{12,}"),
    ("shpat_", r"\bshp(?:at|ca|pa|ss)_\w{12,}"),
    ("local-", r"\blocal-[0-9a-f]{40}\b"),
    ("wandb_v", r"\bwandb_v\d_\w{12,}"),
    ("AT", r"\bAT[AC]TT3[\w=-]{12,}"),
    ("dckr_", r"\bdckr_[po]at_[\w-]{12,}"),
    ("lsv2_", r"\blsv2_[a-z]{2}_\w{12,}"),
    ("xai-", r"\bxai-\w{16,}"),
    ("tgp_v1_", r"\btgp_v1_[\w-]{12,}"),
    ("api_org_", r"\bapi_org_[A-Za-z]{12,}"),
    ("LTAI", r"\bLTAI[A-Za-z0-9]{12,}"),
    ("AK", r"\bAK(?:ID|LT)[A-Za-z0-9]{13,}"),
    ("AGE-SECRET-KEY-", r"AGE-SECRET-KEY-1[A-Z0-9]{12,}"),
    ("hooks.slack.com", r"hooks\.slack\.com/(?P<value>[\w/%+-]{4,300})"),
    ("/api/webhooks/", r"/api/webhooks/(?P<value>[\w/%+-]{4,300})"),
    ("/hook/", r"/bot/v\d/hook/(?P<value>[\w-]{8,200})"),
    ("key=", r"[?&]key=(?P<value>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{12,60})"),
    ("webhook.office.com", r"webhook\.office\.com/(?P<value>[\w/@%+-]{4,400})"),
    ("api.telegram.org/bot", r"api\.telegram\.org/bot(?P<value>[\w:-]{4,200})"),
    # Hashes of passwords as crypt(3) and htpasswd write them.
    (
        "$",
        r"\$(?:apr1|[156y]|2[abxy]|argon2(?:id|i|d)|scrypt|pbkdf2[\w-]{0,20})\$[\w./=,+-]{1,60}\$[\w./$=,+-]{10,200}",
    ),
    ("{S", r"\{S?SHA(?:256|512)?\}[\w+/=]{12,200}"),
    (".ingest.", r"https?://(?P<value>[0-9a-zA-Z_-]{8,100})(?=@[\w.-]{1,200}\.ingest\.)"),
)
_GAP = r"(?:[^|;&\n]|\\\r?\n|\n[ \t]{0,40}-[ \t]){0,300}?"
_LOGINS = ("docker", "podman", "nerdctl", "buildah", "skopeo", "helm", "oras", "crane", "enroot", "vault", "kaggle")
_NEXT = r"(?:[ \t\"',\[\]]|\\\r?\n|\n[ \t]{0,40}-[ \t]){1,80}"
_SECRET = r"(?P<value>[^\s\"',;|&\])$<>-][^\s\"',;|&\])]{0,500})"
_SECRET_2 = _SECRET.replace("value", "value2")
#: Commands with a secret at a fixed position, by a word that is searched for first.
_COMMANDS = (
    (("mysql", "mariadb"), rf"\b(?:mysql|mariadb)[\w-]{{0,20}}\b{_GAP}{_NEXT}-p[\"']?{_SECRET}"),
    (("sshpass",), rf"\bsshpass\b{_GAP}{_NEXT}-p(?:{_NEXT})?{_SECRET}"),
    (
        ("login",),
        rf"\b(?:docker|podman|nerdctl|buildah|skopeo|helm|oras|crane|az|oc|enroot|vault|kaggle)\b{_GAP}\blogin\b"
        rf"{_GAP}{_NEXT}-p{_NEXT}{_SECRET}",
    ),
    (
        ("login",),
        rf"\b(?:wandb|vault|nomad|clearml|neptune|comet|modal|swanlab)[ \t]+login[ \t]+(?:--?relogin[ \t]+)?{_SECRET}",
    ),
    (("redis-cli",), rf"\bredis-cli\b{_GAP}{_NEXT}-a{_NEXT}{_SECRET}"),
    (
        ("curl",),
        rf"\bcurl\b{_GAP}{_NEXT}(?:-u|--user|-U|--proxy-user)(?:[=]|{_NEXT})(?P<value>[^\s\"':$]{{0,100}}:[^\s\"']+)",
    ),
    (
        ("lftp", "smbclient"),
        rf"\b(?:lftp|smbclient)\b{_GAP}{_NEXT}-[uU](?:{_NEXT})?(?P<value>[^\s\"'%,]{{1,100}}[%,][^\s\"']+)",
    ),
    (("http",), rf"\bhttps?[ \t]{_GAP}-a{_NEXT}(?P<value>[^\s\"':]{{1,100}}:[^\s\"']+)"),
    (
        ("mongo", "cqlsh", "clickhouse", "influx"),
        rf"\b(?:mongo\w{{0,10}}|cqlsh|clickhouse-client|influx)\b{_GAP}{_NEXT}-p{_NEXT}{_SECRET}",
    ),
    (("ldap",), rf"\bldap\w{{1,10}}\b{_GAP}{_NEXT}-w{_NEXT}{_SECRET}"),
    (("zip", "ipmitool", "sqlcmd", "bcp"), rf"\b(?:zip|unzip|ipmitool|sqlcmd|bcp)\b{_GAP}{_NEXT}-P{_NEXT}{_SECRET}"),
    (("7z",), rf"\b7z[ar]?\b{_GAP}{_NEXT}-p[\"']?{_SECRET}"),
    (("configure",), rf"\baws\b{_GAP}\bconfigure{_NEXT}set{_NEXT}\S*(?:key|token)\S*?{_NEXT}{_SECRET}"),
    (("from-literal",), rf"--from-literal(?:=|{_NEXT})[\w.-]{{1,100}}={_SECRET}"),
    (
        ("alias", "config"),
        rf"\bmc\b{_GAP}\b(?:alias|config){_NEXT}(?:set|host{_NEXT}add){_NEXT}[^\s\"']+{_NEXT}https?://[^\s\"']+{_NEXT}"
        rf"{_SECRET}{_NEXT}{_SECRET_2}",
    ),
    (("pass:",), r"\bpass:(?P<value>[^\s\"',;|&]{1,500})"),
    (("az",), rf"\baz[ \t]{_GAP}{_NEXT}-p{_NEXT}{_SECRET}"),
    (
        ("-stdin", "with-token", "chpasswd", "sudo -S", "kinit", "passwd"),
        r"\b(?:echo|printf)[ \t]+(?:-n[ \t]+|-e[ \t]+|['\"]%s(?:\\n)?['\"][ \t]+)?[\"']?"
        r"(?P<value>[^\s\"'$|]{1,500})[\"']?[ \t]*\|"
        r"[^\n]{0,200}?(?:-stdin|--with-token|chpasswd|sudo[ \t]+-S|kinit|passwd)",
    ),
    (
        ("<<<",),
        r"(?:-stdin|--with-token|chpasswd|sudo[ \t]+-S|kinit)[^\n]{0,200}?<<<[ \t]*[\"']?(?P<value>[^\s\"'$]{1,500})",
    ),
    (("machine", "login"), r"\bpassword[ \t]+(?P<value>[^\s\"'$\\]{1,500})"),
    (
        ("ossutil", "coscli", "obsutil", "tosutil"),
        rf"\b(?:ossutil\w*|coscli|obsutil|tosutil)\b{_GAP}{_NEXT}-k(?:=|{_NEXT}){_SECRET}",
    ),
    (("secret set",), rf"\bsecret[ \t]+set\b{_GAP}{_NEXT}(?:--body|-b)(?:=|{_NEXT})?[\"']?{_SECRET}"),
    (("coscmd",), rf"\bcoscmd\b{_GAP}{_NEXT}-s{_NEXT}{_SECRET}"),
    (("swanlab",), rf"\bswanlab\b{_GAP}\blogin\b{_GAP}{_NEXT}-k{_NEXT}{_SECRET}"),
    # The same commands as lists of words.
    (
        ("login",),
        r"(?:wandb|vault|swanlab|clearml|neptune|comet|modal)[\"'],[ \t]*[\"']login[\"'],[ \t]*"
        r"(?:[\"']-[^\"'\n]{1,100}[\"'],[ \t]*){0,4}[\"'](?P<value>[^\s\"'$-][^\s\"']{5,500})",
    ),
    (("rclone",), rf"\brclone[ \t]+obscure[ \t]+{_SECRET}"),
    (("openssl",), rf"\bopenssl\b{_GAP}{_NEXT}-k{_NEXT}{_SECRET}"),
    (
        ("htpasswd",),
        rf"\bhtpasswd\b{_GAP}(?:-\w*n\w*b\w*|-\w*b\w*n\w*|-\w*b\w*[ \t]+\S+)[ \t]+\S+[ \t]+[\"']?"
        r"(?P<value>[^\s\"'$;|&<>]+)",
    ),
    (
        ("send",),
        r"(?i)(?:p?ass(?:word|phrase|code)|token|otp)[^\"'\n]{0,20}[\"'}][^\"'\n]{0,20}\s{1,40}[\w.]{0,60}\bsend(?:line)?"
        r"[( \t]{1,10}(?:--[ \t]+)?b?[\"'{](?P<value>[^\"'\n}]{3,300})",
    ),
    (("/t/",), r"https?://[^\s\"'/]{1,200}/(?:[\w.-]{1,60}/){0,3}t/(?P<value>[\w-]{8,200})(?=/)"),
    (("Cookie", "cookie"), r"(?i)\b(?:set-)?cookie\\{0,3}[\"']?[ \t]*[:=][ \t]*[\"']?(?P<value>[^\"'\n\r]{3,2000})"),
    (("sig=",), r"[?&;'\" ]sig=(?P<value>[\w%+/=-]{6,300})"),
    (
        ("_authToken", "_password", "_auth"),
        r"\b_(?:authToken|password|auth)[ \t]*=[ \t]*[\"']?(?P<value>[^\s\"'$]{1,500})",
    ),
)
_STEMS = (
    *(
        "token",
        "secret",
        "pass",
        "pwd",
        "key",
        "cred",
        "auth",
        "cookie",
        "signature",
        "dsn",
        "webhook",
        "jwt",
        "bearer",
    ),
    *("basic ", "pw", "_pat", "-pat", "pat=", "conn", "sas", "private", "psk", "pem", "stringdata", "passcode"),
    *("fernet", "_sk", "-sk", "sk=", "sk:", 'sk"', "sk'"),
)


@functools.cache
def _gap(words: tuple[str, ...]) -> str:
    """Return a pattern for the text between words of one command; a search across commands would take too long."""
    commands = "|".join(re.escape(word) for word in (*words, *(_LOGINS if "login" in words else ())))
    return rf"(?:(?!{commands})(?:[^|;&\n]|\\\r?\n|\n[ \t]{{0,40}}-[ \t])){{0,300}}?"


@functools.cache
def _compile_patterns(text: str) -> Pattern[str]:
    return re.compile(text)


def spans_of_secrets(text: str) -> list[tuple[int, int]]:
    """Return the spans of the secrets in `text`, in order; no two spans touch."""
    spans: list[tuple[int, int]] = []
    if "://" in text and "@" in text:
        spans.extend(_all_of(_IN_ADDRESS, text))
        spans.extend(_all_of(_USER_IS_TOKEN, text))
    elif "@" in text and ":" in text:
        spans.extend(_all_of(_IN_IMAGE, text))
    if "://" in text and "@" in text and text.count("@") > 1:
        spans.extend(_all_of(_IN_IMAGE, text))
    for beginning, form in _FORMS:
        if beginning in text:
            spans.extend(_all_of(_compile_patterns(form), text))
    for words, form in _COMMANDS:
        if any(word in text for word in words):
            spans.extend(_all_of(_compile_patterns(form.replace(_GAP, _gap(words))), text))
    lowered = text.lower()
    if "private key" in lowered and "-----" in text:
        spans.extend(_all_of(_PEM, text))
        spans.extend(_all_of(_PEM_END, text))
    if any(stem in lowered for stem in _STEMS):
        if "bearer" in lowered or "basic" in lowered or "authorization" in lowered or "apikey" in lowered:
            spans.extend(span for span in _all_of(_SCHEME, text) if not _is_prose(text[slice(*span)]))
        spans.extend(_named_secrets(text))
        spans.extend(
            sentence.span("value") for sentence in _IN_SENTENCE.finditer(text) if looks_random(sentence["value"])
        )
        if "\n" in text:
            spans.extend(in_blocks(text))
        if ("ata" in text and "ecret" in text) or "stringData" in text:
            spans.extend(_manifest_secrets(text))
    if "(" in text and ("'" in text or '"' in text):
        spans.extend(_call_secrets(text))
    return merge_spans(spans) if spans else spans


def _all_of(pattern: Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    for match in pattern.finditer(text):
        groups = match.groupdict()
        if not groups:
            yield match.span()
        for name in groups:
            if match[name] and not is_plain("password", match[name]):
                yield match.span(name)


def _is_prose(value: str) -> bool:
    """Return whether a value consists of words that follow `bearer` in a sentence."""
    return value.isalpha() and len(value) < 20 and (value.islower() or value.istitle())


_ECHO = r"(?:echo|printf)[ \t]+(?:-[neE]+[ \t]+|['\"]?%s(?:\\n)?['\"]?[ \t]+){0,3}[\"']?"
_BARS = ("|", "\u2502", "\u2503")
_SED = ("sed ",)
#: Words and arrows between a name and its value in a sentence.
_ARROWS = (" -> ", " to ", " is ", " was ", " has value ")
#: Names and values with more text between them than in an assignment, and words that must also occur.
_PAIRS = (
    # An item of a list of variables, on one line or on two.
    (
        ("alue",),
        r"\b[Nn]ame\\{0,3}[\"']?[ \t]*[:=][ \t]*\\{0,3}[\"']?(?P<name>[\w.-]{1,200})\\{0,3}[\"']?"
        r"[ \t]*,?\s{0,60}\\{0,3}[\"']?"
        r"[Vv]alue\\{0,3}[\"']?[ \t]*[:=][ \t]*\\{0,3}[\"']?(?P<value>[^\s\"',}\\]{1,2000})",
    ),
    # A variable of Terraform, with its default.
    (
        ("variable",),
        r"\bvariable[ \t]+\"(?P<name>[\w-]{1,200})\"\s{0,20}\{[^{}]{0,2000}?"
        r"\bdefault[ \t]*=[ \t]*\"(?P<value>[^\"\n]{1,2000})",
    ),
    # A text that a shell command writes: into a file of that name, or for an option or a variable.
    (
        ("echo", "printf"),
        rf"\b{_ECHO}(?P<value>[^\s\"'$|;&]{{1,500}})[\"']?[ \t]*(?:>>?|\|[^|;&\n]{{0,60}}?\btee(?:[ \t]+-a)?)"
        r"[ \t]*[\"']?"
        r"[^\s\"';|&]{0,200}?(?P<name>[\w.-]{1,100})(?=[\s\"';|&)]|$)",
    ),
    (
        ("echo", "printf"),
        rf"(?<![\w.-])(?P<name>[\w.-]{{1,200}})(?:=|[ \t]+|[ \t]*:[ \t]*)[\"']?(?:[$<]\(|`)[ \t]*{_ECHO}"
        r"(?P<value>[^\s\"'$|;&)`]{1,500})",
    ),
    # `rclone config create r s3 secret_access_key X`, `dvc remote modify r secret_access_key 'X'`
    (
        ("config", "modify"),
        r"\b(?:config(?:ure)?[ \t]+(?:create|set|update|add)|remote[ \t]+modify)\b[^|;&\n]{0,200}?[ \t]"
        r"(?P<name>[\w.]{0,60}(?:secret|password|token|_key|pass)\w{0,60})[ \t]+[\"']?"
        r"(?P<value>[^\s\"'|;&-][^\s\"'|;&]{0,500})",
    ),
    (("<<<",), r"\bread\b[^\n<;|&]{0,80}?(?P<name>\w{1,100})[ \t]*<<<[ \t]*[\"']?(?P<value>[^\s\"';|&]{1,500})"),
    # The fallback value in code: `api_key = os.getenv("API_KEY") or "X"`.
    (
        (" or ", " else "),
        r"(?<![\w.-])(?P<name>[\w.]{1,200})[ \t]{0,8}=(?!=)[^\n]{0,200}?[ \t](?:or|else)[ \t]{1,8}[rbu]?"
        r"[\"'](?P<value>[^\"'\n]{1,2000})",
    ),
    # Commands that set a variable without an equals sign.
    (
        ("ENV", "setenv", "set", "pushenv"),
        r"(?<![\w-])(?:ENV|setenv|pushenv|setx|set[ \t]+-[a-zA-Z]{1,5})[ \t]+[\"']?(?P<name>[\w.-]{1,200})[\"']?[ \t]+"
        r"[\"']?(?P<value>[^\s\"'=;|&]{1,1000})",
    ),
    # Tables and dotted lists of arguments, as trainers print them when they start.
    ((" ..",), r"(?<![\w.-])(?P<name>[\w-]{1,200})[ \t]+\.{2,200}[ \t]+[\"']?(?P<value>[^\s\"']{1,2000})"),
    (
        _BARS,
        r"[|\u2502\u2503][ \t]{0,100}(?P<name>[\w.-]{1,200})[ \t]{0,200}[|\u2502\u2503][ \t]{0,100}"
        r"(?P<value>[^\s|\u2502\u2503]{1,2000})[ \t]{0,200}[|\u2502\u2503]",
    ),
    (
        ("printf -v",),
        r"\bprintf[ \t]+-v[ \t]+(?P<name>\w{1,100})[ \t]+[\"']?%s[\"']?[ \t]+[\"']?(?P<value>[^\s\"'$;|&]{1,500})",
    ),
    # `sed 's/YOUR_TOKEN/X/'`
    (_SED, r"\bs(?P<by>[/|#,])(?P<name>[\w.-]{1,100})(?P=by)(?P<value>[^/|#,\s\"']{8,500})(?P=by)"),
    (
        _ARROWS,
        r"(?<![\w.-])(?P<name>[\w.-]{1,200})[\"'`]?[ \t]+(?:->|to|is|was|set to|has value)[ \t]+[\"'`]?"
        r"(?P<value>[^\s\"'`,;)]{8,2000})",
    ),
)
#: A secret named in a sentence; a word that consists only of letters is part of the sentence.
_IN_SENTENCE = re.compile(
    r"(?i)\b(?:token|password|passwd|passphrase|api[ _-]?key|access[ _-]?key|secret[ _-]?key)"
    r"(?:[ \t]+(?:passed|provided|supplied|given|used|entered|received|found|in use"
    r"|(?:for|from|of)[ \t]+[\w.@'-]{1,80}))?"
    r"(?:[ \t]+(?:is|was|of)[ \t]+|[ \t]*[:=][ \t]*|[ \t]+)"
    r"[\"'`]?(?P<value>[\w.+/=~-]{8,300})"
)
#: Calls whose arguments are an account and its secret.
_CALLS = re.compile(r"(?<!\w)(?P<name>[A-Za-z_]\w{0,60})\((?=[^()\n]{0,300}[\"'])")
_CALL = frozenset(("login", "authenticate", "minio", "basicauth", "session", "experiment", "connect", "auth"))
_LITERAL = re.compile(r"(?<![\w=])(?:[\"'])(?P<value>[^\"'\n]{8,300})[\"'](?=[ \t]*[,)])")
#: The contents of a Kubernetes Secret, where every value is a secret.
_SECRET_DATA = re.compile(
    r"(?m)^(?P<indent>[ \t]{0,60})(?P<key>(?:string)?[dD]ata):[ \t]*\r?\n"
    r"(?P<body>(?:(?P=indent)[ \t]+\S.{0,4000}(?:\n|\Z)){1,1000})"
)
_SECRET_LINE = re.compile(r"(?m)^[ \t]*(?:[\"']?[\w.-]{1,200}[\"']?:[ \t]*)?[\"']?(?P<value>[^\s\"'][^\n\"']{0,4000})")
_SECRET_JSON = re.compile(r"\"(?:stringData|data)\"\s{0,20}:\s{0,20}\{(?P<body>[^{}]{1,20000})\}")
_SECRET_ITEM = re.compile(r":\s{0,20}\"(?P<value>[^\"\n]{1,4000})\"")
_DOCUMENT = re.compile(r"(?m)^[ \t]{0,60}---[ \t]*\r?$")
_IS_SECRET = re.compile(r"[\"']?\bkind[\"']?[ \t]*:[ \t]*[\"']?Secret\b")


def _manifest_secrets(text: str) -> Iterator[tuple[int, int]]:
    begin = 0
    for end in (*(mark.start() for mark in _DOCUMENT.finditer(text)), len(text)):
        secret = _IS_SECRET.search(text, begin, end) is not None
        for block in _SECRET_DATA.finditer(text, begin, end):
            if secret or block["key"] == "stringData":
                yield from _values_of(_SECRET_LINE, text, block.span("body"))
        for block in _SECRET_JSON.finditer(text, begin, end) if secret else ():
            yield from _values_of(_SECRET_ITEM, text, block.span("body"))
        begin = end


def _values_of(pattern: Pattern[str], text: str, span: tuple[int, int]) -> Iterator[tuple[int, int]]:
    for match in pattern.finditer(text, *span):
        if match["value"].strip() not in ("|", ">", "|-", ">-") and not is_plain("password", match["value"]):
            yield match.span("value")


def _call_secrets(text: str) -> Iterator[tuple[int, int]]:
    """Yield arguments that look like secrets, in calls that take a secret by position: `login("hf_...")`."""
    for call in _CALLS.finditer(text):
        if call["name"].casefold() in _CALL or is_secret(call["name"]):
            end = text.find("\n", call.end(), call.end() + 600)
            for literal in _LITERAL.finditer(text, call.end(), end if end >= 0 else call.end() + 600):
                if looks_random(literal["value"]):
                    yield literal.span("value")


def _pair_secrets(text: str) -> Iterator[tuple[int, int]]:
    for words, form in _PAIRS:
        if any(word in text for word in words):
            for pair in _compile_patterns(form).finditer(text):
                name = pair["name"]
                # `--password-file=<(echo X)`: the printed text is the secret.
                bare = name[: -len("file")].rstrip("-_.") if name.endswith("file") else name
                about = name.casefold().endswith((".log", ".out", ".err", ".csv", ".md"))
                if about or not is_secret(bare or name) or is_plain(name, pair["value"]):
                    continue
                # Cells of ordinary tables are between bars as well, and ordinary words in sentences.
                if words not in (_BARS, _ARROWS, _SED) or looks_random(pair["value"]):
                    yield pair.span("value")


def _named_secrets(text: str) -> Iterator[tuple[int, int]]:
    yield from _pair_secrets(text)
    at = 0
    while True:
        match = _NAME.search(text, at)
        if match is None:
            return
        at = match.end()
        name = match["name"]
        # A full stop ends a sentence; `-` does not end a name.
        weak = name.casefold() == "key"
        if not weak and not is_secret(name):
            continue
        value = _value_after(text, match, name)
        if value is not None:
            yield value
            at = max(at, value[1])


def _value_after(text: str, match: Match[str], name: str) -> tuple[int, int] | None:
    """Return the span of the value of a secret's name; None if no value follows, or if the value can be shown."""
    sign = _SIGN.match(text, match.end())
    if sign is None:
        return None
    kind = sign.lastgroup
    option = name.startswith("-")
    quoted_name = bool(sign["close"].strip("\\])")) and text[match.start() - 1 : match.start()] in ("'", '"', "`")
    if kind == "gap" and not option:
        return None
    if kind in ("item", "line") and not option:
        return None
    if kind == "default" and not (option or quoted_name):
        return None
    opened = text[: match.start()].rstrip("\\'\"rbfu \n\t")[-1:] if quoted_name and not option else ""
    if kind == "comma" and not (option or opened == "("):
        return None
    value_match = _VALUE.match(text, sign.end())
    if value_match is None:
        return None
    if value_match["quote"] in ("'", '"') and sign.group() == "=":
        word = _PIECES.match(text, sign.end())
        if word is not None and word.end() > value_match.end() and not is_plain(name, word[0].strip("\"'")):
            return word.span()
    group = "quoted" if value_match["quote"] else ("fallback" if value_match["fallback"] else "bare")
    value = value_match[group]
    if group == "bare":
        if kind == "comma" and text[match.start() - 1 : match.start()] in ("'", '"') and "=" in value:
            # `add_argument("--token", type=str)`
            return None
        if _is_expression(text, value_match.end(), name, value, kind or ""):
            return None
    if group != "fallback" and is_plain(name, value):
        return None
    if option and kind in ("gap", "item", "comma", "line") and value.startswith("-"):
        return None
    if "!=" in sign.group() and not looks_random(value):
        return None
    if kind == "line" and not (group == "quoted" and looks_random(value)):
        # Words of an array are on separate lines; so is the next command.
        return None
    bare = name.strip("-").casefold()
    if bare in _WEAK and not _is_weak_value(bare, value, sign.group(), quoted=group == "quoted", option=option):
        return None
    return value_match.span(group)


def _is_expression(text: str, end: int, name: str, value: str, kind: str) -> bool:
    """Return whether unquoted text after a name is code, or another name, and not a value."""
    if text[end : end + 1] in ("(", "[") or _EXPRESSION.match(value):
        return True
    if not value.replace("_", "").replace(".", "").isalpha():
        return False
    if ("_" in value or "." in value) and not _PASSWORD_WORDS.search(name):
        # `fill_token = speech_token_size`: keys and tokens that services issue are not words.
        return True
    last = value.rpartition(".")[2]
    if kind == "comma" or value.startswith("_"):
        # `about("some_key", launch.scope)`
        return True
    # `password=password`, `token: hf_token`; a constant of that name elsewhere is found there.
    return last.casefold() == name.strip("-").casefold() or (last.isidentifier() and is_secret(last) and "_" in last)


def _is_weak_value(word: str, value: str, sign: str, *, quoted: bool, option: bool) -> bool:
    if value.replace(".", "", 1).isdecimal():
        return word in ("token", "pwd")
    if word == "sk":
        return looks_random(value)
    if word in ("key", "token", "signature", "pem") and not option and ":" in sign:
        return looks_random(value)
    if word == "key":
        return looks_random(value) or (option and not value.islower())
    if ":" in sign and not quoted:
        return looks_random(value) or word in ("pwd", "pw")
    if word == "token" and not option:
        return looks_random(value) or not (quoted and value.startswith(("<", "[")))
    return True


def merge_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def may_hold_secret(text: str) -> bool:
    """Return whether a text may contain a secret; a quick test for megabytes of text."""
    lowered = text.lower()
    return (
        any(stem in lowered for stem in _STEMS)
        or ("@" in text and ":" in text)
        or any(beginning in text for beginning, _ in _FORMS)
    )
