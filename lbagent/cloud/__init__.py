"""Load balancers of Services: `provider_api` is what a provider implements, `builtin` and `edge` are providers.

`controller` is `lbagent cloud run`; `cloud plan` uses the pure modules of this folder and the same rules. Plug-ins import only
`lbagent.cloud.provider`. Allocation of addresses is in `pools`; announcing is in `announce`.
"""
