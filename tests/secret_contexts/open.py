"""Spellings of secrets known while redaction was written; `C` stands for the canary."""

from __future__ import annotations

NAMES = (
    *("HF_TOKEN", "PGPASSWORD", "SSHPASS", "DB_PW", "CREDS", "HFTOKEN", "apiToken", "SENTRY_DSN", "SLACK_WEBHOOK"),
    *("JWT", "PASS", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "api-key", "DB_PASSWORD", "git_pat", "SMTP_PASS"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "SSH_PRIVATE_KEY", "client_secret", "oauthToken", "SAS_TOKEN"),
)

SHELL = (
    "mysql -u root -pC db",
    "sshpass -p C ssh n1 true",
    "curl -u me:C https://x.example.com",
    "docker login -p C -u me r.example.com",
    "redis-cli -a C ping",
    "wget --password=C https://x.example.com",
    'export DB_PW="C"',
    "PASS=C",
    "export HF_TOKEN=${HF_TOKEN:-C}",
    "export URL=https://me:a/C@x.example.com/y",
    "export URL=https://me:a@C@x.example.com/y",
    "docker pull me:C@registry.example.com/a/b:1",
    "export SLACK=https://hooks.slack.com/services/C/B/x",
    'curl -H "Authorization: Bearer C" https://x.example.com',
    'curl -H "Authorization: token C" https://x.example.com',
    "export KEY_TEXT='-----BEGIN RSA PRIVATE KEY-----\\nC\\nabcdef'",
    "export X='github_pat_C0000000000'",
    "export X=dapiC0000000000 Y=nvapi-C000000 Z=hvs.C00000000 N=npm_0000000000000 P=pypi-C00000000000",
)

ARGUMENTS = (
    "--password C",
    "--password=C",
    '--config \'{"apiToken": "C"}\'',
    "--api-key \\\n  C",
    "--db postgres://u:C@h:5432/d",
    "--url 'https://x/y?api_key=C&n=1'",
    "trainer.api_key=C",
)

PYTHON = (
    'parser.add_argument("--token", default="C")',
    'PASSWORD = "C"',
    "auth = {'password': 'C'}",
    'os.environ["HF_TOKEN"] = "C"',
    'login(token="C")',
    'x = ["--password", "C"]',
    'TEXT = "{\\"apiToken\\": \\"C\\"}"',
    'KEY = """-----BEGIN PRIVATE KEY-----\nC\nMIIabc\n-----END PRIVATE KEY-----"""',
)

LOGS = (
    "+ export HF_TOKEN=C",
    "environ({'PATH': '/bin', 'SSHPASS': 'C'})",
    '{"msg": "{\\"password\\": \\"C\\"}"}',
    "Authorization: Bearer C",
    "https://u:C@h.example.com/x",
    "Namespace(token='C', lr=1)",
    "+ sshpass -p C ssh node1",
    "-----BEGIN OPENSSH PRIVATE KEY-----\\nC\\nAAAA",
)

YAML = (
    "password: >\n  C\n  rest-of-it-12\n",
    "key: |\n  -----BEGIN PRIVATE KEY-----\n  C\n  -----END PRIVATE KEY-----\n",
    "env:\n- name: SSHPASS\n  value: C\n",
    'args: ["--password", "C"]\n',
    "args: [--password, C]\n",
    "args:\n- --password\n- C\n",
    "args: ['--config', '{\"apiToken\": \"C\"}']\n",
    "environment:\n  DB_PW: C\n",
    "environment:\n- PGPASSWORD=C\n",
    "image: me:C@registry.example.com/a:1\n",
    "kind: Secret\ndata:\n  anything: C\n",
    "command: [bash, -c, 'export HF_TOKEN=C; torchrun x.py']\n",
)
