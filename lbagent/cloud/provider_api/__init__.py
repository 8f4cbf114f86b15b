"""The API of providers of load balancers: interfaces (`cloud_provider.py`, `provider_parts.py`), records, errors and rules.

`cloud plan` and `cloud run` use the same rules. lbagent imports these modules; plug-ins import `lbagent.cloud.provider`, which has
the public names. No provider is here.
"""
