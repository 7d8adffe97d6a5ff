"""Spellings that were written before the mechanism was, and not run against it until it was finished.

`C` stands for the canary. Each text is valid in its kind of file; `NAMES` go into every form of `forms.py`.
"""

from __future__ import annotations

from tests.pip_options import EXTRA_INDEX_URL, INDEX_URL

NAMES = (
    *(
        "MYSQL_PWD",
        "REDISCLI_AUTH",
        "COMET_API_KEY",
        "MLFLOW_TRACKING_PASSWORD",
        "NGC_CLI_API_KEY",
        "DOCKER_AUTH_CONFIG",
    ),
    *("clientSecret", "dbPassword", "AZURE_STORAGE_CONNECTION_STRING", "TEAMS_WEBHOOK_URL", "sessionCookie"),
    *("ACCESSKEY", "privateKey", "ROOT_PASSWD", "passPhrase", "GITHUBTOKEN", "accountKey", "signingKey", "USER_PW"),
    *("AZURE_STORAGE_SAS_TOKEN", "CLEARML_API_SECRET_KEY", "NEPTUNE_API_TOKEN", "smtp-pass"),
)

SHELL = (
    "mysqldump -u root -pC db > dump.sql",
    "mysql --user=root --password=C db",
    "redis-cli -h cache -a C ping",
    "curl -sS --user me:C https://artifacts.example.com/x",
    "curl -H 'X-Api-Key: C' https://api.example.com",
    'curl -H "Private-Token: C" https://gitlab.example.com',
    "wget --http-password C https://data.example.com/x",
    "docker login -u me -p C registry.example.com",
    "podman login --username me --password C registry.example.com",
    "huggingface-cli login --token C",
    "wandb login C",
    "aws configure set aws_secret_access_key C",
    "kubectl create secret generic x --from-literal=anything=C",
    "git clone https://oauth2:C@git.example.com/a/b.git",
    f"pip install {INDEX_URL} https://me:p/C@pypi.example.com/simple x",
    f"pip install {EXTRA_INDEX_URL} https://me:p@C@pypi.example.com/simple x",
    "rsync --password-file=<(echo C) a b; export RSYNC_PASSWORD=C",
    "export DATABASE_URL='postgresql://u:C@db:5432/x?sslmode=require'",
    "az login --service-principal -u app -p C --tenant t",
    "az storage blob download --account-key C --name x",
    "mc alias set store https://s3.example.com AKEY C",
    "openssl enc -d -aes-256-cbc -pass pass:C -in a -out b",
    "gpg --batch --passphrase C -d data.gpg",
    "zip -P C -r a.zip data",
    "echo C | docker login --password-stdin registry.example.com",
    "declare -x NPM_TOKEN='C'",
    "printf 'machine api.wandb.ai login user password C' >> ~/.netrc",
    'export EXTRA_JSON=\'{"hub": {"accessToken": "C"}}\'',
    "apptainer pull docker://me:C@registry.example.com/img:1",
    "export APPTAINER_DOCKER_PASSWORD=C",
    "echo 'https://x:C@github.com' > ~/.git-credentials",
    "export AUTH_HEADER='Authorization: Basic C0000000000'",
    "ldapsearch -D cn=admin -w C -b dc=x",
    "export S3_URI='https://b.s3.amazonaws.com/k?X-Amz-Signature=C&x=1'",
)

ARGUMENTS = (
    "--wandb.apiKey C",
    "--logger.password=C",
    "trainer.hub_token=C",
    "++logger.comet.api_key=C",
    "--env DB_PASSWORD=C",
    '--extra \'{"secretKey":"C"}\'',
    "--auth-token=C",
    "--dsn 'mysql://u:C@db/x'",
    "--sas 'sv=2022&ss=b&sig=C0000000000%3D'",
    '--storage-options \'{"account_key": "C", "x": 1}\'',
)

PYTHON = (
    'wandb.login(key="C")',
    'os.environ.setdefault("NEPTUNE_API_TOKEN", "C")',
    'os.environ.update(MLFLOW_TRACKING_PASSWORD="C")',
    'os.environ.update({"COMET_API_KEY": "C"})',
    'parser.add_argument("--hub-token", type=str, default="C", help="token")',
    'HEADERS = {"Authorization": "Bearer C"}',
    "HEADERS = {'x-api-key': 'C'}",
    'client = Client(host="h", password="C")',
    'DATABASE = "mysql://root:C@db.internal/x"',
    'db_password: str = "C"',
    'api_key = os.getenv("SOME_API_KEY") or "C"',
    'secret_key = os.environ.get("SECRET_KEY", "C")',
    'login(token="C", add_to_git_credential=True)',
    'CONFIG = json.loads(\'{"client_secret": "C"}\')',
    'cookies = {"session_token": "C"}',
)

LOGS = (
    "+ export MLFLOW_TRACKING_PASSWORD=C",
    "++ WANDB_API_KEY=C",
    "environ({'PATH': '/bin', 'COMET_API_KEY': 'C', 'HOME': '/root'})",
    'config: {"hub": {"accessToken": "C"}}',
    'body="{\\"clientSecret\\": \\"C\\"}"',
    "headers: {'Authorization': 'Bearer C'}",
    "> Authorization: token C",
    "GET /v1/x?api_key=C&n=1 HTTP/1.1",
    "Namespace(lr=0.1, hf_token='C', steps=4)",
    "db_password: C",
    'declare -x GITHUBTOKEN="C"',
    "connecting to amqp://guest:C@mq.internal:5672/",
    "argv: ['train.py', '--hub-token', 'C', '--lr', '0.1']",
    "Config(api_key=C, retries=3)",
    "password is set; DefaultEndpointsProtocol=https;AccountName=a;AccountKey=C==;EndpointSuffix=core.windows.net",
    "Set-Cookie: session=C; Path=/",
)

YAML = (
    "password: >-\n  C\n",
    "password: |\n  C\n",
    "env:\n- {name: COMET_API_KEY, value: C}\n",
    'env:\n- name: ROOT_PASSWD\n  value: "C"\n',
    "env:\n- value: C\n  name: ROOT_PASSWD\n",
    "args:\n- --hub-token\n- C\n",
    'args: ["--hub-token", "C"]\n',
    "args: [--hub-token, C]\n",
    'args: [\'--extra={"clientSecret": "C"}\']\n',
    "database:\n  dsn: mysql://u:C@h/x\n",
    "credentials:\n  username: me\n  value: C\n",
    "headers:\n  Authorization: Bearer C\n",
    "environment:\n- MYSQL_PWD=C\n",
    "environment:\n  clientSecret: 'C'\n",
)
