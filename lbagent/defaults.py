"""The default paths of an agent: for the agent, its command line, and a client without any settings."""

DEFAULT_SOCKET = "/run/lbagent/agent.sock"
APILB_SOCKET = "/run/lbagent-apilb/agent.sock"  # of deploy/lbagent-apilb.service
DEFAULT_STATE_DIR = "/var/lib/lbagent"
FRONTEND_OWNERS_FILE = "frontend-owners.json"  # in the folder of the agent's state
DEFAULT_BPFFS = "/sys/fs/bpf/lbagent"
