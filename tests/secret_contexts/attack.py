"""Spellings of two later attacks, 412 in all: these are the kinds that leaked, and some that held."""

from __future__ import annotations

NAMES = ("OSS_SK", "FERNET", "pwd", "LDAP_BIND_PW", "MINIO_ROOT_PASSWORD", "apiSecret")

SHELL = (
    "export HF_TOKEN=\\\n  C",
    "args=(--api_key\n 'C'\n --x 1)",
    "dvc remote modify --local r secret_access_key 'C'",
    "rclone config create r sftp host h user u pass C",
    'expect -c \'expect "assword:"; send "C\\r"\'',
    "coscmd config -a AKX -s C -b bucket",
    "tosutil config -i AKX -k C",
    "swanlab login -k C",
    "gh secret set HF_TOKEN --body C",
    'gh secret set HF_TOKEN -b"C"',
    "printf -v HF_TOKEN '%s' 'C'",
    "sed -i 's/YOUR_TOKEN/C/' config.yaml",
    'if [[ "$HF_TOKEN" != "C" ]]; then exit 1; fi',
    "git config --global url.https://C:@github.com/.insteadOf https://github.com/",
    "echo wandb_v1_C0000",
    "echo ATATT3xFfGF0C0000",
    "echo dckr_pat_C0000",
    "echo LTAIC0000",
    "curl https://open.feishu.cn/open-apis/bot/v2/hook/C",
    "declare -A LOGIN=([password]=C [user]=x)",
    "read -r WANDB_KEY <<< 'C'",
    "ray start --head --redis-password='C'",
    "conda env config vars set HF_TOKEN=C",
    "apptainer exec --env HF_TOKEN=C,A=b img.sif true",
)

ARGUMENTS = ("+wandb.key=C", "--cfg-options \"dict(password='C')\"", "--redis-password C")

PYTHON = (
    "subprocess.run(['wandb', 'login', 'C'])",
    "subprocess.run(['wandb', 'login', '--relogin', 'C'])",
    "PASSWORDS = {'prod': 'C'}",
    "API_KEY: Final = 'C'",
    "client = paramiko.SSHClient(); client.connect('h', 22, 'me', 'C')",
    "comet_ml.Experiment('C', project_name='x')",
    "if token != 'C': raise SystemExit",
    "oss2.Auth('AKX', 'C')",
)

LOGS = (
    "subprocess.CalledProcessError: Command '['wandb', 'login', 'C']' returned non-zero exit status 1.",
    "  hub_token ...................................... 'C'",
    "ValueError: Invalid token passed: C",
    "password for me: C",
    "HF_TOKEN -> C",
    "set HF_TOKEN to C",
    "api_key is C",
    "args=(--api_key 'C')",
)

YAML = (
    "auth: {user: me, pwd: C}\n",
    "api key: C\n",
    "credentials: {username: me, value: C}\n",
    'headers: {Authorization: "token C"}\n',
)
