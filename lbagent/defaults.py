"""The default paths of an agent: for the agent, its command line, and a client without any settings."""

DEFAULT_SOCKET = "/run/lbagent/agent.sock"
APILB_SOCKET = "/run/lbagent-apilb/agent.sock"  # of deploy/lbagent-apilb.service
DEFAULT_STATE_DIR = "/var/lib/lbagent"
DEFAULT_BPFFS = "/sys/fs/bpf/lbagent"
