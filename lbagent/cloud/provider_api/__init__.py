"""The API of providers of load balancers: interfaces (`cloud_provider.py`, `provider_parts.py`), records, errors and rules.

The rules are those of `cloud plan` and `cloud run` alike. lbagent imports these modules; plug-ins import `lbagent.cloud.provider`,
which has the public names. No provider is here.
"""
