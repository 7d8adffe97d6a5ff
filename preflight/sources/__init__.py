"""Sources: one reader for each kind of file. `PACK` names the built-in ones in the order in which they are asked."""

PACK = (
    "preflight.sources.shell_source:ShellSource",
    "preflight.sources.kubernetes.source:KubernetesSource",
    "preflight.sources.containers.compose:ComposeSource",
    "preflight.sources.containers.dockerfile:DockerfileSource",
    "preflight.sources.deepspeed_json:DeepSpeedSource",
    "preflight.sources.accelerate_config:AccelerateSource",
    "preflight.sources.requirements:RequirementsSource",
    "preflight.sources.paddlerec_config:PaddleRecSource",
    "preflight.sources.trainer_config:TrainerConfigSource",
    "preflight.sources.gpt_neox:GptNeoxSource",
    "preflight.sources.nemo_config:NemoSource",
    "preflight.sources.composer_config:ComposerSource",
    "preflight.sources.index_list:IndexListSource",
    "preflight.sources.dotenv:DotenvSource",
    "preflight.sources.makefile:MakefileSource",
    "preflight.sources.hostfile:HostfileSource",
    "preflight.sources.python.source:PythonSource",
)
