"""Native mode: the agent of a host serves the bind addresses of its pool files by BPF, and checks their servers itself."""
