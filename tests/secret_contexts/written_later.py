"""Spellings of secrets written after redaction was finished; `C` stands for the canary. Two of 61 leaked at first."""

from __future__ import annotations

from tests.pip_options import EXTRA_INDEX_URL

NAMES = (
    "VAULT_UNSEAL_KEY",
    "GRAFANA_ADMIN_PASSWORD",
    "registryToken",
    "SMTP_PASS",
    "ngc_api_key",
    "KEYCLOAK_CLIENT_SECRET",
)

SHELL = (
    "kubectl create secret generic wandb --from-literal=api-key=C",
    "kubectl create secret docker-registry r --docker-server=x --docker-username=u --docker-password=C",
    "helm install x ./chart --set wandb.apiKey=C --set replicas=2",
    "curl -s -H 'Authorization: Bearer C' https://api.example.com/v1/models",
    'curl -s -H "X-Api-Key: C" https://api.example.com',
    "wget --header='Authorization: token C' https://x.example.com/a.tgz",
    "git clone https://oauth2:C@gitlab.example.com/group/repo.git",
    f"pip install {EXTRA_INDEX_URL} https://__token__:C@pypi.example.com/simple pkg",
    "huggingface-cli login --token C --add-to-git-credential",
    "hf auth login --token C",
    "wandb login --relogin C",
    "export WANDB_API_KEY=$(printf %s C)",
    "aws configure set aws_secret_access_key C",
    "az login --service-principal -u app -p C --tenant t",
    "echo C | docker login -u me --password-stdin r.example.com",
    "sshpass -p C ssh gpu1 hostname",
    "PGPASSWORD=C psql -h db -U me",
    "redis-cli -a C ping",
    "mysql -u root -pC mlflow",
    "mc alias set s3 https://minio.example.com AKEY C",
    "rclone config create r s3 secret_access_key C",
    "dvc remote modify --local r password C",
    "ngc config set --api_key C",
    "comet login --api-key C",
    "neptune_token='C'; export neptune_token",
    "export MLFLOW_TRACKING_URI=https://me:C@mlflow.example.com",
)

ARGUMENTS = (
    "--wandb_key C",
    "--hf-token=C",
    "++logger.wandb.api_key=C",
    "trainer.logger.token=C",
    "--s3-secret-key C",
    "--db_url postgresql://u:C@db/x",
)

PYTHON = (
    'wandb.login(key="C")',
    'login(token="C", add_to_git_credential=False)',
    'os.environ.setdefault("HF_TOKEN", "C")',
    'client = OpenAI(api_key="C")',
    'requests.get(url, headers={"Authorization": "Bearer C"})',
    'boto3.client("s3", aws_access_key_id="AK", aws_secret_access_key="C")',
    'conn = psycopg2.connect("dbname=x user=u password=C host=db")',
    'parser.add_argument("--api-key", type=str, default="C")',
    'API_TOKEN: str = "C"',
    'mlflow.set_tracking_uri("https://u:C@mlflow.example.com")',
    'neptune.init_run(project="x", api_token="C")',
)

LOGS = (
    "INFO wandb api_key=C project=x",
    "ValueError: Invalid token C for registry",
    "{'hf_token': 'C', 'lr': 0.1}",
    "Namespace(lr=0.1, hub_token='C', epochs=3)",
    "DEBUG urllib3: GET /api?access_token=C HTTP/1.1",
    "fatal: Authentication failed for 'https://u:C@git.example.com/r.git/'",
    "+ export HUGGING_FACE_HUB_TOKEN=C",
    "config: api_key: C",
)

YAML = (
    "stringData:\n  token: C\n",
    "wandb:\n  api_key: C\n  project: x\n",
    'env:\n- name: WANDB_API_KEY\n  value: "C"\n',
    "envs:\n  HF_TOKEN: C\n",
    "secrets:\n  WANDB_API_KEY: C\n",
    "storage_options: {key: AK, secret: C}\n",
    "auth:\n  password: 'C'\n",
    "args: [--token, C]\n",
    "logger:\n  neptune:\n    api_token: C\n",
    "dsn: https://C@sentry.example.com/1\n",
)
