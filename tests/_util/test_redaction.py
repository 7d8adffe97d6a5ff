"""None"""

from __future__ import annotations

import unicodedata

import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given
from hypothesis import strategies as st

from preflight._util.hostnames import folded
from preflight._util.redaction import HIDDEN, redact, remember, scrub, scrub_traceback
from preflight._util.sanitize import clean, fold_nodes
from preflight._util.secret_names import is_secret


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "--wandb_key",
        "--hf-token",
        "GITHUB_PAT",
        "AZURE_STORAGE_KEY",
        "NGC_API_KEY",
        "client_secret",
        "SSH_PRIVATE_KEY",
        "AUTHORIZATION",
        *("PGPASSWORD", "SSHPASS", "DB_PW", "CREDS", "HFTOKEN", "apiToken", "SENTRY_DSN", "SLACK_WEBHOOK_URL", "JWT"),
        *("passPhrase", "clientSecret", "AZURE_STORAGE_CONNECTION_STRING", "AWS_ACCESS_KEY_ID", "trainer.hub_token"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)
    assert redact(name, "abc") == HIDDEN


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZER_PATH",
        "PWD",
        "OLDPWD",
        "MAX_TOKENS",
        "--max-tokens",
        "PAD_TOKEN_ID",
        "NCCL_DEBUG",
        "MONKEY",
        "KEYBOARD",
        "PATH",
        "PADDLE_PSERVERS_IP_PORT_LIST",
        "MASTER_ADDR",
        "MUNGE_KEY",
        "--token-dim",
        "NUM_TOKENS_PER_BATCH",
        *("tokenizer", "--key-prefix", "keypair", "sort_key", "--moe-token-dispatcher-type", "compass", "author"),
        *("passes", "encoder", "HF_TOKEN_PATH", "secretName", "forward_pass", "file_pat", "pad_token", "num-passes"),
    ],
)
def test_other_names(name: str) -> None:
    assert not is_secret(name)
    assert redact(name, "abc") == "abc"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("export HF_TOKEN=abc", "export HF_TOKEN=****"),
        ("A=1 WANDB_API_KEY='a b' torchrun x.py", "A=1 WANDB_API_KEY='****' torchrun x.py"),
        ("t.py --wandb-api-key abc --lr 1", "t.py --wandb-api-key **** --lr 1"),
        ("t.py --token=abc", "t.py --token=****"),
        ("export TOKEN", "export TOKEN"),
        ("echo token is here", "echo token is here"),
        ("HF_TOKEN=$OTHER", "HF_TOKEN=$OTHER"),
        ('HF_TOKEN="$OTHER"', 'HF_TOKEN="$OTHER"'),
        ("a=b=HF_TOKEN=abc", "a=b=HF_TOKEN=****"),
        ("x https://me:pw@host/y", "x https://****@host/y"),
        ("curl -H ghp_0123456789abcdefghij0123", "curl -H ****"),
        ("docker run -e HF_TOKEN=abc img", "docker run -e HF_TOKEN=**** img"),
        ("Authorization: Bearer abc-def-1", "Authorization: Bearer ****"),
        ('[--password, "X"]', '[--password, "****"]'),
        ('{"apiToken": "X1"}', '{"apiToken": "****"}'),
        *((same, same) for same in ("PASS: test_x", "--pp 2", "ssh -p 2222 host", "docker run -p 8080:80 img")),
        *((same, same) for same in ("key: nvidia.com/gpu", "bearer token required", "python:3.10@sha256:abc")),
        *((same, same) for same in ('add_argument("--token", type=str)', "token=args.token", "key=lambda x: x[1]")),
        ('api_key = os.getenv("A_KEY") or "hunter2abc"', 'api_key = os.getenv("A_KEY") or "****"'),
        ("ENV HF_TOKEN hunter2abc", "ENV HF_TOKEN ****"),
        ("hf_token ........ hunter2abc", "hf_token ........ ****"),
        ("| api_key | hunter2abc |", "| api_key | **** |"),
        ('login("hunter2-abc")', 'login("****")'),
        ("mysql -u root -p'hunter2abc' db", "mysql -u root -p'****' db"),
        ("read -r HF_TOKEN <<< hunter2abc", "read -r HF_TOKEN <<< ****"),
        ("--hf_token $(printf hunter2abc)", "--hf_token $(printf ****)"),
        ("echo hunter2abc > /run/secrets/db_password", "echo **** > /run/secrets/db_password"),
        ("TOKEN=hunter2-abc; f hunter2-abc", "TOKEN=****; f ****"),
        ("user:$apr1$abcdefgh$0123456789abcdefghijkl", "user:****"),
        *((same, same) for same in ("| unknown-key | lint | error |", "echo done > token.log", "set -x; login node1")),
        *((same, same) for same in ("token ids 12345", "the password is required", 'session("train")', "$1$2")),
        *((same, same) for same in ('job.about("x_key", launch.scope)', "worker_key:_worker", "name: hf-secret")),
    ],
)
def test_lines(text: str, clean: str) -> None:
    assert scrub(text) == clean


#: Commands and names that are searched for together with the text that follows them.
_REPEATED = (
    *(
        "docker login ",
        "mysql -p ",
        "echo x > ",
        "| token | a ",
        "login(x, login('a', ",
        "token ..... ",
        "set -x token ",
    ),
    *(
        'variable "token" {\n default ',
        'password" send ',
        "htpasswd -b -b a ",
        "$6$aaa",
        "kind: Secret\ndata:\n a: b\n",
    ),
)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece", ["a=", "eyJ-", "sk-", "a", "x://", "TOKEN=", "--key ", "a:b@", '"', "hf_", "eyJaaaaaaaaaa.", *_REPEATED]
)
def test_hostile_text_takes_linear_time(piece: str) -> None:
    scrub(piece * 50_000)
    is_secret(piece * 50_000)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ('TOKEN="a"hunter2b', "TOKEN=****"),
        ('API_KEY=""hunter2', "API_KEY=****"),
        ("PASSWORD='a'\\''b' next", "PASSWORD=**** next"),
        ("PASSWORD='abc';ls", "PASSWORD='****';ls"),
    ],
)
def test_a_word_of_several_quoted_pieces_is_hidden_completely(text: str, hidden: str) -> None:
    assert scrub(text) == hidden
    assert scrub(hidden) == hidden


def test_a_traceback_hides_the_latest_secrets() -> None:
    remember([f"met-{number:05}" for number in range(5000)])
    remember(["met-04999-last"])
    assert scrub_traceback("ValueError: met-04998 met-04999-last") == f"ValueError: {HIDDEN} {HIDDEN}"


# Secrets in blocks of YAML, whole or in the middle of a log.


SECRET = "zq7Hc41kPw9x"


@pytest.mark.parametrize(
    "text",
    [
        f"api_key: !!str {SECRET}\nnext: 1\n",
        f"? password\n: {SECRET}\n",
        f'"pass\\u0077ord": {SECRET}\nnext: 1\n',
        f"tokens:\n  prod: {SECRET}\n  dev: 3\n",
        f"- name: HF_TOKEN\n  value: |-\n    {SECRET}\n",
        f"credentials:\n  username: me\n  value: {SECRET}\n",
        f"secrets:\n- {SECRET}\n- other\n",
    ],
)
def test_a_value_below_its_name_is_hidden(text: str) -> None:
    assert SECRET not in scrub(text)
    assert SECRET not in scrub(f"INFO config is\n{text}Traceback (most recent call last):\n")


@pytest.mark.parametrize(
    "text",
    [
        "tokens:\n  vocab: gpt2\n  count: 3000000\n",
        "tokenizer:\n  name: meta-llama/Llama-2-7b\n  pad_token: <pad>\n",
        "env:\n- name: NCCL_SOCKET_IFNAME\n  value: |-\n    eth0\n",
        "sort_keys:\n- length\n- text2\n",
        "imagePullSecrets:\n- name: registry-login\n",
        "secret_file:\n  /run/secrets/db\n",
        "secret:\nnext: 12ab34cd56\n",
    ],
)
def test_an_ordinary_value_is_shown(text: str) -> None:
    assert scrub(text) == text


# Text from files and nodes cannot reach a terminal as anything but text.


@given(st.text())
def test_no_control_character_is_left(text: str) -> None:
    for character in clean(text):
        assert unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


@given(st.text(st.characters(categories=["L", "N", "P", "Zs"])))
def test_ordinary_text_in_any_script_is_unchanged(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb", "a b"),
        ("a\r\nb", "a  b"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b2J", "\\x9b2J"),
        ("a\u202eb", "a\\u202eb"),
        ("\u2028", "\\u2028"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_made_visible(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_newlines_are_kept_on_request() -> None:
    assert clean("a\nb\x07", keep_newlines=True) == "a\nb\\x07"


@pytest.mark.parametrize(
    ("names", "written"),
    [
        ((), ""),
        (("node1",), "node1"),
        (("node1", "node2", "node3", "db"), "db,node[1-3]"),
        (("node01", "node02"), "node[01-02]"),
        (("run.sh:3", "run.sh:9"), "run.sh:3, run.sh:9"),
        (("a[1-9999999999].sh", "b"), "a[1-9999999999].sh, b"),
        (("@all", "@*"), "@all, @*"),
        (("a\x1b[2J", "b"), "a\\x1b[2J, b"),
    ],
)
def test_folding(names: tuple[str, ...], written: str) -> None:
    assert fold_nodes(names) == written


def test_many_nodes_are_folded_and_many_files_are_counted() -> None:
    assert fold_nodes([f"gpu{number}" for number in range(512)]) == "gpu[0-511]"
    assert fold_nodes([f"run.sh:{number}" for number in range(512)]).endswith(" and 500 more")


NUMBERS = st.integers(0, 12) | st.integers(95, 105)


NAMES = st.builds(
    lambda before, width, number, behind: f"{before}{number:0{width}}{behind}",
    st.sampled_from(["n", "rack1-n", "10.0.0.", "r2n"]),
    st.sampled_from([1, 2, 3]),
    NUMBERS,
    st.sampled_from(["", "-ib", ".c1.example"]),
)


@given(st.lists(NAMES | st.sampled_from(["db", "login"]), min_size=2, max_size=12))
def test_names_are_folded_like_clustershell_nodesets(names: list[str]) -> None:
    assert folded(names) == str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
