"""Hydra and OmegaConf: composes a program's configuration as Hydra does, and states the claims about the job.

`program` finds the configuration that a script requests, `run_config` joins it with the words of a launch,
`composition` builds the configuration from `defaults_list` and the overrides (`override_grammar`), `interpolation`
resolves `${...}`. `frameworks` holds, as data, which key of a framework states which quantity; `framework_claims`
states them.
"""
