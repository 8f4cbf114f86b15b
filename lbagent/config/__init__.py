"""The configuration: one flat record, each key settable by flag, environment, file or default, in this order.

A key is the flag without its dashes (`--node-ip` is `node-ip` in the file and `LBAGENT_NODE_IP` in the environment, where a list
is separated by commas). Each invalid value is rejected with the place it came from; nothing is guessed. Import the names below.
Pool files are in `pools`, manifests in `sources`.
"""

from lbagent.config.check_config import MIN_SNAT_PORT
from lbagent.config.load_config import load
from lbagent.config.schema import CONTIV, PRIMARY, RELOADABLE, Config, Option, options

__all__ = ["CONTIV", "MIN_SNAT_PORT", "PRIMARY", "RELOADABLE", "Config", "Option", "load", "options"]
