"""Where an agent is found when nothing else is said: by the agent, its command line, and a client without any settings."""

DEFAULT_SOCKET = "/run/lbagent/agent.sock"
DEFAULT_STATE_DIR = "/var/lib/lbagent"
DEFAULT_BPFFS = "/sys/fs/bpf/lbagent"
